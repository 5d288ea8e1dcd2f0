"""Bringing a database's tables to the newest revision on purpose, after a copy."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DatabaseRefused, StorageFull
from .engine import open_database, revision_of, shown_name, sqlite_path
from .schema import REVISIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """Revisions before and after ("" = empty), and where the copy lies."""

    database: str
    before: str
    after: str
    backup: str | None


def upgrade(
    target: str | Path, *, backup: Path | None = None, dry_run: bool = False, wait_s: float = 30.0
) -> Upgraded:
    """Migrate a database forward, and say from what to what.

    Args:
        target: Path or URL of an existing database.
        backup: Where to copy an SQLite file first; it must not exist.
        dry_run: Only say what would be done.
        wait_s: Seconds to wait for a lock.

    Raises:
        DatabaseRefused: not one of ours, newer than this version, or the copy cannot be made.
        StorageFull: no room for the copy.
    """
    shown = shown_name(target)
    before = revision_of(target, wait_s=wait_s)
    found = Upgraded(database=shown, before=before, after=REVISIONS[-1], backup=None)
    if dry_run or before == REVISIONS[-1]:
        return found
    if backup is not None:
        _copy(target, backup)
        found = replace(found, backup=str(backup))
    open_database(target, wait_s=wait_s, create=False).close()
    return found


def _copy(target: str | Path, backup: Path) -> None:
    """Copy an SQLite database, others' commits included, into a new file."""
    path = sqlite_path(target)
    if path is None:
        raise DatabaseRefused(
            f"database {shown_name(target)!r} is on a server: make the copy with pg_dump"
        )
    if backup.exists():
        raise DatabaseRefused(f"backup {str(backup)!r} exists already: give a new path")
    if not backup.parent.is_dir():
        raise DatabaseRefused(f"backup {str(backup)!r} cannot be made: its folder does not exist")
    try:
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as copy:
            source.backup(copy)
    except sqlite3.Error as error:
        backup.unlink(missing_ok=True)
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR,
        ):
            raise StorageFull(
                f"no room for backup {str(backup)!r}: nothing was changed"
            ) from error
        raise DatabaseRefused(
            f"backup {str(backup)!r} cannot be made ({error}): nothing was changed"
        ) from error
