"""What a database driver says, as one of our errors."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError, OperationalError

from ..errors import DatabaseBusy, DatabaseGone, DatabaseRefused, RubinTuneError, StorageFull

# An I/O error with less room than this left on the disk is a full disk.
_NO_ROOM_BYTES = 1 << 20
_FULL = "the disk is full; what was committed is kept: make room, then run the same command again"
_BUSY = "end the other run, or give --db another file"
_DAMAGED = "it is damaged: move it away, or restore a copy"
_GONE = "what was committed is kept: run the same command again when it is back"


def in_words(
    error: DBAPIError, shown: str, *, path: Path | None, wait_s: float, opening: bool
) -> RubinTuneError:
    """Return our error for a driver's.

    Args:
        error: What SQLAlchemy raised.
        shown: How the database is called in messages.
        path: The SQLite file, None for a server.
        wait_s: How long a lock was waited for.
        opening: Whether the database was just being opened.
    """
    original = error.orig
    if isinstance(original, sqlite3.Error):
        return _sqlite(original, shown, path, wait_s)
    may_return = isinstance(error, OperationalError) or error.connection_invalidated
    return _postgresql(original, shown, wait_s, opening, may_return=may_return)


def _sqlite(error: sqlite3.Error, shown: str, path: Path | None, wait_s: float) -> RubinTuneError:
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    code = extended & 0xFF
    name = f"database {shown!r}"
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(path)):
        return StorageFull(f"{name}: {_FULL}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DatabaseBusy(f"{name} is locked by another process: waited {wait_s:g} s; {_BUSY}")
    if extended == sqlite3.SQLITE_READONLY_DBMOVED or code == sqlite3.SQLITE_IOERR:
        return DatabaseBusy(f"{name} is gone or cannot be read any more ({error}); {_GONE}")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return read_only(shown)
    if code == sqlite3.SQLITE_CANTOPEN:
        return DatabaseRefused(f"{name} cannot be opened: its folder must exist and be writable")
    return DatabaseRefused(f"{name} cannot be used ({error}): {_DAMAGED}")


def read_only(shown: str) -> DatabaseRefused:
    """Return the error for a database that cannot be written."""
    return DatabaseRefused(
        f"database {shown!r} is read-only: must be writable; make it so, or give --db another file"
    )


def _no_room(path: Path | None) -> bool:
    if path is None or not path.parent.is_dir():
        return False
    return shutil.disk_usage(path.parent).free < _NO_ROOM_BYTES


def _postgresql(
    error: BaseException | None, shown: str, wait_s: float, opening: bool, *, may_return: bool
) -> RubinTuneError:
    state = str(getattr(error, "sqlstate", None) or "")
    name = f"database {shown!r}"
    # Codes: PostgreSQL documentation, appendix A.
    if state in ("53100", "53200"):
        return StorageFull(f"{name}: {_FULL}")
    if state in ("55P03", "40P01", "57014"):
        return DatabaseBusy(f"{name} is locked by another session: waited {wait_s:g} s; {_BUSY}")
    if state in ("25006", "42501"):
        return read_only(shown)
    if state[:2] in ("", "08", "57", "28", "3D", "53"):
        if opening:
            return DatabaseRefused(
                f"{name} cannot be reached ({_first_line(error)}): check the URL"
            )
        # Wrong passwords (28) and a dropped database (3D) are no outage.
        kind = DatabaseGone if may_return and state[:2] not in ("28", "3D") else DatabaseBusy
        return kind(f"{name} is gone ({_first_line(error)}); {_GONE}")
    return DatabaseRefused(f"{name} cannot be used ({_first_line(error)}): {_DAMAGED}")


def _first_line(error: BaseException | None) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]
