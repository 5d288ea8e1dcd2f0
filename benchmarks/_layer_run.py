"""Measuring one regime: check every contender, then time those that are right, interleaved."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from rubin_tune.kernels._megamoe_reference import row_error
from rubin_tune.search_spaces import GEMMS, Unit
from rubin_tune.tuner.statistics import median_interval

from ._layer_case import Case, expected_rows, expected_tokens, sample_rows, sample_tokens
from ._layer_contenders import Contender, Step
from ._layer_machine import Clock
from ._layer_regimes import Recorded, recorded_peers

UNITS = (Unit.LAYER, *GEMMS)


@dataclass(slots=True, kw_only=True)
class Result:
    """One contender on one unit: checked, timed, or why not.

    Attributes:
        contender: Its name.
        kind: "ours", "peer" or "reference".
        unit: Which part of the layer.
        skipped: In words why it did not take part.
        wrong: In words what is wrong with its output; it is not timed then.
        error: Largest row error on sampled rows against float64.
        allowed: What rounding explains.
        apart: Largest row difference from our first contender's output.
        nodes: Nodes in a CUDA graph.
        samples_us: Each the mean over one graph of rotated draws.
    """

    contender: str
    kind: str
    unit: Unit
    skipped: str = ""
    wrong: str = ""
    error: float | None = None
    allowed: float | None = None
    apart: float | None = None
    nodes: int | None = None
    samples_us: list[float] = field(default_factory=list)

    @property
    def time_us(self) -> float | None:
        """Median of the samples."""
        return median(self.samples_us) if self.samples_us else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = {name: getattr(self, name) for name in self.__slots__}
        interval = median_interval(self.samples_us) if self.samples_us else None
        return {**found, "unit": self.unit.value, "time_us": self.time_us, "interval_us": interval}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One regime, measured."""

    case: Case
    results: tuple[Result, ...]
    recorded: tuple[Recorded, ...]

    def of(self, unit: Unit) -> list[Result]:
        """Return one unit's results."""
        return [r for r in self.results if r.unit is unit]

    def time(self, contender: str, unit: Unit) -> float | None:
        """Return a contender's time."""
        return next((r.time_us for r in self.of(unit) if r.contender == contender), None)

    def best_peer(self, unit: Unit) -> Result | None:
        """Return the fastest measured peer."""
        timed = [r for r in self.of(unit) if r.kind == "peer" and r.time_us is not None]
        return min(timed, key=lambda r: r.time_us or 0.0, default=None)


def measure(case: Case, contenders: Sequence[Contender], clock: Clock) -> Measured:
    """Check and time every contender on the layer and on both GEMMs."""
    results: list[Result] = []
    # A step without rows on this rank has no GEMM to time.
    empty = not any(case.count(one) for one in case.inputs)
    for unit in UNITS if not empty else (Unit.LAYER,):
        results += _unit(case, unit, contenders, clock)
    return Measured(
        case=case,
        results=tuple(results),
        recorded=recorded_peers(case.problem) if case.regime.rows == "any" else (),
    )


def _unit(case: Case, unit: Unit, contenders: Sequence[Contender], clock: Clock) -> list[Result]:
    results = [Result(contender=c.name, kind=c.kind, unit=unit) for c in contenders]
    for contender, result in zip(contenders, results, strict=True):
        result.skipped = contender.refuses(case, unit)
    _check(case, unit, contenders, results)
    ready: list[tuple[Result, Any]] = []
    for contender, result in zip(contenders, results, strict=True):
        if result.skipped or result.wrong:
            continue
        steps = _tried(
            result, lambda c=contender: [c.step(case, unit, one) for one in case.inputs]
        )
        replay = _tried(result, lambda s=steps: clock.capture([one.launches for one in s]))
        if steps is None or replay is None:
            continue
        launches = steps[0].launches
        if unit is Unit.LAYER:
            result.nodes = _tried(result, lambda found=launches: clock.nodes(found))
        if result.nodes is None and contender.kind == "ours":
            result.nodes = len(launches)
        ready.append((result, replay))
    for (result, _), samples in zip(ready, clock.rounds([r for _, r in ready]), strict=True):
        result.samples_us = samples
    return results


def _tried(result: Result, work: Any) -> Any:
    """Return what `work` returns; a failure is said in the result, where none was said before."""
    if result.wrong:
        return None
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever a peer's package raises is a row of the table
        traceback.print_exc(file=sys.stderr)
        words = (str(error).strip().splitlines() or ["no message"])[0]
        result.wrong = f"failed: {type(error).__name__}: {words}"[:300]
        return None


# Checking


def _check(
    case: Case, unit: Unit, contenders: Sequence[Contender], results: Sequence[Result]
) -> None:
    """Run each once on the first draw, against float64 and against ours, on sampled rows."""
    inputs = case.inputs[0]
    first: tuple[Tensor, float, Tensor] | None = None
    expectations: dict[bool, Tensor] = {}
    places = sample_tokens(case, inputs) if unit is Unit.LAYER else sample_rows(case, inputs)
    if unit is Unit.LAYER:
        expectations = {
            quantised: expected_tokens(case, inputs, places, quantised=quantised)
            for quantised in (True, False)
        }
    for contender, result in zip(contenders, results, strict=True):
        if result.skipped:
            continue
        step = _tried(result, lambda c=contender: _ran(c.step(case, unit, inputs)))
        if step is None:
            continue
        if unit is Unit.LAYER:
            expected, found = expectations[contender.quantises], step.out()[places]
        elif step.rows is None:
            continue  # a yardstick: it computes something else
        else:
            rows, group = step.rows
            expected = expected_rows(case, unit, inputs, places, rows, group, fused=step.fused)
            found = step.out()[places if step.places is None else step.places[places]]
        found = found.double()
        result.error, result.allowed = row_error(found, expected), step.allowed
        if not result.error <= result.allowed:
            result.wrong = (
                f"wrong: row error {result.error:.3g}, rounding explains {step.allowed:.3g}"
            )
        elif unit is Unit.LAYER and first is None:
            first = (found, step.allowed, expected)
        elif unit is Unit.LAYER and first is not None:
            _compare(result, found, expected, step.allowed, first)


