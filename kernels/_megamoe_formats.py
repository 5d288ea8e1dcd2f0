"""Formats of weights and rows in torch: what the kernels are checked by and fed with.

Nothing here is timed. Every function works on "cpu", "cuda" and "meta".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..search_spaces import Format

E4M3 = torch.float8_e4m3fn
E4M3_MAX = 448.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0
MX_GROUP = 32
FP8_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """A matrix as it is stored.

    Attributes:
        data: bf16, e4m3 or, two e2m1 a byte and the even column low, uint8.
        scale: float32 or uint8 (UE8M0); None for bf16.
    """

    data: Tensor
    scale: Tensor | None = None


def interleave_gate_up(w13: Tensor) -> Tensor:
    """Return w13 [experts, 2*intermediate, ...] with rows in the order gate 0, up 0, gate 1, ...

    Checkpoints hold all gate rows before all up rows; biases [experts, 2*intermediate] too. Block
    scales (fp8_block128) stay as they are: gate blocks, then up blocks. Scales of single rows
    (mxfp4) move with their rows.
    """
    experts, rows = w13.shape[:2]
    if rows % 2:
        raise InvalidInput(f"w13 has {rows} rows: must be even, gate rows before up rows")
    halves = w13.reshape(experts, 2, rows // 2, *w13.shape[2:])
    return halves.transpose(1, 2).reshape(w13.shape).contiguous()


def deinterleave_gate_up(w13: Tensor) -> Tensor:
    """Undo `interleave_gate_up`."""
    experts, rows = w13.shape[:2]
    pairs = w13.reshape(experts, rows // 2, 2, *w13.shape[2:])
    return pairs.transpose(1, 2).reshape(w13.shape).contiguous()


def quantise_weight(weight: Tensor, form: Format) -> Quantised:
    """Return a weight [n, k] in a format; its block scales are [n/128, k/128], rounded up."""
    if form.name == "bf16":
        return Quantised(data=weight.to(torch.bfloat16))
    if form.name == "mxfp4":
        return _to_mxfp4(weight)
    rows, columns = (-(-size // FP8_BLOCK) for size in weight.shape)
    amax = _blocks(weight).abs().amax(dim=(1, 3))
    scale = amax.clamp(min=1e-10) / E4M3_MAX
    spread = scale[:, None, :, None].expand(rows, FP8_BLOCK, columns, FP8_BLOCK)
    spread = spread.reshape(rows * FP8_BLOCK, columns * FP8_BLOCK)
    data = weight.float() / spread[: weight.shape[0], : weight.shape[1]]
    return Quantised(data=_to_e4m3(data), scale=scale.float())


def dequantise_weight(data: Tensor, scale: Tensor | None, form: Format) -> Tensor:
    """Return float64 [n, k] of what `quantise_weight` returned."""
    if scale is None:
        return data.double()
    if form.name == "mxfp4":
        table = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=data.device)
        table = torch.cat((table, -table))
        nibbles = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)
        return table[nibbles.long()] * _from_e8m0(scale).repeat_interleave(MX_GROUP, -1)
    spread = scale.double().repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return data.double() * spread[: data.shape[0], : data.shape[1]]


def quantise_rows(rows: Tensor, form: Format, group: int) -> Quantised:
    """Return rows [rows, k] in an activation format with one scale for `group` elements."""
    if form.name == "bf16":
        return Quantised(data=rows.to(torch.bfloat16))
    padded = torch.nn.functional.pad(rows.float(), (0, -rows.shape[1] % group))
    groups = padded.reshape(rows.shape[0], -1, group)
    amax = groups.abs().amax(dim=2)
    if form.name == "mxfp8":
        scale = _e8m0_above(amax / E4M3_MAX)
        factor = _from_e8m0(scale).float()
    else:
        scale = factor = amax.clamp(min=1e-10) / E4M3_MAX
    data = (groups / factor[:, :, None]).reshape(padded.shape)[:, : rows.shape[1]]
    return Quantised(data=_to_e4m3(data), scale=scale)


def dequantise_rows(data: Tensor, scale: Tensor | None, group: int) -> Tensor:
    """Return float64 rows; `scale` float32 or UE8M0 bytes."""
    if scale is None:
        return data.double()
    factor = _from_e8m0(scale) if scale.dtype == torch.uint8 else scale.double()
    return data.double() * factor.repeat_interleave(group, 1)[:, : data.shape[1]]


def row_dtypes(form: Format) -> tuple[torch.dtype, torch.dtype | None]:
    """Return the dtypes of rows and of their scales in an activation format."""
    if form.name == "bf16":
        return torch.bfloat16, None
    return E4M3, torch.uint8 if form.name == "mxfp8" else torch.float32


def weight_dtypes(form: Format) -> tuple[torch.dtype, torch.dtype | None]:
    """Return the dtypes of weights (mxfp4: of a byte with two) and of their scales."""
    if form.name == "bf16":
        return torch.bfloat16, None
    if form.name == "mxfp4":
        return torch.uint8, torch.uint8
    return E4M3, torch.float32


def _blocks(weight: Tensor) -> Tensor:
    """Return a view or copy [n/128, 128, k/128, 128], padded with zeros."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(
        weight.float(), (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK)
    )
    return padded.reshape(
        padded.shape[0] // FP8_BLOCK, FP8_BLOCK, padded.shape[1] // FP8_BLOCK, FP8_BLOCK
    )


def _to_e4m3(values: Tensor) -> Tensor:
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)


def _e8m0_above(values: Tensor) -> Tensor:
    """Return exponent bytes of the smallest powers of two at or above float32 `values`."""
    bits = values.float().contiguous().view(torch.int32)
    return ((bits + 0x7FFFFF) >> 23).clamp(1, 253).to(torch.uint8)


def _from_e8m0(scale: Tensor) -> Tensor:
    return torch.exp2(scale.double() - 127.0)


def _to_mxfp4(weight: Tensor) -> Quantised:
    rows, columns = weight.shape
    if columns % MX_GROUP:
        raise InvalidInput(f"width is {columns}: must be a multiple of {MX_GROUP} for mxfp4")
    groups = weight.float().reshape(rows, -1, MX_GROUP)
    scale = _e8m0_above(groups.abs().amax(dim=2) / E2M1_MAX)
    values = (groups / _from_e8m0(scale).float()[:, :, None]).reshape(rows, columns)
    # Halfway between neighbours; ties go up, which is as good as any rule for random weights.
    edges = torch.tensor(E2M1_VALUES, device=weight.device)
    middles = (edges[1:] + edges[:-1]) / 2
    codes = torch.bucketize(values.abs(), middles).to(torch.uint8)
    codes = codes | ((values < 0).to(torch.uint8) << 3)
    return Quantised(data=codes[:, 0::2] | (codes[:, 1::2] << 4), scale=scale)
