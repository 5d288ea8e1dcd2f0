"""Recorded times of collectives beside what the topology says.

Run `python -m benchmarks.collectives [--json]`. The recorded figures and their sources stand in
collectives.toml. With DeepEP's table (--deepep FILE, by default that of shared/data where it is),
all its rows are compared too, and `--fit` prints the constants that topology/racks/*.toml hold:
least squares of the logarithm over every shape but the one of collectives.toml.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from rubin_tune.topology import (
    Exchange,
    ExchangeFit,
    Stage,
    Topology,
    bf16_row_bytes,
    fp8_row_bytes,
    load_gpu,
    load_rack,
)

_HERE = Path(__file__).resolve().parent
_TABLE = _HERE.parents[1] / "shared/data/measured/aic_deepep_ll.csv.gz"
# The table's systems, the racks that describe them, and how many of their GPUs took part.
_SYSTEMS = {
    "h200_sxm": ("h200_dgx", 8),
    "b200_sxm": ("b200_dgx", 8),
    "gb200": ("gb200_nvl72", 4),
}
_HELD_OUT = (7168, 8, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One recorded figure and ours.

    Attributes:
        what: What was measured, and where.
        unit: "us", or "share" of the line rate.
        recorded: The recorded figure.
        ours: What the topology says.
        source: Where the recorded one stands.
    """

    what: str
    unit: str
    recorded: float
    ours: float
    source: str

    @property
    def error(self) -> float:
        """Ours over the recorded figure, less one."""
        return self.ours / self.recorded - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of DeepEP's table: one shape and token count on one system."""

    system: str
    hidden: int
    tokens: int
    top_k: int
    experts: int
    dispatch_us: float
    combine_us: float

    @property
    def held_out(self) -> bool:
        """Whether its shape is left out of the fit."""
        return (self.hidden, self.top_k, self.experts) == _HELD_OUT

    def us(self, stage: Stage) -> float:
        """Return the recorded time of a stage."""
        return self.dispatch_us if stage == Stage.DISPATCH else self.combine_us

    def exchange(self) -> Exchange:
        """Return what was sent."""
        return _exchange(
            self.tokens, self.hidden, self.top_k, self.experts, _SYSTEMS[self.system][1]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Errors over all rows of one system and stage."""

    system: str
    stage: Stage
    rows: int
    median: float
    p90: float
    worst: float
    held_out_worst: float


def figures() -> list[Figure]:
    """Return every figure of collectives.toml beside ours."""
    table = tomllib.loads((_HERE / "collectives.toml").read_text(encoding="utf-8"))
    return [
        *_low_latency(table["deepep_ll"]),
        *_normal(table["deepep_normal"]),
        *_all_to_all(table["nccl_all_to_all"]),
        *_delivered(table["nccl_delivered"]),
    ]


def read_table(path: Path) -> list[Row]:
    """Return the rows of DeepEP's table."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [
            Row(
                system=cells["system"],
                hidden=int(cells["hidden_size"]),
                tokens=int(cells["num_token"]),
                top_k=int(cells["num_topk"]),
                experts=int(cells["num_experts"]),
                dispatch_us=float(cells["dispatch_avg_t_us"]),
                combine_us=float(cells["combine_avg_t_us"]),
            )
            for cells in csv.DictReader(file)
        ]


def spreads(rows: Sequence[Row]) -> list[Spread]:
    """Return how far the described constants are from every row."""
    found = []
    for system, (rack, _) in _SYSTEMS.items():
        topology = Topology.of_rack(load_rack(rack))
        own = [row for row in rows if row.system == system]
        for stage in Stage:
            ours = np.array([_seconds(topology, stage, row.exchange()) * 1e6 for row in own])
            errors = np.abs(ours / np.array([row.us(stage) for row in own]) - 1)
            held = errors[[row.held_out for row in own]]
            found.append(
                Spread(
                    system=system,
                    stage=stage,
                    rows=len(own),
                    median=float(np.median(errors)),
                    p90=float(np.quantile(errors, 0.9)),
                    worst=float(errors.max()),
                    held_out_worst=float(held.max()),
                )
            )
    return found


def fit(rows: Sequence[Row], system: str, stage: Stage) -> ExchangeFit:
    """Return the low-latency constants of one system, the held-out shape never looked at."""
    rack = load_rack(_SYSTEMS[system][0])
    sms = load_gpu(rack.gpu).sms
    (base,) = (f for f in rack.exchanges_of(stage) if f.algorithm == "deepep_ll")
    own = [row for row in rows if row.system == system and not row.held_out]
    times = np.array([row.us(stage) for row in own])
    exchanges = [row.exchange() for row in own]

    def with_constants(values: NDArray[np.float64]) -> ExchangeFit:
        latency, expert, link, block = (float(v) for v in values)
        slow = {"block_token_us": block} if stage == Stage.DISPATCH else {}
        slow |= {"block_bytes_per_s": block * 1e9} if stage == Stage.COMBINE else {}
        return replace(base, base_us=latency, per_expert_us=expert, bytes_per_s=link * 1e9, **slow)

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        trial = with_constants(values)
        ours = np.array([trial.seconds(e, sms) for e in exchanges]) * 1e6
        return np.asarray(np.log(np.maximum(ours, 1e-3) / times))

    start = (10.0, 0.005, 300.0, 2.5 if stage == Stage.DISPATCH else 25.0)
    return with_constants(least_squares(residuals, start, x_scale=start).x)


