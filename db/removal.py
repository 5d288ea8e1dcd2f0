"""Removing trials, and what only they pointed at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, delete, exists, func, select, text

from .engine import Database
from .schema import compiles, portfolios, problems, sweeps, trials, winners

_CHUNK = 1000
# A sweep that began earlier than this and has not ended was killed.
_RUNS_AT_MOST = timedelta(days=2)


def hold_still(connection: Connection) -> None:
    """Keep others from writing trials or winners until this transaction ends.

    SQLite's BEGIN IMMEDIATE has done so already.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE trials, winners IN SHARE ROW EXCLUSIVE MODE"))


def remove_trials(connection: Connection, ids: Sequence[int]) -> None:
    """Remove trials by id."""
    for start in range(0, len(ids), _CHUNK):
        some = ids[start : start + _CHUNK]
        connection.execute(delete(trials).where(trials.c.id.in_(some)))


def remove_orphans(connection: Connection) -> int:
    """Remove compile reports and problems that nothing points at; return how many.

    A sweep under way knows the numbers of such rows and is about to point at them: then they stay.
    """
    since = datetime.now(UTC).replace(tzinfo=None) - _RUNS_AT_MOST
    running = select(func.count()).where(sweeps.c.state == "running", sweeps.c.started_at > since)
    if connection.execute(running).scalar_one():
        return 0
    removed = 0
    for table, name in ((compiles, "compile_id"), (problems, "problem_id")):
        free = [
            ~exists().where(child.c[name] == table.c.id).correlate(table)
            for child in (trials, winners)
        ]
        removed += connection.execute(delete(table).where(*free)).rowcount
    return removed


def remove_winners(connection: Connection, *wanted: ColumnElement[bool]) -> int:
    """Remove winners, and portfolios and sweeps that are left without any row; return how many."""
    mine = list(connection.execute(select(winners.c.id).where(*wanted)).scalars())
    for start in range(0, len(mine), _CHUNK):
        connection.execute(delete(winners).where(winners.c.id.in_(mine[start : start + _CHUNK])))
    return len(mine)


def remove_empty_sweeps(connection: Connection) -> None:
    """Remove ended sweeps without winners and trials: asked again, they must run again."""
    empty = select(sweeps.c.id).where(
        sweeps.c.state != "running",
        *(
            ~exists().where(child.c.sweep_id == sweeps.c.id).correlate(sweeps)
            for child in (trials, winners)
        ),
    )
    ids = list(connection.execute(empty).scalars())
    for start in range(0, len(ids), _CHUNK):
        some = ids[start : start + _CHUNK]
        connection.execute(delete(portfolios).where(portfolios.c.sweep_id.in_(some)))
        connection.execute(delete(sweeps).where(sweeps.c.id.in_(some)))


def give_space_back(database: Database) -> None:
    """Shrink an SQLite file to what it holds; a server does so by itself."""
    if database.path is not None:
        database.outside("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
