"""Numerical verification of megamoe, on a GPU or in Triton's interpreter.

Each unit runs on several routings: one drawn from the problem's, one token alone, every token on
one expert, and a ragged one with empty experts and foreign routes. Capacity is larger than the
live tokens. Outputs are filled with NaN before; afterwards live rows must be finite and right, and
every other byte must still be poison. So is whatever is read but not live: tokens past the live ones and
rows past the last route. Every buffer stands between guard zones (`_guard`), which must be untouched
afterwards, and inputs must be what they were. Launches run again under other schedules (`_scheduling`):
no sum here depends on the order of programs, so the bits must be the same.

Where the rounding bounds come from (relative, on a row's 2-norm):

* bf16 outputs: half a unit in the last of 8 bits, at most 2^-8.
* Accumulation: float32 sums of K products err by about sqrt(K) 2^-24, nothing beside that;
  Hopper's fp8 tensor cores align the products of one k-tile to about 13 bits, 2^-12 on random
  data. Activations add a few 2^-22, and amplify an accumulator's error by less than 4 where silu
  bends. 2^-11 covers all of it.
* e4m3 outputs (fp8_block128, mxfp8): an element errs by at most 2^-4, uniformly, so the mean
  square error is at most 2^-6 / 12 of the square: 2^-3 / sqrt(12) = 0.036 for long rows. Short
  rows spread around it: with the heavy tails of a gated product (kurtosis about 16) one standard
  deviation is 1.8 / sqrt(width), and the worst of 10^5 rows lies 4.4 of them out: a factor 1 + 8 /
  sqrt(width), never beyond 2^-4.
* The layer's reference does not round its intermediate, so that error comes on top; errors of
  independent elements keep their relative size through a random matrix. Rows that meet in the
  combine may cancel: under a factor 2 for random rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..search_spaces import GEMMS, LaunchConfig, Problem, Routing, Unit
from ._guard import POISON, Guards
from ._kernel import Flaw, Launch
from ._megamoe_formats import Quantised, dequantise_rows
from ._megamoe_inputs import Inputs, draw, make_inputs
from ._megamoe_plan import act_group, is_permuted, plan_layer, plan_unit
from ._megamoe_reference import layer_rows, live_rows, row_error, unit_rows
from ._scheduling import runners

# Weights of one matrix that verification may hold: enough for 128 experts of 1536 x 2048 in bf16.
_MATRIX_BYTES = 1 << 30
# Tokens of capacity beyond the live ones.
_SPARE_TOKENS = 3
_BF16 = 2.0**-8
_GEMM = 2.0**-11
_ROUTING = ("routes", "inverse", "offsets")
_TILES = (
    "gate_up_expert",
    "gate_up_row",
    "gate_up_tiles",
    "down_expert",
    "down_row",
    "down_tiles",
)
# What each kernel writes.
_WRITES = {
    "grouped_gemm": ("out", "out_scale"),
    "route": (*_ROUTING, *_TILES),
    "count_routes": ("table",),
    "place_experts": ("starts", "offsets", *_TILES),
    "place_routes": ("routes", "inverse"),
    "quantise_rows": ("out", "out_scale"),
    "combine": ("out",),
}
# Counters that a launch finds at zero because the one before left them so.
_KEEPS = ("tickets",)


def tolerance(problem: Problem, unit: Unit) -> float:
    """Return the largest row error that rounding explains (derived in the module's docstring)."""
    stored = _BF16
    if problem.activations.name != "bf16":
        spread = 1 + 8 / math.sqrt(problem.local_intermediate)
        stored = min(2.0**-4, spread * 2.0**-3 / math.sqrt(12))
    if unit is Unit.GATE_UP:
        return stored + _GEMM
    if unit is Unit.DOWN:
        return _BF16 + _GEMM
    return 2 * math.hypot(stored, _BF16) + _BF16 + _GEMM


def verify(problem: Problem, unit: Unit, config: LaunchConfig, *, device: str, seed: int) -> float:
    """Run one unit, or the layer, on every case; return the largest row error."""
    small = _affordable(problem)
    group = act_group(small, config)
    worst = 0.0
    for number, inputs in enumerate(_cases(small, device, seed)):
        expected = _expected(small, unit, group, device, seed, number)
        case = inputs.problem
        check = _layer_error if unit in (Unit.LAYER, Unit.GLUE) else _unit_error
        # The interpreter is slow, and its programs cannot meet: the fullest case shows the order.
        repeats = number == 0 or device != "cpu"
        error = check(case, unit, config, inputs, expected, repeats)
        if math.isinf(error):
            return error
        worst = max(worst, error)
    return worst


def _affordable(problem: Problem) -> Problem:
    """Return the problem with some dead tokens and no more experts than _MATRIX_BYTES hold."""
    shape = problem.shape
    one = max(problem.weights.bytes_of(*problem.gemm(unit)) for unit in GEMMS)
    ranks = problem.layout.expert_ranks
    local = max(1, min(problem.local_experts, _MATRIX_BYTES // one))
    if local < problem.local_experts:
        experts = max(local * ranks, shape.top_k)
        shape = replace(shape, experts=experts)
        # Recorded counts are of all experts.
        problem = replace(problem, shape=shape, routing=Routing(kind="uniform"))
    return replace(problem, capacity=problem.tokens + _SPARE_TOKENS)


@functools.lru_cache(maxsize=1)
def _cases(problem: Problem, device: str, seed: int) -> tuple[Inputs, ...]:
    first = make_inputs(problem, device=device, seed=seed)
    tokens, experts = problem.tokens, problem.local_experts
    top_k = problem.shape.top_k
    rng = np.random.default_rng(seed + 1)
    alone = problem.routing.sample(rng, 1, problem.shape.experts, top_k)
    alone[0, 0] = 0 if 0 not in alone else alone[0, 0]
    crowded = np.full((tokens, top_k), -1)
    crowded[:, rng.integers(top_k)] = experts - 1
    ragged = problem.routing.sample(rng, tokens, problem.shape.experts, top_k)
    ragged = np.where(rng.random(ragged.shape) < 0.4, -1, ragged)
    ragged = np.where(ragged % 3 == 1, -1, ragged)
    cases = (
        first,
        *(
            draw(problem, first.weights, device=device, seed=seed + 2 + i, topk_ids=ids)
            for i, ids in enumerate((alone, crowded, ragged))
        ),
    )
    for inputs in cases:
        live = int(inputs.live_tokens[0])
        inputs.x[live:] = math.nan
        inputs.topk_weights[live:] = math.nan
    return cases


@functools.lru_cache(maxsize=16)
def _expected(
    problem: Problem, unit: Unit, group: int, device: str, seed: int, number: int
) -> Tensor:
    inputs = _cases(problem, device, seed)[number]
    if unit is Unit.GATE_UP:
        rows = inputs.rows(permuted=True)
        return unit_rows(problem, unit, inputs, rows, problem.activations.scale_columns)
    if unit is Unit.DOWN:
        return unit_rows(problem, unit, inputs, inputs.intermediate(group), group)
    return layer_rows(problem, inputs)


def _unit_error(
    problem: Problem,
    unit: Unit,
    config: LaunchConfig,
    inputs: Inputs,
    expected: Tensor,
    repeats: bool,
) -> float:
    _poison_dead_rows(problem, unit, config, inputs)
    planned = plan_unit(problem, unit, config, inputs)
    live = live_rows(inputs.routed)
    group = act_group(problem, config)

    def judge(out: Quantised) -> float:
        scale = None if out.scale is None else out.scale[:live]
        if scale is not None and scale.dtype == torch.uint8 and bool((scale == POISON).any()):
            return Flaw("left a scale unwritten")
        return row_error(dequantise_rows(out.data[:live], scale, group), expected)

    return _judged((planned.launch,), planned.out, live, judge, repeats)


def _layer_error(
    problem: Problem,
    _: Unit,
    config: LaunchConfig,
    inputs: Inputs,
    expected: Tensor,
    repeats: bool,
) -> float:
    planned = plan_layer(problem, dict.fromkeys(GEMMS, config), inputs)
    live = expected.shape[0]

    def judge(out: Quantised) -> float:
        return row_error(out.data[:live], expected)

    return _judged(planned.launches, Quantised(data=planned.out), live, judge, repeats)


def _judged(
    launches: Sequence[Launch],
    out: Quantised,
    live: int,
    judge: Callable[[Quantised], float],
    repeats: bool,
) -> float:
    """Run launches guarded, under every schedule; return the error of their output.

    Args:
        launches: To run, in order.
        out: What the last of them writes.
        live: Rows of it that must be written; the others must not.
        judge: Returns the error of the live rows.
        repeats: Whether to run under more than the plain schedule.
    """
    guards = Guards(launches, writes=_WRITES, keeps=_KEEPS)
    guarded = Quantised(
        data=guards.inside(out.data),
        scale=None if out.scale is None else guards.inside(out.scale),
    )
    first, *others = runners(out.data.device.type)
    guards.poison()
    first(guards.launches)
    if not _is_poison(guarded, live):
        return Flaw("wrote a row that is not live")
    flaw = guards.flaw()
    error = judge(guarded)
    if flaw:
        return Flaw(flaw)
    bits = _bits(guarded)
    for run in others if repeats and math.isfinite(error) else ():
        guards.poison()
        run(guards.launches)
        if not torch.equal(bits, _bits(guarded)):
            return Flaw("gave other bits under another schedule: a race, or state left behind")
    flaw = guards.flaw()
    return Flaw(flaw) if flaw else error


def _bits(out: Quantised) -> Tensor:
    parts = [_bytes(t).flatten() for t in (out.data, out.scale) if t is not None]
    return torch.cat(parts)


def _poison_dead_rows(problem: Problem, unit: Unit, config: LaunchConfig, inputs: Inputs) -> None:
    """Make rows that no route leads to NaN: only a kernel that reads them can tell."""
    if unit is Unit.DOWN:
        rows, live = inputs.intermediate(act_group(problem, config)), live_rows(inputs.routed)
    elif is_permuted(config):
        rows, live = inputs.rows(permuted=True), live_rows(inputs.routed)
    else:
        rows, live = inputs.rows(permuted=False), int(inputs.live_tokens[0])
    for tensor in (rows.data, rows.scale):
        if tensor is not None:
            _bytes(tensor[live:]).fill_(POISON)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _is_poison(out: Quantised, first_row: int) -> bool:
    tensors: tuple[Any, ...] = (out.data, out.scale)
    return all(bool((_bytes(t[first_row:]) == POISON).all()) for t in tensors if t is not None)
