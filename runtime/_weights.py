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
  transposed ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..kernels._megamoe_formats import E4M3, FP8_BLOCK, interleave_gate_up
from ..kernels._megamoe_inputs import Matrix
from ..search_spaces import Unit

# What checkpoints call an expert's gate, up and down matrices.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
# What they end the name of a block scale with.
_SCALE_ENDINGS = ("weight_scale_inv", "scale", "weight_scale")
_MOST_EXPERTS = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWeights:
    """Both matrices of all experts of a rank, in our layout.

    Attributes:
        gate_up: data [experts, 2*intermediate, hidden] (not gated: [experts, intermediate, hidden]).
        down: data [experts, hidden, intermediate].
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
        wanted = [self.experts, rows, self.hidden]
        if list(up.shape) != wanted:
            raise InvalidInput(
                f"gate_up weights are {list(up.shape)}: must be {wanted} beside down weights of "
                f"{list(down.shape)}"
            )
        if up.dtype != down.dtype or up.dtype not in (torch.bfloat16, E4M3):
            raise InvalidInput(
                f"expert weights are {_word(up)} and {_word(down)}: must be both bfloat16, or "
                "both float8_e4m3fn with block scales"
            )
        if not up.is_contiguous() or not down.is_contiguous():
            raise InvalidInput(
                "expert weights are not contiguous: must be dense, as kernels read them"
            )
        self._check_rest()

    def _check_rest(self) -> None:
        """Refuse scales and biases of other shapes: kernels would read past them."""
        up, down = self.gate_up.data, self.down.data
        if (up.dtype == E4M3) == (self.gate_up.scale is None or self.down.scale is None):
            raise InvalidInput(
                f"expert weights are {_word(up)}: float8_e4m3fn needs block scales of both "
                "matrices, bfloat16 has none"
            )

        blocks = (-(-self.intermediate // FP8_BLOCK), -(-self.hidden // FP8_BLOCK))
        halves = (2,) if self.gated else ()
        wanted = {
            "gate_up scale": (self.gate_up.scale, (self.experts, *halves, *blocks)),
            "down scale": (self.down.scale, (self.experts, blocks[1], blocks[0])),
            "gate_up bias": (self.gate_up.bias, tuple(up.shape[:2])),
            "down bias": (self.down.bias, tuple(down.shape[:2])),
        }
        for name, (tensor, shape) in wanted.items():
            if tensor is not None and tuple(tensor.shape) != shape:
                raise InvalidInput(f"{name} is {list(tensor.shape)}: must be {list(shape)}")

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
        return self.down.data.shape[2]

    @property
    def form(self) -> str:
        """Weight format, a key of WEIGHT_FORMATS."""
        return "bf16" if self.gate_up.scale is None else "fp8_block128"

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
        w1: Gate matrices [intermediate, hidden].
        w3: Up matrices [intermediate, hidden].
        w2: Down matrices [hidden, intermediate].
        w1_scale: Their block scales [intermediate/128, hidden/128], where they are e4m3.
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
    rows, hidden = w1[0].shape
    gate_up = torch.empty((len(w1), 2 * rows, hidden), dtype=w1[0].dtype, device=place)
    down = torch.empty((len(w1), hidden, rows), dtype=w2[0].dtype, device=place)
    for expert, (gate, up, low) in enumerate(zip(w1, w3, w2, strict=True)):
        _fill(gate_up[expert, 0::2], gate, f"w1 of expert {expert}")
        _fill(gate_up[expert, 1::2], up, f"w3 of expert {expert}")
        _fill(down[expert], low, f"w2 of expert {expert}")
    up_scale = down_scale = None
    if w1_scale:
        halves = _stacked((*w1_scale, *w3_scale), "w1 and w3 scales").to(place)
        up_scale = torch.stack((halves[: len(w1)], halves[len(w1) :]), dim=1)
        down_scale = _stacked(w2_scale, "w2 scales").to(place)
    return ExpertWeights(
        gate_up=Matrix(data=gate_up, scale=_scale(up_scale), bias=None),
        down=Matrix(data=down, scale=_scale(down_scale), bias=None),
    )


def from_tensors(
    tensors: Mapping[str, Tensor],
    prefix: str = "",
    *,
    device: torch.device | str | None = None,
    interleaved: bool | None = None,
) -> ExpertWeights:
    """Return weights from a checkpoint's tensors: fused ones, else one matrix an expert.

    Args:
        tensors: Names and tensors; may be a lazy mapping, only this layer's are read.
        prefix: What stands before "gate_up_proj" or "0.gate_proj.weight", say
            "model.layers.3.mlp.experts.".
        device: Where the weights shall lie; None = where the tensors lie.
        interleaved: Whether gate and up of a fused tensor alternate; None = where it has biases, as
            in gpt-oss.

    Raises:
        InvalidInput: no such tensors, or they do not belong together.
    """
    if f"{prefix}gate_up_proj" in tensors:
        return _from_fused_names(tensors, prefix, device, interleaved)
    for names in _EXPERT_NAMES:
        if f"{prefix}0.{names[0]}.weight" in tensors:
            return _from_expert_names(tensors, prefix, names, device)
    near = [name for name in tensors if name.startswith(prefix)][:3]
    raise InvalidInput(
        f"no expert weights begin with {prefix!r}: must be gate_up_proj and down_proj, or "
        f"0.gate_proj.weight or 0.w1.weight and so on (found {', '.join(near) or 'nothing'})"
    )


def _from_fused_names(
    tensors: Mapping[str, Tensor],
    prefix: str,
    device: torch.device | str | None,
    interleaved: bool | None,
) -> ExpertWeights:
    def read(name: str) -> Tensor | None:
        found = tensors.get(f"{prefix}{name}")
        return found if found is None or device is None else found.to(device)

    gate_up, down = read("gate_up_proj"), read("down_proj")
    if gate_up is None or down is None:
        raise InvalidInput(f"there is no {prefix}down_proj beside {prefix}gate_up_proj")
    if interleaved is None:
        interleaved = f"{prefix}gate_up_proj_bias" in tensors
    return from_fused(
        gate_up,
        down,
        # Transposed ones have [.., hidden, ..] against 2 * [.., .., hidden]: never equal.
        transposed=gate_up.dim() == 3 and gate_up.shape[1] != 2 * down.shape[-1],
        interleaved=interleaved,
        gate_up_bias=read("gate_up_proj_bias"),
        down_bias=read("down_proj_bias"),
        gate_up_scale=read("gate_up_proj_scale_inv"),
        down_scale=read("down_proj_scale_inv"),
    )


def _from_expert_names(
    tensors: Mapping[str, Tensor],
    prefix: str,
    names: tuple[str, str, str],
    device: torch.device | str | None,
) -> ExpertWeights:
    gate, up, down = names
    experts = _count(tensors, prefix, gate)
    ending = next((e for e in _SCALE_ENDINGS if f"{prefix}0.{gate}.{e}" in tensors), None)

    def read(name: str, ending: str | None) -> list[Tensor]:
        if ending is None:
            return []
        wanted = [f"{prefix}{expert}.{name}.{ending}" for expert in range(experts)]
        missing = [key for key in wanted if key not in tensors]
        if missing:
            raise InvalidInput(f"the checkpoint has no {missing[0]!r}: must have one an expert")
        return [tensors[key] for key in wanted]

    return from_experts(
        read(gate, "weight"),
        read(up, "weight"),
        read(down, "weight"),
        w1_scale=read(gate, ending),
        w3_scale=read(up, ending),
        w2_scale=read(down, ending),
        device=device,
    )


def _count(tensors: Mapping[str, Tensor], prefix: str, gate: str) -> int:
    for expert in range(_MOST_EXPERTS):
        if f"{prefix}{expert}.{gate}.weight" not in tensors:
            return expert
    raise InvalidInput(f"{prefix!r} has over {_MOST_EXPERTS} experts: no model has")


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
    return torch.stack([_floats(part) for part in parts])


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


def _scale(scale: Tensor | None) -> Tensor | None:
    return None if scale is None else _floats(scale).contiguous()


def _floats(scale: Tensor) -> Tensor:
    if not scale.dtype.is_floating_point:
        raise InvalidInput(f"block scales are {_word(scale)}: must be floating-point")
    return scale.float()


def _word(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
