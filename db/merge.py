"""Another team's database into this one: what both have stays once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, text

from ..errors import DatabaseRefused
from .check import Finding, check
from .copying import Copied, Copier
from .engine import Database, open_database, sqlite_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge read and wrote, by table, in the order of copying."""

    source: str
    target: str
    tables: dict[str, Copied]


def merge(other: str | Path, target: str | Path, *, wait_s: float = 30.0) -> Merged:
    """Copy every row of `other` that `target` lacks, in one transaction; `other` is only read.

    A trial that both have stays as it is here, unless the other's evidence is stronger. A second
    merge writes nothing.

    Args:
        other: Path or URL of an existing database with the newest tables.
        target: Path or URL; made where it is a path that does not exist.
        wait_s: Seconds to wait for a lock on either.

    Raises:
        DatabaseRefused: either is none of ours, both are one, or `other` holds broken rows.
        DatabaseBusy: locked for longer than `wait_s`.
        StorageFull: no room; nothing was written.
    """
    source = open_database(other, wait_s=wait_s, create=False, migrate=False)
    try:
        _refuse_same_file(source, target)
        refuse_broken(source, check(source))
        receiver = open_database(target, wait_s=wait_s, create=True)
        try:
            return _merge(source, receiver)
        finally:
            receiver.close()
    finally:
        source.close()


def refuse_broken(database: Database, findings: list[Finding]) -> None:
    """Refuse a database with rows that must not be copied.

    Raises:
        DatabaseRefused: it has such rows.
    """
    grave = [str(finding) for finding in findings if finding.grave]
    if grave:
        raise DatabaseRefused(
            f"database {database.shown!r} holds broken rows: {'; '.join(grave)}: see rubin-tune "
            f"db check --db {database.shown}"
        )


def _merge(source: Database, target: Database) -> Merged:
    with source.reading() as reads, target.writing() as writes:
        if _identity(reads) == _identity(writes):
            raise _same(source)
        copier = Copier(source=reads, target=writes, shown=source.shown)
        tables = {
            "sweeps": copier.sweeps(),
            "trials": copier.trials(),
            "winners": copier.winners(),
            "portfolios": copier.portfolios(),
            "seeds": copier.seeds(),
        }
    return Merged(source=source.shown, target=target.shown, tables=tables)


def _refuse_same_file(source: Database, target: str | Path) -> None:
    """Refuse one file under two names before it is locked against itself."""
    other = sqlite_path(target)
    if source.path and other and other.exists() and source.path.samefile(other):
        raise _same(source)


def _same(source: Database) -> DatabaseRefused:
    return DatabaseRefused(f"database {source.shown!r} cannot be merged into itself: give another")


def _identity(connection: Connection) -> tuple[object, ...]:
    """Return what two connections share exactly when they speak to one database of a server."""
    if connection.dialect.name == "sqlite":
        return (id(connection),)
    found = connection.execute(
        text(
            "SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()"
        )
    )
    return tuple(found.one())
