"""Opening a database: whose it is, how new it is, how it waits; then its transactions."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError

from ..errors import DatabaseRefused
from .faults import in_words, read_only
from .schema import APPLICATION_ID, REVISIONS, VERSION_TABLE

_FORMS = "must be a path, sqlite:///PATH or postgresql://USER@HOST/NAME"
_SQLITE_MAGIC = b"SQLite format 3\x00"
_SECRETS = ("password", "sslpassword")
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An engine, and how it is called in messages."""

    engine: Engine
    shown: str
    path: Path | None
    wait_s: float

    @property
    def dialect(self) -> str:
        """The name "sqlite" or "postgresql"."""
        return self.engine.dialect.name

    @contextmanager
    def reading(self, *, opening: bool = False) -> Iterator[Connection]:
        """One transaction that only reads."""
        with self._words(opening=opening), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, opening: bool = False) -> Iterator[Connection]:
        """One transaction that writes; SQLite's lock is taken at once, so no retry is needed."""
        with self._words(opening=opening), self.engine.connect() as connection:
            connection.execution_options(rubin_tune_writes=True)
            with connection.begin():
                yield connection

    def outside(self, *statements: str) -> None:
        """Run statements of SQLite that stand in no transaction."""
        with self._words():
            raw = self.engine.raw_connection()
            try:
                for statement in statements:
                    raw.cursor().execute(statement)
            except sqlite3.Error as error:
                raise DBAPIError("; ".join(statements), None, error) from error
            finally:
                raw.close()

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _words(self, *, opening: bool = False) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise in_words(
                error, self.shown, path=self.path, wait_s=self.wait_s, opening=opening
            ) from error


def open_database(
    target: str | Path, *, wait_s: float, create: bool, migrate: bool = True
) -> Database:
    """Open a database, migrate it to the newest tables, and return it.

    Without `migrate` one whose tables are older is refused instead, and nothing is written.

    Raises:
        DatabaseRefused: see `open_store`.
        DatabaseBusy: locked for longer than `wait_s`.
        StorageFull: no room for the tables.
    """
    url = _url(target)
    database = _sqlite(url, wait_s, create) if _is_sqlite(url) else _postgresql(url, wait_s)
    try:
        with database._words(opening=True):
            if migrate:
                _prepare(database)
            else:
                _refuse_older(database)
    except BaseException:
        database.close()
        raise
    return database


def revision_of(target: str | Path, *, wait_s: float) -> str:
    """Return the revision of a database's tables, "" for an empty one; writes nothing.

    Raises:
        DatabaseRefused: see `open_store`; a file that does not exist too.
    """
    url = _url(target)
    database = _sqlite(url, wait_s, False) if _is_sqlite(url) else _postgresql(url, wait_s)
    try:
        with database.reading(opening=True) as connection:
            return _revision(connection, database.shown)
    finally:
        database.close()


def shown_name(target: str | Path) -> str:
    """Return how a path or URL is printed: without its password.

    Raises:
        DatabaseRefused: it is neither.
    """
    return _shown(_url(target))


def sqlite_path(target: str | Path) -> Path | None:
    """Return the file of an SQLite database, None for one on a server."""
    url = _url(target)
    return Path(url.database or "").expanduser() if _is_sqlite(url) else None


def _url(target: str | Path) -> URL:
    if isinstance(target, Path) or "://" not in target:
        return URL.create("sqlite", database=str(target))
    try:
        url = make_url(target)
    except (ArgumentError, ValueError) as error:
        # The URL may hold a password, so it is not repeated.
        raise DatabaseRefused(f"the database's URL cannot be read: {_FORMS}") from error
    if not (_is_sqlite(url) or url.drivername in ("postgresql", "postgres", "postgresql+psycopg")):
        raise DatabaseRefused(f"database {_shown(url)!r} is of a kind we do not know: {_FORMS}")
    return url


def _is_sqlite(url: URL) -> bool:
    return url.drivername in ("sqlite", "sqlite+pysqlite")


def _shown(url: URL) -> str:
    if _is_sqlite(url):
        return url.database or "sqlite://"
    secret = {name: "hidden" for name in _SECRETS if name in url.query}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


# SQLite