def _exchange(tokens: int, hidden: int, top_k: int, experts: int, ranks: int) -> Exchange:
    return Exchange(
        tokens_per_rank=tokens,
        top_k=top_k,
        experts=experts,
        ranks=ranks,
        dispatch_row_bytes=fp8_row_bytes(hidden),
        combine_row_bytes=bf16_row_bytes(hidden),
    )


def _seconds(
    topology: Topology,
    stage: Stage,
    exchange: Exchange,
    algorithm: str = "deepep_ll",
    blocks: int | None = None,
) -> float:
    ask = topology.dispatch if stage == Stage.DISPATCH else topology.combine
    return ask(exchange, algorithm=algorithm, blocks=blocks)


def _low_latency(table: dict[str, Any]) -> Iterator[Figure]:
    for row in table["rows"]:
        topology = Topology.of_rack(load_rack(row["rack"]))
        for stage in Stage:
            for tokens, recorded in zip(table["tokens"], row[f"{stage}_us"], strict=True):
                exchange = _exchange(
                    tokens, table["hidden"], table["top_k"], table["experts"], row["ranks"]
                )
                yield Figure(
                    what=f"DeepEP LL {stage}, {row['rack']}, {tokens} tokens a rank",
                    unit="us",
                    recorded=recorded,
                    ours=_seconds(topology, stage, exchange) * 1e6,
                    source=table["source"],
                )


def _normal(table: dict[str, Any]) -> Iterator[Figure]:
    topology = Topology.of_rack(load_rack(table["rack"]))
    exchange = _exchange(
        table["tokens"], table["hidden"], table["top_k"], table["experts"], table["ranks"]
    )
    for stage in Stage:
        for blocks, recorded in zip(table["blocks"], table[f"{stage}_us"], strict=True):
            yield Figure(
                what=f"DeepEP normal {stage}, {table['rack']}, {blocks} SMs",
                unit="us",
                recorded=recorded,
                ours=_seconds(topology, stage, exchange, "deepep_normal", blocks) * 1e6,
                source=table["source"],
            )


def _all_to_all(table: dict[str, Any]) -> Iterator[Figure]:
    topology = Topology.of_rack(load_rack(table["rack"]))
    ranks = table["ranks"]
    for mib, recorded in zip(table["buffer_mib"], table["us"], strict=True):
        crossing = mib * 2**20 * (ranks - 1) / ranks
        yield Figure(
            what=f"NCCL all-to-all, {ranks} GPUs of {table['rack']}, {mib} MiB",
            unit="us",
            recorded=recorded,
            ours=topology.all_to_all(crossing, ranks) * 1e6,
            source=table["source"],
        )


def _delivered(table: dict[str, Any]) -> Iterator[Figure]:
    ranks, size = table["ranks"], table["message_gib"] * 2**30
    for rack, share in zip(table["racks"], table["share"], strict=True):
        topology = Topology.of_rack(load_rack(rack))
        moved = size * (ranks - 1) / ranks
        rate = moved / topology.all_gather(size, ranks)
        yield Figure(
            what=f"NCCL all-gather delivered, {rack}, {table['message_gib']} GiB",
            unit="share",
            recorded=share,
            ours=rate / topology.gpu.nvlink_bytes_per_s,
            source=table["source"],
        )


def _print(found: Sequence[Figure], over: Sequence[Spread]) -> None:
    print(f"{'figure':58s} {'recorded':>9s} {'ours':>9s} {'error':>7s}")
    for figure in found:
        digits = 2 if figure.unit == "share" else 1
        print(
            f"{figure.what:58s} {figure.recorded:9.{digits}f} {figure.ours:9.{digits}f} "
            f"{figure.error:+7.1%}"
        )
    if over:
        print("\nDeepEP LL, all shapes          rows  median    p90  worst  held-out worst")
    for one in over:
        print(
            f"{one.system:12s} {one.stage:15s} {one.rows:6d} {one.median:7.1%} {one.p90:6.1%} "
            f"{one.worst:6.1%} {one.held_out_worst:15.1%}"
        )


def _print_fits(rows: Sequence[Row]) -> None:
    for system in _SYSTEMS:
        for stage in Stage:
            found = fit(rows, system, stage)
            print(f"[exchanges.{stage}.deepep_ll]  # {system}")
            print(f"base_us = {found.base_us:.2f}")
            print(f"per_expert_us = {found.per_expert_us:.4f}")
            print(f"bandwidth_gb_per_s = {found.bytes_per_s / 1e9:.0f}")
            if stage == Stage.DISPATCH:
                print(f"block_token_us = {found.block_token_us:.2f}\n")
            else:
                print(f"block_gb_per_s = {found.block_bytes_per_s / 1e9:.1f}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--fit", action="store_true", help="print the fitted constants instead")
    parser.add_argument("--deepep", type=Path, metavar="FILE", help="DeepEP's table, .csv.gz")
    options = parser.parse_args(arguments)
    table: Path = options.deepep or _TABLE
    if not table.is_file() and (options.fit or options.deepep):
        parser.error(f"no DeepEP table at {table}: give its path with --deepep")
    rows = read_table(table) if table.is_file() else []
    if options.fit:
        _print_fits(rows)
        return
    found, over = figures(), spreads(rows) if rows else []
    if options.json:
        document = {
            "schema": "rubin-tune.collectives/1",
            "figures": [asdict(figure) | {"error": figure.error} for figure in found],
            "deepep_ll": [asdict(one) for one in over],
        }
        print(json.dumps(document, indent=2))
        return
    _print(found, over)


if __name__ == "__main__":
    main()
