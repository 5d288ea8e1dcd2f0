"""Expert weights by the names that checkpoints give their tensors (`_weights` says which layouts)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import InvalidInput
from ._weights import ExpertWeights, from_experts, from_fused, from_mxfp4

# What checkpoints call an expert's gate, up and down matrices.
_EXPERT_NAMES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
# What they end the name of a block scale with.
_SCALE_ENDINGS = ("weight_scale_inv", "scale", "weight_scale")
_MOST_EXPERTS = 1 << 14


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
            in gpt-oss, or is mxfp4.

    Raises:
        InvalidInput: no such tensors, or they do not belong together.
    """
    if f"{prefix}gate_up_proj_blocks" in tensors:
        return _from_mxfp4_names(tensors, prefix, device, interleaved)
    if f"{prefix}gate_up_proj" in tensors:
        return _from_fused_names(tensors, prefix, device, interleaved)
    for names in _EXPERT_NAMES:
        if f"{prefix}0.{names[0]}.weight" in tensors:
            return _from_expert_names(tensors, prefix, names, device)
    near = [name for name in tensors if name.startswith(prefix)][:3]
    raise InvalidInput(
        f"no expert weights begin with {prefix!r}: must be gate_up_proj and down_proj "
        f"(mxfp4: with _blocks and _scales), or "
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


def _from_mxfp4_names(
    tensors: Mapping[str, Tensor],
    prefix: str,
    device: torch.device | str | None,
    interleaved: bool | None,
) -> ExpertWeights:
    def read(name: str, *, needed: bool = True) -> Tensor | None:
        found = tensors.get(f"{prefix}{name}")
        if found is None and needed:
            raise InvalidInput(f"there is no {prefix}{name} beside {prefix}gate_up_proj_blocks")
        return found if found is None or device is None else found.to(device)

    names = (
        f"{unit}_{part}" for unit in ("gate_up_proj", "down_proj") for part in ("blocks", "scales")
    )
    blocks = [tensor for tensor in map(read, names) if tensor is not None]
    return from_mxfp4(
        *blocks,
        interleaved=interleaved is not False,
        gate_up_bias=read("gate_up_proj_bias", needed=False),
        down_bias=read("down_proj_bias", needed=False),
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
