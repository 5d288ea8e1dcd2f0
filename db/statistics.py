"""What a database holds, counted: rows, bytes, and which winners stand on what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, select, text

from . import codec
from .codec import loads
from .engine import Database
from .records import Evidence, Silicon, Toolchain
from .schema import (
    compiles,
    metadata,
    portfolios,
    problems,
    seeds,
    silicons,
    sweeps,
    toolchains,
    trials,
    winners,
)
from .staleness import Present, Reason, key_reasons

# Small tables; trials are counted by group.
_COUNTED = (sweeps, winners, compiles, problems, silicons, toolchains, portfolios, seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialGroup:
    """Trials of one kernel, silicon, toolchain and evidence."""

    kernel: str
    silicon: str
    toolchain: str
    evidence: Evidence
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Winners that stand (newest of the strongest evidence), by what they belong to."""

    kernel: str
    source_hash: str
    silicon: Silicon
    silicon_key: str
    toolchain: Toolchain
    evidence: Evidence
    winners: int

    def stale(self, present: Present) -> tuple[Reason, ...]:
        """Return why they are stale."""
        return key_reasons(
            kernel=self.kernel,
            source_hash=self.source_hash,
            toolchain=self.toolchain,
            silicon=self.silicon,
            present=present,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counts of one database; `total_bytes` is what the file, or our tables on a server, fill."""

    revision: str
    rows: dict[str, int]
    groups: tuple[TrialGroup, ...]
    standing: tuple[Standing, ...]
    total_bytes: int

    @property
    def bytes_per_trial(self) -> float | None:
        """Everything, indexes and other tables included, over the trials; None without any."""
        return self.total_bytes / self.rows["trials"] if self.rows["trials"] else None


def statistics(database: Database, *, revision: str) -> Statistics:
    """Count what a database holds, in one reading transaction."""
    with database.reading() as connection:
        groups = _groups(connection)
        counted = {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in _COUNTED
        }
        return Statistics(
            revision=revision,
            rows={"trials": sum(group.trials for group in groups), **counted},
            groups=groups,
            standing=_standing(connection),
            total_bytes=_bytes(connection),
        )


def _groups(connection: Connection) -> tuple[TrialGroup, ...]:
    place = (trials.c.kernel, trials.c.silicon_id, trials.c.toolchain_id, trials.c.evidence)
    # Counted before it is joined: a join for each of a million rows takes seconds.
    counted = select(*place, func.count().label("rows")).group_by(*place).subquery()
    statement = (
        select(counted, silicons.c.key.label("silicon"), toolchains.c.key.label("toolchain"))
        .join(silicons, silicons.c.id == counted.c.silicon_id)
        .join(toolchains, toolchains.c.id == counted.c.toolchain_id)
        .order_by(counted.c.kernel, silicons.c.key, toolchains.c.key, counted.c.evidence.desc())
    )
    return tuple(
        TrialGroup(
            kernel=row.kernel,
            silicon=row.silicon,
            toolchain=row.toolchain,
            evidence=Evidence(row.evidence),
            trials=row.rows,
        )
        for row in connection.execute(statement)
    )


def _standing(connection: Connection) -> tuple[Standing, ...]:
    statement = (
        select(
            winners.c.kernel,
            winners.c.problem_id,
            winners.c.unit,
            winners.c.silicon_id,
            winners.c.source_hash,
            winners.c.toolchain_id,
            winners.c.evidence,
        )
        .join(sweeps)
        .order_by(winners.c.evidence, sweeps.c.started_at, winners.c.id)
    )
    newest: dict[tuple[object, ...], Any] = {}
    for row in connection.execute(statement):
        newest[row.kernel, row.problem_id, row.unit, row.silicon_id] = row
    counts = Counter(
        (r.kernel, r.source_hash, r.silicon_id, r.toolchain_id, r.evidence)
        for r in newest.values()
    )
    known = {row.id: row for row in connection.execute(select(silicons))}
    made_by = {
        row.id: codec.toolchain_from_json(loads(row.record))
        for row in connection.execute(select(toolchains))
    }
    return tuple(
        Standing(
            kernel=kernel,
            source_hash=source,
            silicon=silicon_record(known[silicon]),
            silicon_key=known[silicon].key,
            toolchain=made_by[toolchain],
            evidence=Evidence(evidence),
            winners=count,
        )
        for (kernel, source, silicon, toolchain, evidence), count in sorted(counts.items())
    )


def silicon_record(row: Row[Any]) -> Silicon:
    """Return the silicon of a row of its table, which holds no name."""
    return Silicon(
        name="",
        arch=row.arch,
        sms=row.sms,
        memory_bytes=row.memory_bytes,
        shared_limit_bytes=row.shared_limit_bytes,
        power_limit_w=row.power_limit_w,
    )


def _bytes(connection: Connection) -> int:
    if connection.dialect.name == "sqlite":
        pages, size = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
            for name in ("page_count", "page_size")
        )
        return pages * size
    # The names are ours, none comes from outside.
    tables = " + ".join(f"pg_total_relation_size('{name}')" for name in metadata.tables)
    return int(connection.execute(text(f"SELECT {tables}")).scalar_one())
