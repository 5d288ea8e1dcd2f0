"""Measured regimes as text for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rubin_tune.search_spaces import Unit
from rubin_tune.tuner.statistics import median_interval

from ._layer_run import UNITS, Measured, Result, bars


def lines(found: Measured, machine: Mapping[str, Any]) -> Iterator[str]:
    """Yield a regime's table."""
    case = found.case
    problem, drawn = case.problem, case.drawn()
    yield (
        f"{case.regime.name}: {problem.shape.model} {problem.shape.weights} x "
        f"{problem.shape.activations}, {problem.layout.name}, {problem.tokens} tokens, "
        f"{problem.routing.name}: {drawn['rows']:.1f} rows on {drawn['active_experts']:.1f} of "
        f"{problem.local_experts} experts"
    )
    for unit in UNITS:
        if found.of(unit):
            floor, by = case.floor_us(unit)
            yield (
                f"  {unit.value:8} floor {floor:8.1f} us ({by})"
                f"{'':10}us  95 % interval      TB/s TFLOP/s  roof  best peer  nodes"
            )
            yield from (_line(found, unit, result) for result in found.of(unit))
    for peer in found.recorded:
        yield (
            f"  recorded, not measured here: {peer.name}: gate_up {peer.gate_up_us:.1f} us, "
            f"down {peer.down_us:.1f} us"
        )
    for bar in bars(found, machine):
        yield (
            f"  {'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['got']:.3f}, wanted "
            f"{bar['wanted']:g} ({bar['evidence']})"
        )


def _line(found: Measured, unit: Unit, result: Result) -> str:
    name = f"    {result.contender:38.38}"
    if result.time_us is None:
        return f"{name} {'skipped: ' + result.skipped if result.skipped else result.wrong}"
    work = found.case.work(unit)
    floor, _ = found.case.floor_us(unit)
    low, high = median_interval(result.samples_us)
    time_us = result.time_us
    best = found.best_peer(unit)
    over = "" if best is None or best.time_us is None else f"{best.time_us / time_us:.2f}x"
    nodes = "" if result.nodes is None else str(result.nodes)
    return (
        f"{name} {time_us:8.1f}  [{low:8.1f}, {high:8.1f}] {work.min_bytes / time_us / 1e6:6.2f} "
        f"{work.flops / time_us / 1e6:7.1f} {floor / time_us:5.0%} {over:>10} {nodes:>6}"
    )


def as_json(found: Measured, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return a regime as plain JSON values."""
    case = found.case
    units = {}
    for unit in UNITS:
        if not found.of(unit):
            continue
        floor, by = case.floor_us(unit)
        work, best = case.work(unit), found.best_peer(unit)
        units[unit.value] = {
            "floor_us": floor,
            "floor_by": by,
            "flops": work.flops,
            "min_bytes": work.min_bytes,
            "weight_bytes": work.weight_bytes,
            "best_measured_peer": None if best is None else best.contender,
            "results": [_result(result, work, floor, best) for result in found.of(unit)],
        }
    problem = case.problem
    return {
        "regime": case.regime.name,
        "model": problem.shape.model,
        "weights": problem.shape.weights,
        "activations": problem.shape.activations,
        "layout": problem.layout.name,
        "tokens": problem.tokens,
        "routing": problem.routing.name,
        "steps": case.regime.rows,
        "local_experts": problem.local_experts,
        "drawn": case.drawn(),
        "units": units,
        "recorded_peers": [asdict(peer) for peer in found.recorded],
        "bars": bars(found, machine),
    }


def _result(result: Result, work: Any, floor: float, best: Result | None) -> dict[str, Any]:
    row = result.as_dict()
    time_us = result.time_us
    if time_us is not None:
        row["bytes_per_s"] = work.min_bytes / time_us * 1e6
        row["flops_per_s"] = work.flops / time_us * 1e6
        row["share_of_roof"] = floor / time_us
        if best is not None and best.time_us is not None:
            row["over_best_peer"] = best.time_us / time_us
    return row