def _ran(step: Step) -> Step:
    step.run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return step


def _compare(
    result: Result,
    found: Tensor,
    expected: Tensor,
    allowed: float,
    first: tuple[Tensor, float, Tensor],
) -> None:
    """Compare with the first contender's output; the two references may differ by x's rounding."""
    other, other_allowed, other_expected = first
    result.apart = row_error(found, other)
    between = row_error(expected, other_expected)
    # Errors are relative to rows of float64, the distance to a row that itself errs.
    most = (allowed + other_allowed + between) * (1 + other_allowed + between)
    if not result.apart <= most:
        result.wrong = f"wrong: {result.apart:.3g} from ours, rounding explains {most:.3g}"


# Bars of the issue


def bars(found: Measured, machine: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what this regime is held to: bar, wanted, got, met; only what was measured or recorded."""
    case = found.case
    shape, decode = case.problem.shape, case.regime.is_decode
    layer = found.time("ours tuned", Unit.LAYER)
    gemms = [found.time("ours tuned", unit) for unit in GEMMS]
    rows: list[dict[str, Any]] = []
    if all(t is not None for t in gemms) and case.regime.rows == "any":
        rows += _gemm_bars(found, [t or 0.0 for t in gemms])
    if layer is None:
        return rows
    grouped = found.time("torch._grouped_mm, bf16", Unit.LAYER)
    if grouped is not None and shape.weights == "bf16":
        wanted = 1.3 if case.problem.tokens <= 1024 else 1.0
        rows.append(_bar("layer over torch._grouped_mm", wanted, grouped / layer, "measured"))
    empty = machine.get("empty_node_us")
    nodes = next((r.nodes for r in found.of(Unit.LAYER) if r.contender == "ours tuned"), None)
    if decode and case.regime.rows == "any" and shape.weights != "mxfp4" and empty and nodes:
        bandwidth = case.gpu.fact("memory_read_bandwidth").number
        weights_us = case.work(Unit.LAYER).weight_bytes / bandwidth * 1e6
        most = weights_us / 0.9 + empty * nodes
        rows.append(
            _bar(
                f"decode layer, at most {most:.1f} us: limit over time",
                1.0,
                most / layer,
                "measured",
            )
        )
    vllm = found.time("vLLM fused_moe", Unit.LAYER)
    if vllm is not None and case.regime.rows == "some":
        rows.append(_bar("small batch, layer over vLLM's", 1.3, vllm / layer, "measured"))
    return rows


def _gemm_bars(found: Measured, ours: list[float]) -> list[dict[str, Any]]:
    case, both = found.case, sum(ours)
    shape = case.problem.shape
    rows = []
    if found.recorded:
        peer = min(found.recorded, key=lambda one: one.both_us)
        name = f"GEMM1 + GEMM2 over {peer.name}"
        rows.append(_bar(name, 0.97, peer.both_us / both, "recorded"))
    measured = _best_sum(found)
    if measured is not None:
        name, time_us = measured
        rows.append(_bar(f"GEMM1 + GEMM2 over {name}", 0.97, time_us / both, "measured"))
    if case.problem.tokens >= 8192:
        rows += _prefill_bars(found, ours)
    if shape.weights == "mxfp4" and case.regime.is_decode:
        bandwidth = case.gpu.fact("memory_read_bandwidth").number
        moved = sum(case.work(unit).weight_bytes for unit in GEMMS)
        rows.append(
            _bar(
                "4.25 bits a weight over both GEMMs, share of 4.5 TB/s",
                0.5,
                moved / both * 1e6 / bandwidth,
                "measured",
            )
        )
    return rows


def _prefill_bars(found: Measured, ours: list[float]) -> list[dict[str, Any]]:
    bf16 = found.case.problem.shape.weights == "bf16"
    rival, wanted = ("vLLM", 1.15) if bf16 else ("DeepGEMM", 0.95)
    rows = []
    for place, unit in enumerate(GEMMS):
        for peer in found.recorded:
            if peer.name.startswith(rival):
                theirs = (peer.gate_up_us, peer.down_us)[place]
                name = f"prefill {unit.value} over {peer.name}"
                rows.append(_bar(name, wanted, theirs / ours[place], "recorded"))
        dense = found.time("dense matmul of the same FLOPs, bf16", unit)
        if bf16 and dense is not None:
            rows.append(
                _bar(
                    f"prefill {unit.value}, goal: share of dense",
                    0.85,
                    dense / ours[place],
                    "measured",
                )
            )
    return rows


def _best_sum(found: Measured) -> tuple[str, float] | None:
    """Return the measured peer whose two bare GEMMs are fastest together, and their time."""
    sums = {}
    for result in found.of(Unit.GATE_UP):
        down = found.time(result.contender, Unit.DOWN)
        if result.kind == "peer" and result.time_us is not None and down is not None:
            sums[result.contender] = result.time_us + down
    return min(sums.items(), key=lambda item: item[1], default=None)


def _bar(name: str, wanted: float, got: float, evidence: str) -> dict[str, Any]:
    return {"bar": name, "wanted": wanted, "got": got, "met": got >= wanted, "evidence": evidence}