def _sqlite(url: URL, wait_s: float, create: bool) -> Database:
    if not url.database or url.database == ":memory:" or url.query:
        raise DatabaseRefused(f"database {_shown(url)!r} names no plain file: {_FORMS}")
    path = Path(url.database).expanduser()
    if not (create or path.exists()):
        raise DatabaseRefused(f"database {str(path)!r} does not exist: run rubin-tune sweep first")
    _check_file(path)
    engine = create_engine(
        URL.create("sqlite+pysqlite", database=str(path)), connect_args={"timeout": wait_s}
    )
    event.listen(engine, "connect", _set_up_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return Database(engine=engine, shown=str(path), path=path, wait_s=wait_s)


def _check_file(path: Path) -> None:
    """Refuse what SQLite would refuse in its own words, or write into without asking."""
    shown = str(path)
    if path.is_dir():
        raise DatabaseRefused(f"database {shown!r} is a folder: must be a file")
    if not path.parent.is_dir():
        raise DatabaseRefused(
            f"database {shown!r} cannot be made: its folder does not exist; make it"
        )
    if not path.exists():
        return
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DatabaseRefused(f"database {shown!r} is no regular file: must be one")
    # Root may write anything; a file that nobody may write was closed on purpose.
    if not status.st_mode & 0o222:
        raise read_only(shown)
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_SQLITE_MAGIC))
    except OSError as error:
        why = f"database {shown!r} cannot be read: {error.strerror}"
        raise DatabaseRefused(why) from error
    if head and head != _SQLITE_MAGIC:
        raise DatabaseRefused(
            f"database {shown!r} is not one of ours: it is no SQLite file; give --db another path"
        )


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    # We say BEGIN ourselves, see _begin_sqlite.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # In WAL mode NORMAL loses nothing when the process dies; only a power cut may undo the last
    # commits.
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("rubin_tune_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_wal(database: Database) -> None:
    """Let readers and one writer work at once; kept in the file, so done once in its life."""
    until = time.monotonic() + database.wait_s
    while True:
        raw = database.engine.raw_connection()
        try:
            cursor = raw.cursor()
            cursor.execute("PRAGMA journal_mode")
            if cursor.fetchone() != ("wal",):
                cursor.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # Changing the mode needs the file alone and does not wait by itself.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise DBAPIError("PRAGMA journal_mode", None, error) from error
        finally:
            raw.close()
        time.sleep(_POLL_S)


# PostgreSQL


def _postgresql(url: URL, wait_s: float) -> Database:
    shown = _shown(url)
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            connect_args=_timeouts(url, wait_s),
        )
    except ModuleNotFoundError as error:
        raise DatabaseRefused(
            f"database {shown!r} needs psycopg: pip install 'rubin-tune[postgres]'"
        ) from error

    def set_up(connection: Any, _: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {max(1, int(wait_s * 1000))}")
            # Times without a zone are UTC, as SQLite's are.
            cursor.execute("SET TIME ZONE 'UTC'")
        connection.commit()

    event.listen(engine, "connect", set_up)
    return Database(engine=engine, shown=shown, path=None, wait_s=wait_s)


def _timeouts(url: URL, wait_s: float) -> dict[str, int]:
    """Return libpq's settings by which a server that fell silent is noticed within seconds.

    Source: PostgreSQL documentation, 32.1.2. Without them a machine that lost its power is waited for
    as long as TCP does, a quarter of an hour. What the URL sets stays.
    """
    ours = {
        "connect_timeout": max(2, min(10, int(wait_s))),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 25_000,
    }
    return {name: value for name, value in ours.items() if name not in url.query}


# Whose it is, how new it is


def _refuse_older(database: Database) -> None:
    with database.reading(opening=True) as connection:
        found = _revision(connection, database.shown)
    if found != REVISIONS[-1]:
        older = f"has tables {found}" if found else "is empty"
        raise DatabaseRefused(
            f"database {database.shown!r} {older}, this rubin-tune writes {REVISIONS[-1]}: run "
            f"rubin-tune db upgrade --db {database.shown} first"
        )


def _prepare(database: Database) -> None:
    with database.reading(opening=True) as connection:
        revision = _revision(connection, database.shown)
    if revision != REVISIONS[-1]:
        with database.writing(opening=True) as connection:
            _lock_out_others(connection)
            # Another process may have migrated while we waited.
            if _revision(connection, database.shown) != REVISIONS[-1]:
                _migrate(connection)
    if database.path is not None:
        _use_wal(database)


def _revision(connection: Connection, shown: str) -> str:
    """Return the tables' revision, "" for an empty database.

    Raises:
        DatabaseRefused: somebody else's, or written by a newer version.
    """
    tables = inspect(connection).get_table_names()
    marked = VERSION_TABLE in tables
    if connection.dialect.name == "sqlite":
        mark = connection.exec_driver_sql("PRAGMA application_id").scalar()
        marked = marked and mark == APPLICATION_ID
        tables = [*tables, *([] if mark in (0, APPLICATION_ID) else ["(application_id)"])]
    if tables and not marked:
        raise DatabaseRefused(
            f"database {shown!r} is not one of ours: it holds {', '.join(tables[:3])}; "
            "give --db another file or database"
        )
    if not marked:
        return ""
    found = str(
        connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or ""
    )
    if found and found not in REVISIONS:
        raise DatabaseRefused(
            f"database {shown!r} was written by a newer rubin-tune (tables {found}, this one "
            f"knows up to {REVISIONS[-1]}): upgrade rubin-tune, or give --db another file"
        )
    return found


def _lock_out_others(connection: Connection) -> None:
    """Let one process migrate at a time; SQLite's BEGIN IMMEDIATE has done so already."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({APPLICATION_ID})"))


def _migrate(connection: Connection) -> None:
    # Imported here: a database that is up to date opens without Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
