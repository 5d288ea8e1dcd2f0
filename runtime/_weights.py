"""Expert weights from the tensors of usual checkpoints, in the layout that megamoe reads.

That layout: gate and up rows interleaved in one matrix [experts, 2*intermediate, hidden], down
[experts, hidden, intermediate], both K-major; scales and biases as `kernels._megamoe_inputs.Matrix` says.
Accepted are

* fused tensors of transformers 5: gate_up_proj [experts, 2*intermediate, hidden] with all gate rows before
  all up rows, down_proj [experts, hidden, intermediate];
* the same transposed, [experts, hidden, 2*intermediate] and [experts, intermediate, hidden], and with gate
  and up already interleaved, as in gpt-oss;
* one gate (w1), up (w3) and down (w2) matrix an expert;
* each of them in e4m3 with scales for blocks of 128 x 128 that multiply (`weight_scale_inv`), but for
  transposed ones;
* mxfp4: fused blocks [experts, rows, columns/32, 16] of two e2m1 a byte, the even column low, and their
  UE8M0 scales [experts, rows, columns/32], gate and up rows interleaved (gpt-oss); or one matrix an
  expert, [rows, columns/2], and scales [rows, columns/32].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..kernels._megamoe_formats import E4M3, FP8_BLOCK, MX_GROUP, interleave_gate_up
from ..kernels._megamoe_inputs import Matrix
from ..search_spaces import Unit

# Weight formats by dtype; a byte of mxfp4 holds two columns.
_BYTES = (torch.int8, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2)
_DTYPES = {torch.bfloat16: "bf16", E4M3: "fp8_block128", torch.uint8: "mxfp4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """Both matrices of all experts of a rank, in our layout.

    Attributes:
        gate_up: data [experts, 2*intermediate, hidden] (not gated: [experts, intermediate, hidden]).
        down: data [experts, hidden, intermediate]; of mxfp4 both have half as many columns.
        gated: Whether gate_up holds a gate and an up half.
    """

    gate_up: Matrix
    down: Matrix
    gated: bool = True

    def __post_init__(self) -> None:
        """Refuse matrices that do not belong together."""
        up, down = self.gate_up.data, self.down.data
        if up.dim() != 3 or down.dim() != 3:
            raise InvalidInput(
                f"expert weights have shapes {list(up.shape)} and {list(down.shape)}: must be "
                "[experts, 2*intermediate, hidden] and [experts, hidden, intermediate]"
            )
        rows = (2 if self.gated else 1) * self.intermediate
        wanted = [self.experts, rows, self.hidden // _packed(up)]
        if list(up.shape) != wanted:
            raise InvalidInput(
                f"gate_up weights are {list(up.shape)}: must be {wanted} beside down weights of "
                f"{list(down.shape)}"
            )
        if up.dtype != down.dtype or up.dtype not in _DTYPES:
            raise InvalidInput(
                f"expert weights are {_word(up)} and {_word(down)}: must be both bfloat16, or "
                "both float8_e4m3fn or uint8 (mxfp4) with their scales"
            )
        if not up.is_contiguous() or not down.is_contiguous():
            raise InvalidInput(
                "expert weights are not contiguous: must be dense, as kernels read them"
            )
        self._check_rest()

    def _check_rest(self) -> None:
        """Refuse scales and biases of other shapes: kernels would read past them."""
        up, down = self.gate_up.data, self.down.data
        scaled = up.dtype != torch.bfloat16
        if scaled == (self.gate_up.scale is None or self.down.scale is None):
            raise InvalidInput(
                f"expert weights are {_word(up)}: float8_e4m3fn and uint8 (mxfp4) need scales of "
                "both matrices, bfloat16 has none"
            )
        up_scale, down_scale = self._scale_shapes()
        wanted = {
            "gate_up scale": (self.gate_up.scale, up_scale),
            "down scale": (self.down.scale, down_scale),
            "gate_up bias": (self.gate_up.bias, tuple(up.shape[:2])),
            "down bias": (self.down.bias, tuple(down.shape[:2])),
        }
        for name, (tensor, shape) in wanted.items():
            if tensor is not None and tuple(tensor.shape) != shape:
                raise InvalidInput(f"{name} is {list(tensor.shape)}: must be {list(shape)}")

    def _scale_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes that scales of gate_up and down must have."""
        up, down = self.gate_up.data, self.down.data
        if up.dtype == torch.uint8:
            groups = self.hidden // MX_GROUP, self.intermediate // MX_GROUP
            return (*up.shape[:2], groups[0]), (*down.shape[:2], groups[1])
        blocks = (-(-self.intermediate // FP8_BLOCK), -(-self.hidden // FP8_BLOCK))
        halves = (2,) if self.gated else ()
        return (self.experts, *halves, *blocks), (self.experts, blocks[1], blocks[0])

    @property
    def experts(self) -> int:
        """Experts of this rank."""
        return self.down.data.shape[0]

    @property
    def hidden(self) -> int:
        """Model width."""
        return self.down.data.shape[1]

    @property
    def intermediate(self) -> int:
        """Width of an expert on this rank."""
        return self.down.data.shape[2] * _packed(self.down.data)

    @property
    def form(self) -> str:
        """Weight format, a key of WEIGHT_FORMATS."""
        return _DTYPES[self.gate_up.data.dtype]

    @property
    def matrices(self) -> dict[Unit, Matrix]:
        """What the kernel's plans take."""
        return {Unit.GATE_UP: self.gate_up, Unit.DOWN: self.down}


def from_fused(
    gate_up: Tensor,
    down: Tensor,
    *,
    transposed: bool = False,
    interleaved: bool = False,
    gated: bool = True,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    gate_up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
) -> ExpertWeights:
    """Return weights from fused tensors (see the module); `down` is not copied unless it must be.

    Args:
        gate_up: [experts, 2*intermediate, hidden]; transposed [experts, hidden, 2*intermediate].
        down: [experts, hidden, intermediate]; transposed [experts, intermediate, hidden].
        transposed: Both have their last axes exchanged (gpt-oss).
        interleaved: Gate and up rows alternate already (gpt-oss), biases too.
        gated: False where `gate_up` has up rows only.
        gate_up_bias: [experts, 2*intermediate].
        down_bias: [experts, hidden].
        gate_up_scale: float32 [experts, 2*intermediate/128, hidden/128], gate blocks before up blocks.
        down_scale: float32 [experts, hidden/128, intermediate/128].

    Raises:
        InvalidInput: the tensors do not belong together.
    """
    if transposed and gate_up_scale is not None:
        raise InvalidInput(
            "expert weights are transposed and have block scales: must be one of both"
        )
    if gate_up.dim() != 3 or down.dim() != 3:
        raise InvalidInput(
            f"fused weights are {list(gate_up.shape)} and {list(down.shape)}: must have an axis of experts"
        )
    if transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    mixes = gated and not interleaved
    if gate_up_scale is not None and gated:
        if interleaved:
            raise InvalidInput(
                "interleaved expert weights have block scales: must have gate rows first"
            )
        gate_up_scale = _halved_scale(gate_up_scale, gate_up)
    bias = None if gate_up_bias is None else gate_up_bias.float()
    return ExpertWeights(
        gate_up=Matrix(
            data=interleave_gate_up(gate_up) if mixes else gate_up.contiguous(),
            scale=_scale(gate_up_scale),
            bias=interleave_gate_up(bias) if mixes and bias is not None else bias,
        ),
        down=Matrix(
            data=down.contiguous(),
            scale=_scale(down_scale),
            bias=None if down_bias is None else down_bias.float().contiguous(),
        ),
        gated=gated,
    )


def from_mxfp4(
    gate_up_blocks: Tensor,
    gate_up_scales: Tensor,
    down_blocks: Tensor,
    down_scales: Tensor,
    *,
    interleaved: bool = True,
    gated: bool = True,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> ExpertWeights:
    """Return weights from fused mxfp4 tensors, as gpt-oss stores them; nothing is unpacked.

    Args:
        gate_up_blocks: uint8 [experts, 2*intermediate, hidden/32, 16].
        gate_up_scales: UE8M0 [experts, 2*intermediate, hidden/32].
        down_blocks: uint8 [experts, hidden, intermediate/32, 16].
        down_scales: UE8M0 [experts, hidden, intermediate/32].
        interleaved: Gate and up rows alternate already (gpt-oss), biases too.
        gated: False where there are up rows only.
        gate_up_bias: [experts, 2*intermediate].
        down_bias: [experts, hidden].

    Raises:
        InvalidInput: the tensors do not belong together.
    """
    mixes = gated and not interleaved

    def rows(tensor: Tensor) -> Tensor:
        return interleave_gate_up(tensor) if mixes else tensor.contiguous()

    return ExpertWeights(
        gate_up=Matrix(
            data=rows(_unblocked(gate_up_blocks, "gate_up_blocks")),
            scale=rows(_exponents(gate_up_scales, "gate_up_scales")),
            bias=None if gate_up_bias is None else rows(gate_up_bias.float()),
        ),
        down=Matrix(
            data=_unblocked(down_blocks, "down_blocks").contiguous(),
            scale=_exponents(down_scales, "down_scales").contiguous(),
            bias=None if down_bias is None else down_bias.float().contiguous(),
        ),
        gated=gated,
    )


def from_experts(
    w1: Sequence[Tensor],
    w3: Sequence[Tensor],
    w2: Sequence[Tensor],
    *,
    w1_scale: Sequence[Tensor] = (),
    w3_scale: Sequence[Tensor] = (),
    w2_scale: Sequence[Tensor] = (),
    device: torch.device | str | None = None,
) -> ExpertWeights:
    """Return weights from one gate, up and down matrix an expert; written once, expert by expert.

    Args:
        w1: Gate matrices [intermediate, hidden]; mxfp4: bytes [intermediate, hidden/2].
        w3: Up matrices [intermediate, hidden].
        w2: Down matrices [hidden, intermediate].
        w1_scale: Their block scales [intermediate/128, hidden/128], where they are e4m3; mxfp4:
            [intermediate, hidden/32].
        w3_scale: The same for w3.
        w2_scale: The same for w2, [hidden/128, intermediate/128].
        device: Where the weights shall lie; None = where w1 lies.

    Raises:
        InvalidInput: the tensors do not belong together.
    """
    counts = {len(part) for part in (w1, w3, w2)}
    if len(counts) != 1 or not counts.isdisjoint({0}):
        raise InvalidInput(
            f"there are {len(w1)} w1, {len(w3)} w3 and {len(w2)} w2 matrices: must be as many, at "
            "least one"
        )
    scales = (w1_scale, w3_scale, w2_scale)
    if any(len(part) not in (0, len(w1)) for part in scales) or len({len(s) for s in scales}) > 1:
        raise InvalidInput("some experts have block scales and some not: must be all or none")
    if w1[0].dim() != 2:
        raise InvalidInput(
            f"w1 of expert 0 is {list(w1[0].shape)}: must be [intermediate, hidden]"
        )
    place = w1[0].device if device is None else torch.device(device)
    w1, w3, w2 = ([_bytes(matrix) for matrix in part] for part in (w1, w3, w2))
    rows, columns = w1[0].shape
    packed = _packed(w1[0])
    gate_up = torch.empty((len(w1), 2 * rows, columns), dtype=w1[0].dtype, device=place)
    size = (len(w1), columns * packed, rows // packed)
    down = torch.empty(size, dtype=w2[0].dtype, device=place)
    for expert, (gate, up, low) in enumerate(zip(w1, w3, w2, strict=True)):
        _fill(gate_up[expert, 0::2], gate, f"w1 of expert {expert}")
        _fill(gate_up[expert, 1::2], up, f"w3 of expert {expert}")
        _fill(down[expert], low, f"w2 of expert {expert}")
    up_scale = down_scale = None
    if w1_scale and packed > 1:
        parts = [_exponents(_stacked(s, "scales"), "scales").to(place) for s in scales]
        up_scale = torch.stack(parts[:2], dim=2).flatten(1, 2).contiguous()
        return ExpertWeights(
            gate_up=Matrix(data=gate_up, scale=up_scale, bias=None),
            down=Matrix(data=down, scale=parts[2].contiguous(), bias=None),
        )
    if w1_scale:
        halves = _floats(_stacked((*w1_scale, *w3_scale), "w1 and w3 scales")).to(place)
        up_scale = torch.stack((halves[: len(w1)], halves[len(w1) :]), dim=1)
        down_scale = _floats(_stacked(w2_scale, "w2 scales")).to(place)
    return ExpertWeights(
        gate_up=Matrix(data=gate_up, scale=_scale(up_scale), bias=None),
        down=Matrix(data=down, scale=_scale(down_scale), bias=None),
    )


def _fill(place: Tensor, source: Tensor, what: str) -> None:
    if place.shape != source.shape or place.dtype != source.dtype:
        raise InvalidInput(
            f"{what} is {_word(source)} {list(source.shape)}: must be {_word(place)} "
            f"{list(place.shape)}"
        )
    place.copy_(source)


def _stacked(parts: Sequence[Tensor], what: str) -> Tensor:
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) != 1:
        raise InvalidInput(f"{what} have shapes {sorted(shapes)[:3]}: must be equal")
    return torch.stack([_bytes(part) for part in parts])


def _halved_scale(scale: Tensor, gate_up: Tensor) -> Tensor:
    """Return scales [experts, 2, blocks of intermediate, blocks of hidden]."""
    rows = gate_up.shape[1] // 2
    if rows % FP8_BLOCK:
        raise InvalidInput(
            f"intermediate is {rows}: must be a multiple of {FP8_BLOCK} in a fused tensor with "
            "block scales, so that no block holds gate and up rows; load one matrix an expert"
        )
    wanted = (gate_up.shape[0], 2 * rows // FP8_BLOCK, -(-gate_up.shape[2] // FP8_BLOCK))
    if tuple(scale.shape) != wanted:
        raise InvalidInput(f"gate_up scales are {list(scale.shape)}: must be {list(wanted)}")
    return scale.reshape(wanted[0], 2, rows // FP8_BLOCK, wanted[2])


def _unblocked(blocks: Tensor, what: str) -> Tensor:
    """Return mxfp4 blocks [experts, rows, groups, 16] as bytes [experts, rows, columns/2]."""
    blocks = _bytes(blocks)
    if blocks.dtype != torch.uint8 or blocks.dim() != 4 or blocks.shape[3] != MX_GROUP // 2:
        raise InvalidInput(
            f"{what} are {_word(blocks)} {list(blocks.shape)}: must be uint8 [experts, rows, "
            f"columns/{MX_GROUP}, {MX_GROUP // 2}]"
        )
    return blocks.flatten(2)


def _exponents(scales: Tensor, what: str) -> Tensor:
    scales = _bytes(scales)
    if scales.dtype != torch.uint8 or scales.dim() != 3:
        raise InvalidInput(
            f"{what} are {_word(scales)} {list(scales.shape)}: must be uint8 (UE8M0) [experts, rows, "
            f"columns/{MX_GROUP}]"
        )
    return scales


def _bytes(tensor: Tensor) -> Tensor:
    """Return what holds e2m1 pairs or UE8M0 exponents under another name as plain bytes."""
    return tensor.view(torch.uint8) if tensor.dtype in _BYTES else tensor


def _packed(tensor: Tensor) -> int:
    return 2 if tensor.dtype == torch.uint8 else 1


def _scale(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else _floats(scale).contiguous()


def _floats(scale: Tensor) -> Tensor:
    if not scale.dtype.is_floating_point:
        raise InvalidInput(f"block scales are {_word(scale)}: must be floating-point")
    return scale.float()


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
