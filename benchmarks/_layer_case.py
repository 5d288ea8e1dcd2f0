"""One regime's tensors, its floors, and the float64 values that every contender is checked by."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from rubin_tune.errors import InvalidInput
from rubin_tune.kernels._kernel import Work
from rubin_tune.kernels._megamoe_formats import (
    Quantised,
    deinterleave_gate_up,
    dequantise_rows,
    quantise_rows,
)
from rubin_tune.kernels._megamoe_inputs import Inputs, x_group
from rubin_tune.kernels._megamoe_reference import activate, weight_of
from rubin_tune.kernels.megamoe import PROVIDES as MEGAMOE
from rubin_tune.search_spaces import Problem, Unit
from rubin_tune.topology import Gpu

from ._layer_regimes import Regime

# Tokens and rows that are recomputed in float64.
SAMPLE = 8
_MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Both matrices of all local experts in bf16 [experts, n, k], gate rows before up rows.

    Block-scaled weights are rounded to bf16 once: equal values as far as bf16 has them.
    """

    weights: dict[Unit, Tensor]
    biases: dict[Unit, Tensor | None]


@dataclass(slots=True, kw_only=True)
class Case:
    """A regime with its inputs; each of `inputs` has its own tokens and routing."""

    regime: Regime
    problem: Problem
    gpu: Gpu
    inputs: list[Inputs]
    dense_of: list[tuple[object, Dense]] = field(default_factory=list)

    def dense(self, inputs: Inputs) -> Dense:
        """Return the bf16 weights that equal these inputs' weights; made once."""
        for weights, found in self.dense_of:
            if weights is inputs.weights:
                return found
        made = _dense(self.problem, inputs)
        self.dense_of.append((inputs.weights, made))
        return made

    def adopt(self, other: Case | None) -> None:
        """Take over the bf16 weights of another case over the same weights; drop the rest."""
        own = [one.weights for one in self.inputs]
        kept = other.dense_of if other is not None else []
        self.dense_of = [pair for pair in kept if any(pair[0] is weights for weights in own)]

    def count(self, inputs: Inputs) -> int:
        """Return the rows on this rank, known before anything is captured (read once)."""
        found: int = inputs.once("count", lambda: int(inputs.routed.offsets[-1]))
        return found

    def work(self, unit: Unit) -> Work:
        """Return the mean work of the routings that were drawn.

        As kernels/megamoe.py counts it, with drawn rows and experts for expected ones.
        """
        parts = [_work(self.problem, unit, one, self.count(one)) for one in self.inputs]
        names = ("flops", "min_bytes", "weight_bytes")
        return Work(**{n: sum(getattr(p, n) for p in parts) / len(parts) for n in names})

    def floor_us(self, unit: Unit) -> tuple[float, str]:
        """Return the least time, and whether bytes or operations set it.

        Bytes at the bandwidth that a read-bound kernel was seen to reach (H200: 4.5 TB/s), operations
        at the tensor cores' published rate.
        """
        work = self.work(unit)
        bandwidth = self.gpu.fact("memory_read_bandwidth").number
        rate = self.gpu.peak_flops("bf16" if self.problem.activations.bits == 16 else "fp8")
        by_bytes, by_flops = work.min_bytes / bandwidth * 1e6, work.flops / rate * 1e6
        return max(by_bytes, by_flops), "bytes" if by_bytes >= by_flops else "flops"

    def drawn(self) -> dict[str, float]:
        """Return mean rows and active experts of the drawn routings."""
        rows = [self.count(one) for one in self.inputs]
        active = [active_experts(one) for one in self.inputs]
        return {"rows": sum(rows) / len(rows), "active_experts": sum(active) / len(active)}


def draw_inputs(
    problem: Problem, owners: list[Inputs], *, rows: str, rotation: int, seed: int
) -> list[Inputs]:
    """Return `rotation` draws over the owners' weights, of steps as a regime's `rows` says."""
    return [
        MEGAMOE.rotate(owners[i % len(owners)], problem, seed=found)
        for i, found in enumerate(_seeds(problem, rows, rotation, seed))
    ]


def _seeds(problem: Problem, rows: str, count: int, seed: int) -> list[int]:
    first = seed * 1000
    if rows == "any":
        return list(range(first, first + count))
    seeds = range(first, first + _MOST_SEEDS)
    found = list(islice((s for s in seeds if _has_rows(problem, s) == (rows == "some")), count))
    if len(found) < count:
        raise InvalidInput(f"only {len(found)} of {_MOST_SEEDS} steps have {rows!r} local rows")
    return found


def _has_rows(problem: Problem, seed: int) -> bool:
    rng = np.random.default_rng(seed)
    shape = problem.shape
    ids = problem.routing.sample(rng, problem.tokens, shape.experts, shape.top_k)
    return bool((ids < problem.local_experts).any())


def active_experts(inputs: Inputs) -> int:
    """Return how many local experts have a row."""
    found: int = inputs.once("active", lambda: int((inputs.routed.offsets.diff() > 0).sum()))
    return found


