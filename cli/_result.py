"""How sweeps and their estimates are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ._output import print_json, print_table

if TYPE_CHECKING:  # loading the tuner takes a second, which --help should not
    from ..tuner import SweepRequest, SweepResult


def print_result(result: SweepResult) -> None:
    """Print a sweep's winners, counts, audit and portfolio."""
    setting = result.resolved.setting
    shape = setting.problems[0].shape
    where = f"{setting.gpu.name} (sm_{setting.gpu.arch})"
    print_table(
        f"{setting.kernel.name} for {shape.model} on {where}, {setting.problems[0].layout.name}: "
        f"times are {result.evidence.word}",
        [
            "tokens",
            "unit",
            "time us",
            "interval us",
            "default us",
            "speed-up",
            "evidence",
            "config",
        ],
        [
            (
                w.problem.tokens,
                w.unit.value,
                f"{w.time_us:.1f}",
                f"{w.interval_us[0]:.1f} - {w.interval_us[1]:.1f}",
                f"{w.default_time_us:.1f}",
                f"{w.speedup:.2f}x",
                w.evidence.word,
                w.config if w.unit.value in ("gate_up", "down") else "",
            )
            for w in result.winners
        ],
    )
    counts = result.counts
    click.echo(
        f"{counts.legal} legal of {counts.space} points; {counts.compiled} variants compiled "
        f"({counts.cubins} distinct cubins), {counts.failed} failed; {counts.evaluated} trials, "
        f"{counts.reused} reused; {result.wall_s:.1f} s; sweep {result.sweep_id} in {result.database}"
    )
    if result.refused:
        told = ", ".join(f"{number} {why}" for why, number in result.refused.items())
        click.echo(f"refused variants: {told}; rubin-tune report {result.sweep_id} says each")
    if result.outages_s:
        times = "once" if len(result.outages_s) == 1 else f"{len(result.outages_s)} times"
        click.echo(
            f"the database was gone {times}, for {sum(result.outages_s):.1f} s in all; every trial "
            "is committed",
            err=True,
        )
    if result.baselines:
        gains = ", ".join(f"{row.speedup:.2f}x at {row.tokens}" for row in result.baselines)
        click.echo(f"over the imported table, both GEMMs (not interleaved): {gains}")
    if result.audit.timed:
        click.echo(str(result.audit))
    if result.portfolio is not None:
        click.echo(str(result.portfolio))
    if not result.complete:
        click.echo("stopped by --budget: the same command goes on from here", err=True)


def print_estimates(
    requests: Sequence[SweepRequest], *, database: str | None, jobs: int | None, as_json: bool
) -> None:
    """Print what sweeps would cost and could gain."""
    from ..tuner.budget import spell_seconds
    from ..tuner.dry_run import estimate, summary

    found = estimate(requests, database=database, jobs=jobs)
    if as_json:
        entries = [one.as_json() for one in found]
        print_json(
            {"schema": "rubin-tune.dry-run/1", "sweeps": entries, "summary": summary(found)}
        )
        return
    for one in found:
        setting = one.resolved.setting
        problem = setting.problems[0]
        print_table(
            f"{setting.kernel.name} for {problem.shape.model} ({problem.shape.weights}, "
            f"{problem.layout.name}) on {setting.gpu.name}, both GEMMs: times are predicted",
            ["tokens", "deployed us", "best us", "headroom", "deployed is"],
            [
                (
                    row.tokens,
                    "unknown" if row.deployed_us is None else f"{row.deployed_us:.1f}",
                    f"{row.best_us:.1f}",
                    "unknown" if row.share is None else f"{row.share:.1%}",
                    row.deployed,
                )
                for row in one.headroom
            ],
        )
        click.echo(
            f"{one.legal} legal of {one.space} points; {one.variants} variants, {one.compiles} "
            f"compilations at most, {one.known} trials known; about {spell_seconds(one.seconds)} "
            f"({one.rates})"
        )
        click.echo(one.verdict)
    click.echo(summary(found))
