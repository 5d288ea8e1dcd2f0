"""Inputs of vLLM's fused_moe kernel in that engine's layout, and their float64 reference.

Weights: w13 [experts, 2 I, H] (gate rows, then up rows), w2 [experts, H, I]. fp8 is e4m3 with float32
scales per 128 x 128 of a weight and per 1 x 128 of an activation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..search_spaces import Problem, Unit

GROUP = 128
E4M3_MAX = 448.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """One draw.

    Attributes:
        weights: For each GEMM [experts, N, K] and its scales [experts, N/128, K/128] (None for bf16).
        rows: For each GEMM its activations: x [tokens, H]; the intermediate [tokens * top_k, I].
        topk_ids: [tokens, top_k] int32, expert numbers on this rank, -1 where the expert is elsewhere.
        topk_weights: [tokens, top_k] float32.
    """

    weights: dict[Unit, tuple[torch.Tensor, torch.Tensor | None]]
    rows: dict[Unit, tuple[torch.Tensor, torch.Tensor | None]]
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor


def make(problem: Problem, *, device: str, seed: int) -> Inputs:
    """Draw weights, activations and a routing; on "meta" only shapes."""
    weights = {}
    generator = _generator(device, seed)
    for unit in (Unit.GATE_UP, Unit.DOWN):
        columns, depth = problem.gemm(unit)
        shape = (problem.local_experts, columns, depth)
        weights[unit] = _weights(problem, shape, device, generator)
    empty = Inputs(
        weights=weights,
        rows={},
        topk_ids=torch.empty(0, device=device),
        topk_weights=torch.empty(0, device=device),
    )
    return redraw(empty, problem, device=device, seed=seed)


def redraw(inputs: Inputs, problem: Problem, *, device: str, seed: int) -> Inputs:
    """Return inputs with the same weights and new activations and routing."""
    generator = _generator(device, seed + 1)
    tokens, top_k = problem.tokens, problem.shape.top_k
    counts = {Unit.GATE_UP: tokens, Unit.DOWN: tokens * top_k}
    rows = {
        unit: _activations(problem, (count, problem.gemm(unit)[1]), device, generator)
        for unit, count in counts.items()
    }
    return replace(
        inputs,
        rows=rows,
        topk_ids=_ids(problem, device, seed),
        topk_weights=_normal((tokens, top_k), device, generator).softmax(-1).float(),
    )


def reference(problem: Problem, unit: Unit, inputs: Inputs) -> torch.Tensor:
    """Return the unit's output in float64: [tokens * top_k, N], zero rows where the expert is elsewhere."""
    weight, scale = inputs.weights[unit]
    rows, row_scale = inputs.rows[unit]
    wide = dequantised(rows, row_scale)
    if unit is Unit.GATE_UP:
        wide = wide.repeat_interleave(problem.shape.top_k, dim=0)
    ids = inputs.topk_ids.reshape(-1)
    out = torch.zeros(len(ids), weight.shape[1], dtype=torch.float64, device=weight.device)
    for expert in sorted(set(ids.tolist())):
        if expert < 0:
            continue
        mine = ids == expert
        block = dequantised(weight[expert], None if scale is None else scale[expert], GROUP)
        out[mine] = wide[mine] @ block.T
    return out


def dequantised(
    values: torch.Tensor, scale: torch.Tensor | None, row_group: int = 1
) -> torch.Tensor:
    """Return values times their scales, in float64."""
    wide = values.to(torch.float64)
    if scale is None:
        return wide
    spread = scale.to(torch.float64).repeat_interleave(row_group, dim=-2)
    spread = spread.repeat_interleave(GROUP, dim=-1)
    return wide * spread[: wide.shape[0], : wide.shape[1]]


def _weights(
    problem: Problem, shape: tuple[int, int, int], device: str, generator: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    experts, columns, depth = shape
    if problem.weights.bits == 16:
        weight = torch.empty(shape, dtype=torch.bfloat16, device=device)
        for expert in range(experts if device != "meta" else 0):
            weight[expert] = _normal((columns, depth), device, generator) * depth**-0.5
        return weight, None
    weight = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    blocks = (experts, -(-columns // GROUP), -(-depth // GROUP))
    scale = torch.rand(blocks, device=device, generator=generator) * 0.02 + 0.01
    for expert in range(experts if device != "meta" else 0):
        weight[expert] = _normal((columns, depth), device, generator).to(torch.float8_e4m3fn)
    return weight, scale


def _activations(
    problem: Problem, shape: tuple[int, int], device: str, generator: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    wide = _normal(shape, device, generator)
    if problem.weights.bits == 16:
        return wide.to(torch.bfloat16), None
    groups = -(-shape[1] // GROUP)
    padded = torch.nn.functional.pad(wide, (0, groups * GROUP - shape[1]))
    scale = padded.reshape(shape[0], groups, GROUP).abs().amax(-1).clamp_min(1e-6) / E4M3_MAX
    values = wide / scale.repeat_interleave(GROUP, dim=-1)[:, : shape[1]]
    return values.to(torch.float8_e4m3fn), scale


def _ids(problem: Problem, device: str, seed: int) -> torch.Tensor:
    shape = problem.shape
    if device == "meta":
        return torch.empty(problem.tokens, shape.top_k, dtype=torch.int32, device=device)
    rng = np.random.default_rng(seed)
    drawn = problem.routing.sample(rng, problem.tokens, shape.experts, shape.top_k)
    local = torch.as_tensor(drawn, dtype=torch.int32)
    return local.where(local < problem.local_experts, -1).to(device)


def _normal(shape: tuple[int, ...], device: str, generator: Any) -> torch.Tensor:
    return torch.randn(shape, device=device, generator=generator)


def _generator(device: str, seed: int) -> Any:
    if device == "meta":
        return None
    return torch.Generator(device=device).manual_seed(seed)
