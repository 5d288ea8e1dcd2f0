"""Removing trials that are stale and that nobody needs any more."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy import Connection, and_, exists, func, select

from . import codec
from .codec import loads
from .engine import open_database
from .grounds import stands_on
from .removal import give_space_back, hold_still, remove_orphans, remove_trials
from .schema import silicons, toolchains, trials, winners
from .staleness import Present, Reason, in_words, key_reasons
from .statistics import silicon_record

KEEP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleGroup:
    """Trials of one kernel, source, silicon and toolchain, and why they are stale."""

    kernel: str
    source_hash: str
    silicon: str
    toolchain: str
    reasons: tuple[Reason, ...]
    trials: int
    removed: int

    @property
    def why(self) -> str:
        """The reasons in words."""
        return in_words(self.reasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    kernel: str
    source_hash: str
    silicon_id: int
    toolchain_id: int
    stale: StaleGroup


def collect(
    target: str | Path,
    present: Present,
    *,
    keep: int = KEEP,
    dry_run: bool = False,
    wait_s: float = 30.0,
    vacuum: bool = False,
) -> list[StaleGroup]:
    """Remove stale trials that no winner stands on, and return what was (or would be) removed.

    Where a stale key has winners, the `keep` fastest trials of each of its problems and units stay
    too: `rubin-tune requalify` times them again.

    Args:
        target: Path or URL of the database.
        present: What would run now.
        keep: See above.
        dry_run: Remove nothing.
        wait_s: Seconds to wait for a lock.
        vacuum: Shrink an SQLite file afterwards.

    Raises:
        DatabaseRefused: see `open_store`.
    """
    database = open_database(target, wait_s=wait_s, create=False)
    try:
        with database.reading() if dry_run else database.writing() as connection:
            if not dry_run:
                hold_still(connection)
            found = []
            for group in _groups(connection, present):
                ids = _free(connection, group, keep)
                if not dry_run:
                    remove_trials(connection, ids)
                found.append(replace(group.stale, removed=len(ids)))
            if not dry_run and any(group.removed for group in found):
                remove_orphans(connection)
        if vacuum and not dry_run:
            give_space_back(database)
        return found
    finally:
        database.close()


def _groups(connection: Connection, present: Present) -> list[_Group]:
    place = (trials.c.kernel, trials.c.source_hash, trials.c.silicon_id, trials.c.toolchain_id)
    counted = select(*place, func.count().label("rows")).group_by(*place).order_by(*place)
    silicon_rows = {row.id: row for row in connection.execute(select(silicons))}
    made_by = {
        row.id: codec.toolchain_from_json(loads(row.record))
        for row in connection.execute(select(toolchains))
    }
    found = []
    for row in connection.execute(counted).all():
        silicon, toolchain = silicon_rows[row.silicon_id], made_by[row.toolchain_id]
        why = key_reasons(
            kernel=row.kernel,
            source_hash=row.source_hash,
            toolchain=toolchain,
            silicon=silicon_record(silicon),
            present=present,
        )
        if why:
            stale = StaleGroup(
                kernel=row.kernel,
                source_hash=row.source_hash,
                silicon=silicon.key,
                toolchain=toolchain.key,
                reasons=why,
                trials=row.rows,
                removed=0,
            )
            found.append(
                _Group(
                    kernel=row.kernel,
                    source_hash=row.source_hash,
                    silicon_id=row.silicon_id,
                    toolchain_id=row.toolchain_id,
                    stale=stale,
                )
            )
    return found


def _free(connection: Connection, group: _Group, keep: int) -> list[int]:
    """Return ids of the group's trials that neither a winner nor a requalification needs."""
    mine = and_(
        trials.c.kernel == group.kernel,
        trials.c.source_hash == group.source_hash,
        trials.c.silicon_id == group.silicon_id,
        trials.c.toolchain_id == group.toolchain_id,
    )
    same = ("problem_id", "unit", "kernel", "source_hash", "silicon_id", "toolchain_id")
    won = exists().where(*(winners.c[n] == trials.c[n] for n in same)).correlate(trials)
    statement = (
        select(trials.c.id, trials.c.problem_id, trials.c.unit, trials.c.time_us, won.label("won"))
        .where(mine, ~stands_on())
        .order_by(trials.c.time_us, trials.c.id)
    )
    kept: dict[tuple[int, str], int] = defaultdict(int)
    free = []
    for row in connection.execute(statement):
        place = row.problem_id, row.unit
        if row.won and row.time_us is not None and kept[place] < keep:
            kept[place] += 1
        else:
            free.append(row.id)
    return free