def _work(problem: Problem, unit: Unit, inputs: Inputs, rows: int) -> Work:
    if unit is Unit.LAYER:
        parts = [_work(problem, gemm, inputs, rows) for gemm in (Unit.GATE_UP, Unit.DOWN)]
        weights = sum(part.weight_bytes for part in parts)
        edges = 2 * 2 * min(problem.tokens, rows) * problem.shape.hidden
        flops = sum(part.flops for part in parts)
        return Work(flops=flops, min_bytes=weights + edges, weight_bytes=weights)
    n, k = problem.gemm(unit)
    weights = active_experts(inputs) * problem.weights.bytes_of(n, k)
    read, out = rows, 2.0 * n
    if unit is Unit.GATE_UP:
        read = min(problem.tokens, rows)
        out = float(problem.activations.bytes_of(1, problem.local_intermediate))
    moved = read * problem.activations.bytes_of(1, k) + rows * out
    return Work(flops=2.0 * rows * n * k, min_bytes=weights + moved, weight_bytes=weights)


def _dense(problem: Problem, inputs: Inputs) -> Dense:
    weights, biases = {}, {}
    for unit in (Unit.GATE_UP, Unit.DOWN):
        n, k = problem.gemm(unit)
        gated = unit is Unit.GATE_UP and problem.shape.activation.gated
        matrix = torch.empty(
            (problem.local_experts, n, k), dtype=torch.bfloat16, device=inputs.device
        )
        for expert in range(problem.local_experts):
            one = weight_of(problem, unit, inputs, expert).to(torch.bfloat16)[None]
            matrix[expert] = (deinterleave_gate_up(one) if gated else one)[0]
        weights[unit] = matrix
        bias = inputs.weights[unit].bias
        if bias is not None:
            bias = (deinterleave_gate_up(bias) if gated else bias).to(torch.bfloat16)
        biases[unit] = bias
    return Dense(weights=weights, biases=biases)


# What everyone is checked by


def sample_tokens(case: Case, inputs: Inputs) -> Tensor:
    """Return tokens to recompute: some with a local expert, else the first ones."""
    local = (inputs.topk_ids < case.problem.local_experts).any(dim=1).nonzero()[:, 0]
    if not len(local):
        local = torch.arange(case.problem.tokens, device=inputs.device)
    return _spread(local)


def sample_rows(case: Case, inputs: Inputs) -> Tensor:
    """Return sorted rows to recompute."""
    return _spread(torch.arange(case.count(inputs), device=inputs.device))


def _spread(places: Tensor) -> Tensor:
    step = max(1, math.ceil(len(places) / SAMPLE))
    return places[::step]


def expected_tokens(case: Case, inputs: Inputs, tokens: Tensor, *, quantised: bool) -> Tensor:
    """Return the layer's float64 output for some tokens.

    Args:
        case: The case.
        inputs: One of its draws.
        tokens: Which tokens.
        quantised: Whether x is rounded to the activation format first, as engines do.
    """
    problem = case.problem
    x = inputs.x[tokens]
    if quantised:
        x = _values(quantise_rows(x, problem.activations, x_group(problem)), x_group(problem))
    x = x.double()
    ids, gates = inputs.topk_ids[tokens], inputs.topk_weights[tokens].double()
    out = torch.zeros_like(x)
    for expert in sorted(set(ids.flatten().tolist())):
        if not 0 <= expert < problem.local_experts:
            continue
        place, slot = (ids == expert).nonzero(as_tuple=True)
        hot = activate(
            _product(case, Unit.GATE_UP, inputs, x[place], expert), problem.shape.activation
        )
        done = _product(case, Unit.DOWN, inputs, hot, expert)
        out.index_add_(0, place, done * gates[place, slot][:, None])
    return out * problem.shape.routed_scaling_factor


def expected_rows(
    case: Case,
    unit: Unit,
    inputs: Inputs,
    places: Tensor,
    rows: Quantised,
    group: int,
    *,
    fused: bool,
) -> Tensor:
    """Return float64 rows of one GEMM.

    Args:
        case: The case.
        unit: Which GEMM.
        inputs: One of the case's draws.
        places: Which sorted rows.
        rows: What the GEMM reads, in sorted order.
        group: Elements of them that share a scale.
        fused: Whether gate_up's bias and activation are part of it; else columns are gate, then up.
    """
    scale = None if rows.scale is None else rows.scale[places]
    # Bytes: not every device gathers fp8.
    data = rows.data.view(torch.uint8)[places].view(rows.data.dtype)
    values = _values(Quantised(data=data, scale=scale), group)
    experts = torch.searchsorted(inputs.routed.offsets.long(), places.contiguous(), right=True) - 1
    n, _ = case.problem.gemm(unit)
    out = torch.zeros((len(places), n), dtype=torch.float64, device=values.device)
    for expert in sorted(set(experts.tolist())):
        mine = experts == expert
        out[mine] = _product(case, unit, inputs, values[mine], expert, bias=fused)
    if unit is Unit.GATE_UP and fused:
        return activate(out, case.problem.shape.activation)
    if unit is Unit.GATE_UP and case.problem.shape.activation.gated:
        return torch.cat((out[:, 0::2], out[:, 1::2]), dim=1)
    return out


def _product(
    case: Case, unit: Unit, inputs: Inputs, values: Tensor, expert: int, *, bias: bool = True
) -> Tensor:
    out = values @ weight_of(case.problem, unit, inputs, expert).T
    added = inputs.weights[unit].bias
    return out if added is None or not bias else out + added[expert].double()


def _values(rows: Quantised, group: int) -> Tensor:
    return dequantise_rows(rows.data, rows.scale, group)
