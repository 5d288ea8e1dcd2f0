"""What would run now, to hold stored rows against; and a database's statistics with that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..db import Winner, default_path
from ..db.collect import StaleGroup, collect
from ..db.engine import open_database
from ..db.schema import REVISIONS
from ..db.staleness import Present, in_words, reasons
from ..db.statistics import Statistics, statistics
from ..errors import InvalidInput, UnknownName
from ..registry import names
from .request import load_kernel
from .toolchain import TARGETS, toolchain


def present_of(kernels: Iterable[str], targets: Iterable[int] = TARGETS) -> Present:
    """Return sources and toolchains of this environment.

    A kernel that is not here, or whose engine is not installed, is left out: nobody can say
    whether its rows are stale.
    """
    sources = {}
    for name in dict.fromkeys(kernels):
        try:
            kernel = load_kernel(name)
            kernel.require("gpu")
        except (UnknownName, InvalidInput):
            continue
        sources[name] = kernel.source_hash()
    return Present(sources=sources, toolchains={arch: toolchain(arch) for arch in set(targets)})


def stale_words(winners: Sequence[Winner]) -> dict[str, int]:
    """Return why winners are stale, with how many; "" is not among the keys."""
    present = present_of(
        {winner.kernel for winner in winners}, {winner.silicon.arch for winner in winners}
    )
    found: dict[str, int] = {}
    for winner in winners:
        said = in_words(reasons(winner, present))
        if said:
            found[said] = found.get(said, 0) + 1
    return found


def database_statistics(database: str | Path | None, *, wait_s: float = 30.0) -> dict[str, Any]:
    """Return `rubin-tune db stats`: counts, sizes, and which winners are stale and why.

    Raises:
        DatabaseRefused: none of ours, or it does not exist.
    """
    target = default_path() if database is None else database
    opened = open_database(target, wait_s=wait_s, create=False)
    try:
        found = statistics(opened, revision=REVISIONS[-1])
        return _document(opened.shown, found)
    finally:
        opened.close()


def _document(shown: str, found: Statistics) -> dict[str, Any]:
    present = present_of(
        {one.kernel for one in found.standing}, {one.silicon.arch for one in found.standing}
    )
    stale = [(one, one.stale(present)) for one in found.standing]
    return {
        "schema": "rubin-tune.db-stats/1",
        "database": shown,
        "tables": found.revision,
        "bytes": found.total_bytes,
        "bytes_per_trial": found.bytes_per_trial,
        "rows": found.rows,
        "trials": [
            {
                "kernel": group.kernel,
                "silicon": group.silicon,
                "toolchain": group.toolchain,
                "evidence": group.evidence.word,
                "trials": group.trials,
            }
            for group in found.groups
        ],
        "winners": [
            {
                "kernel": one.kernel,
                "source": one.source_hash,
                "silicon": one.silicon_key,
                "toolchain": one.toolchain.key,
                "evidence": one.evidence.word,
                "winners": one.winners,
                "stale": [str(reason) for reason in why],
            }
            for one, why in stale
        ],
    }


def collect_garbage(
    database: str | Path | None, *, keep: int, dry_run: bool, vacuum: bool = False
) -> list[StaleGroup]:
    """Remove trials that are stale here and that no winner needs (db/collect.py)."""
    target = default_path() if database is None else database
    return collect(target, present_of(names("kernels")), keep=keep, dry_run=dry_run, vacuum=vacuum)
