"""Inputs of megamoe: random weights, tokens and a routing, and what glue makes of them.

Units are launched on rows that are already sorted and quantised. `Inputs` makes those with torch,
in the layouts the kernels use, when a launch first asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..search_spaces import GEMMS, Problem, Unit
from ._megamoe_formats import (
    FP8_BLOCK,
    MX_GROUP,
    Quantised,
    interleave_gate_up,
    quantise_rows,
    quantise_weight,
    row_dtypes,
    weight_dtypes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """One of the two weight matrices of all local experts.

    Attributes:
        data: [experts, n, k], mxfp4 [experts, n, k/2]; gated w13 interleaved.
        scale: As `grouped_gemm` describes it.
        bias: float32 [experts, n], interleaved like data, or None.
    """

    data: Tensor
    scale: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Routes sorted by local expert.

    Attributes:
        routes: int32 [capacity * top_k], route of each row.
        inverse: int32 [capacity, top_k], row of each route, -1 = not here.
        offsets: int32 [experts + 1].
    """

    routes: Tensor
    inverse: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Row tiles of one GEMM."""

    tile_expert: Tensor
    tile_row: Tensor
    live_tiles: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything a launch reads; derived tensors are made once and kept in `made`."""

    problem: Problem
    weights: dict[Unit, Matrix]
    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    live_tokens: Tensor
    seed: int
    made: dict[object, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return self.x.device

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """Return what `make` returned at the first call with this key."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    @property
    def routed(self) -> Routed:
        """The routes, sorted."""
        found: Routed = self.once("routed", lambda: _sorted(self))
        return found

    def schedule(self, block_m: int) -> Schedule:
        """Return the row tiles for a block_m."""
        found: Schedule = self.once(("schedule", block_m), lambda: _scheduled(self, block_m))
        return found

    def rows(self, permuted: bool) -> Quantised:
        """Return x in the activation format, in row order or in token order."""
        found: Quantised = self.once(("rows", permuted), lambda: _rows(self, permuted))
        return found

    def intermediate(self, group: int) -> Quantised:
        """Return random rows [rows, intermediate] for the down GEMM, with this scale group."""
        found: Quantised = self.once(
            ("intermediate", group), lambda: _random_intermediate(self, group)
        )
        return found


def row_capacity(problem: Problem) -> int:
    """Return how many rows a step of full capacity can have on this rank."""
    return problem.capacity * problem.shape.top_k


def tile_capacity(problem: Problem, block_m: int) -> int:
    """Return how many row tiles a full step can have: a busy expert has one partial at most."""
    rows = row_capacity(problem)
    busy = min(rows, problem.local_experts)
    return busy + (rows - busy) // block_m


def x_group(problem: Problem) -> int:
    """Return how many elements of x share a scale (0 = none)."""
    return problem.activations.scale_columns


def make_inputs(problem: Problem, *, device: str, seed: int) -> Inputs:
    """Return random weights, tokens and a routing drawn from the problem's distribution."""
    weights = {unit: _random_matrix(problem, unit, device, seed) for unit in GEMMS}
    return draw(problem, weights, device=device, seed=seed)


def draw(
    problem: Problem,
    weights: dict[Unit, Matrix],
    *,
    device: str,
    seed: int,
    topk_ids: np.ndarray[Any, Any] | None = None,
) -> Inputs:
    """Return inputs over given weights; `topk_ids` [tokens, top_k] in place of a drawn routing."""
    shape = problem.shape
    capacity = problem.capacity
    if device == "meta":
        ids = torch.empty((capacity, shape.top_k), dtype=torch.int32, device=device)
        x = torch.empty((capacity, shape.hidden), dtype=torch.bfloat16, device=device)
        live = torch.empty(1, dtype=torch.int32, device=device)
        gates = torch.empty((capacity, shape.top_k), device=device)
    else:
        if topk_ids is None:
            rng = np.random.default_rng(seed)
            topk_ids = problem.routing.sample(rng, problem.tokens, shape.experts, shape.top_k)
        # Tokens past the live ones are routed too: a kernel that reads them shows.
        padded = np.zeros((capacity, shape.top_k), dtype=np.int32)
        padded[: len(topk_ids)] = topk_ids
        ids = torch.from_numpy(padded).to(device)
        generator = torch.Generator(device=device).manual_seed(seed)
        x = _rows_of_uneven_size((capacity, shape.hidden), x_group(problem), generator, device)
        logits = torch.randn((capacity, shape.top_k), generator=generator, device=device)
        gates = torch.softmax(logits, dim=1)
        live = torch.full((1,), len(topk_ids), dtype=torch.int32, device=device)
    return Inputs(
        problem=problem,
        weights=weights,
        x=x,
        topk_ids=ids,
        topk_weights=gates,
        live_tokens=live,
        seed=seed,
    )


# Numbers of one size everywhere would hide a kernel that takes a neighbour's scale, or whose clamp is
# missing: scales of random blocks of one size differ by a few per cent.
_SIZES = (0.5, 0.75, 1.0, 1.5)
_ROW_SIZES = 5


def _uneven(columns: int, granule: int, generator: torch.Generator, device: str) -> Tensor:
    """Return a random size for each granule of columns: float32 [columns]."""
    sizes = torch.tensor(_SIZES, device=device)
    drawn = torch.randint(
        len(_SIZES), (-(-columns // granule),), generator=generator, device=device
    )
    return sizes[drawn].repeat_interleave(granule)[:columns]


def _rows_of_uneven_size(
    size: tuple[int, int], group: int, generator: torch.Generator, device: str
) -> Tensor:
    """Return bf16 rows whose sizes go from 1/2 to 8, and whose groups differ too."""
    rows, columns = size
    values = torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)
    exponents = torch.arange(rows, device=device) % _ROW_SIZES - 1
    factors = torch.exp2(exponents.float())[:, None] * _uneven(
        columns, group or MX_GROUP, generator, device
    )
    return (values * factors).to(torch.bfloat16)


def _random_matrix(problem: Problem, unit: Unit, device: str, seed: int) -> Matrix:
    """Make one expert after the other: float32 copies of all would not fit."""
    n, k = problem.gemm(unit)
    form = problem.weights
    gated = unit is Unit.GATE_UP and problem.shape.activation.gated
    matrix = _empty_matrix(problem, unit, device)
    if device == "meta":
        return matrix
    generator = torch.Generator(device=device).manual_seed(seed * 2 + (unit is Unit.DOWN))
    granule = MX_GROUP if form.name == "mxfp4" else FP8_BLOCK
    for expert in range(problem.local_experts):
        weight = torch.randn((n, k), generator=generator, device=device) / math.sqrt(k)
        weight *= _uneven(k, granule, generator, device)
        for half, part in enumerate(weight.chunk(2) if gated else (weight,)):
            # Neighbours differ, and gate differs from up, but their product has one size.
            blocks = torch.arange(part.shape[0], device=device) // FP8_BLOCK + half
            stored = quantise_weight(part * torch.where(blocks % 2 == 1, 1.5, 1.0)[:, None], form)
            place = slice(half, None, 2) if gated else slice(None)
            matrix.data[expert, place] = stored.data
            if stored.scale is not None and matrix.scale is not None:
                scales = matrix.scale[expert]
                if form.name == "mxfp4":
                    scales[place] = stored.scale
                else:
                    (scales[half] if gated else scales).copy_(stored.scale)
    if matrix.bias is not None:
        plain = torch.randn(matrix.bias.shape, generator=generator, device=device) / 4
        matrix.bias.copy_(interleave_gate_up(plain) if gated else plain)
    return matrix


def _empty_matrix(problem: Problem, unit: Unit, device: str) -> Matrix:
    n, k = problem.gemm(unit)
    experts = problem.local_experts
    name = problem.weights.name
    dtype, scale_dtype = weight_dtypes(problem.weights)
    scale = None
    if name == "mxfp4":
        scale = torch.empty((experts, n, k // MX_GROUP), dtype=scale_dtype, device=device)
    elif scale_dtype is not None:
        gated = unit is Unit.GATE_UP and problem.shape.activation.gated
        blocks = (2, -(-n // 2 // FP8_BLOCK)) if gated else (-(-n // FP8_BLOCK),)
        size = (experts, *blocks, -(-k // FP8_BLOCK))
        scale = torch.empty(size, dtype=scale_dtype, device=device)
    stored_k = k // 2 if name == "mxfp4" else k
    data = torch.empty((experts, n, stored_k), dtype=dtype, device=device)
    bias = torch.empty((experts, n), device=device) if problem.shape.biases else None
    return Matrix(data=data, scale=scale, bias=bias)


def _sorted(inputs: Inputs) -> Routed:
    problem = inputs.problem
    experts = problem.local_experts
    rows = row_capacity(problem)
    if inputs.device.type == "meta":
        return empty_routed(problem, "meta")
    ids = inputs.topk_ids.flatten().long()
    place = torch.arange(rows, device=inputs.device)
    live = place < inputs.live_tokens.long() * problem.shape.top_k
    key = torch.where(live & (ids >= 0) & (ids < experts), ids, experts)
    key, routes = torch.sort(key, stable=True)
    edges = torch.arange(experts + 1, device=inputs.device)
    offsets = torch.searchsorted(key, edges)
    inverse = torch.full_like(routes, -1)
    inverse[routes] = torch.where(key < experts, place, -1)
    return Routed(
        routes=routes.int(),
        inverse=inverse.int().reshape(inputs.topk_ids.shape),
        offsets=offsets.int(),
    )


def empty_routed(problem: Problem, device: str) -> Routed:
    """Return unfilled buffers for the sorted routes of a full step."""

    def integers(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    return Routed(
        routes=integers(row_capacity(problem)),
        inverse=integers(problem.capacity, problem.shape.top_k),
        offsets=integers(problem.local_experts + 1),
    )


def empty_schedule(problem: Problem, block_m: int, device: str) -> Schedule:
    """Return unfilled buffers for the row tiles of a full step."""
    tiles = tile_capacity(problem, block_m)
    return Schedule(
        tile_expert=torch.empty(tiles, dtype=torch.int32, device=device),
        tile_row=torch.empty(tiles, dtype=torch.int32, device=device),
        live_tiles=torch.empty(1, dtype=torch.int32, device=device),
    )


def _scheduled(inputs: Inputs, block_m: int) -> Schedule:
    problem = inputs.problem
    if inputs.device.type == "meta":
        return empty_schedule(problem, block_m, "meta")
    offsets = inputs.routed.offsets.long()
    tiles = (offsets.diff() + block_m - 1) // block_m
    ends = torch.cumsum(tiles, 0)
    index = torch.arange(tile_capacity(problem, block_m), device=inputs.device)
    expert = torch.searchsorted(ends, index, right=True).clamp(max=problem.local_experts - 1)
    row = offsets[expert] + (index - (ends - tiles)[expert]) * block_m
    return Schedule(
        tile_expert=expert.int(), tile_row=row.int(), live_tiles=ends[-1:].int().contiguous()
    )


def empty_rows(problem: Problem, rows: int, width: int, group: int, device: str) -> Quantised:
    """Return unfilled rows in the activation format."""
    dtype, scale_dtype = row_dtypes(problem.activations)
    scale = None
    if scale_dtype is not None:
        scale = torch.empty((rows, -(-width // group)), dtype=scale_dtype, device=device)
    return Quantised(data=torch.empty((rows, width), dtype=dtype, device=device), scale=scale)


def _rows(inputs: Inputs, permuted: bool) -> Quantised:
    problem = inputs.problem
    group = x_group(problem)
    count = row_capacity(problem) if permuted else problem.capacity
    if inputs.device.type == "meta":
        return empty_rows(problem, count, problem.shape.hidden, group, "meta")
    x = inputs.x
    if permuted:
        x = x[inputs.routed.routes.long() // problem.shape.top_k]
    return quantise_rows(x, problem.activations, group)


def _random_intermediate(inputs: Inputs, group: int) -> Quantised:
    problem = inputs.problem
    rows, width = row_capacity(problem), problem.local_intermediate
    if inputs.device.type == "meta":
        return empty_rows(problem, rows, width, group, "meta")
    generator = torch.Generator(device=inputs.device).manual_seed(inputs.seed + 1)
    values = _rows_of_uneven_size((rows, width), group, generator, str(inputs.device))
    return quantise_rows(values, problem.activations, group)
