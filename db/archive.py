"""Old trials out of a database into an SQLite file: nothing is removed before it is safe there."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, Table, or_, select

from ..errors import DatabaseRefused, InvalidInput
from .check import check
from .copying import CHUNK, Copier
from .engine import Database, open_database
from .grounds import stands_on
from .merge import refuse_broken
from .removal import (
    give_space_back,
    hold_still,
    remove_empty_sweeps,
    remove_orphans,
    remove_trials,
    remove_winners,
)
from .schema import compiles, problems, silicons, sweeps, toolchains, trials, winners

_AGE = re.compile(r"(\d+)([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}


def parse_age(text: str) -> datetime:
    """Return the time that long ago: 12h, 90d or 6w.

    Raises:
        InvalidInput: it is no such duration.
    """
    found = _AGE.fullmatch(text.strip())
    try:
        if found is not None:
            return datetime.now(UTC) - timedelta(hours=int(found[1]) * _HOURS[found[2]])
    except OverflowError:
        # Longer ago than there are dates.
        pass
    raise InvalidInput(f"age is {text!r}: must be a duration such as 12h, 90d or 6w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which trials leave; at least one condition.

    Attributes:
        before: Of sweeps that began before this (UTC).
        kernel: Of this kernel.
        silicon: Of silicon of this key, or of a GPU of this name.
        with_winners: Winners of the same selection leave too. Else they stay, with the trials
            that they stand on.
    """

    before: datetime | None = None
    kernel: str | None = None
    silicon: str | None = None
    with_winners: bool = False

    def __post_init__(self) -> None:
        """Refuse to mean everything."""
        if self.before is None and self.kernel is None and self.silicon is None:
            raise InvalidInput("archive names no trials: give an age, a kernel or a silicon")

    def of(self, table: Table) -> list[ColumnElement[bool]]:
        """Return the conditions over trials or winners."""
        wanted: list[ColumnElement[bool]] = []
        if self.before is not None:
            old = self.before.astimezone(UTC).replace(tzinfo=None)
            wanted.append(
                table.c.sweep_id.in_(select(sweeps.c.id).where(sweeps.c.started_at < old))
            )
        if self.kernel is not None:
            wanted.append(table.c.kernel == self.kernel)
        if self.silicon is not None:
            keyed = select(silicons.c.id).where(silicons.c.key == self.silicon)
            named = table.c.silicon_name == self.silicon
            wanted.append(or_(named, table.c.silicon_id.in_(keyed)))
        return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What happened: rows in the archive, rows removed here, trials kept for winners."""

    archive: str
    trials: int
    winners: int
    removed: int
    removed_winners: int
    kept: int


def archive(
    target: str | Path,
    out: str | Path,
    selection: Selection,
    *,
    wait_s: float = 30.0,
    vacuum: bool = False,
) -> Archived:
    """Write trials into an SQLite file, check that they are there, then remove them.

    The database cannot be written by others meanwhile. If anything fails, nothing is removed.

    Args:
        target: Path or URL of the database.
        out: The archive: a new file, or an earlier archive, which is added to.
        selection: Which trials.
        wait_s: Seconds to wait for a lock.
        vacuum: Shrink an SQLite file afterwards.

    Raises:
        InvalidInput: nothing of that kernel or silicon is there.
        DatabaseRefused: either is none of ours, both are one, or the copy is not what was read.
        StorageFull: no room for the archive.
    """
    if "://" in str(out):
        raise InvalidInput("the archive is given as a URL: must be a path, it is an SQLite file")
    path = Path(out)
    database = open_database(target, wait_s=wait_s, create=False)
    try:
        if database.path is not None and path.exists() and database.path.samefile(path):
            raise DatabaseRefused(
                f"database {database.shown!r} cannot be archived into itself: give another file"
            )
        refuse_broken(database, check(database))
        new = not path.exists()
        try:
            done = _archive(database, path, selection, wait_s)
        except BaseException:
            if new:
                _remove_file(path)
            raise
        if done.trials + done.winners == 0 and new:
            _remove_file(path)
        if vacuum and done.removed:
            give_space_back(database)
        return done
    finally:
        database.close()


def _archive(database: Database, path: Path, selection: Selection, wait_s: float) -> Archived:
    with database.writing() as connection:
        hold_still(connection)
        _refuse_unknown(connection, selection)
        copied, won = _copy(connection, database.shown, path, selection, wait_s)
        _verify(connection, path, selection, wait_s)
        wanted = selection.of(trials)
        gone = remove_winners(connection, *selection.of(winners)) if selection.with_winners else 0
        ids = list(connection.execute(select(trials.c.id).where(*wanted, ~stands_on())).scalars())
        remove_trials(connection, ids)
        remove_empty_sweeps(connection)
        remove_orphans(connection)
    return Archived(
        archive=str(path),
        trials=copied,
        winners=won,
        removed=len(ids),
        removed_winners=gone,
        kept=copied - len(ids),
    )


def _copy(
    connection: Connection, shown: str, path: Path, selection: Selection, wait_s: float
) -> tuple[int, int]:
    receiver = open_database(path, wait_s=wait_s, create=True)
    try:
        with receiver.writing() as writes:
            # What is here is what was read last.
            copier = Copier(source=connection, target=writes, shown=shown, newest=True)
            copied = copier.trials(*selection.of(trials)).read
            won = copier.winners(*selection.of(winners)).read
            copier.portfolios()
        # Into the file itself and onto the disk: a power cut must not take it back.
        receiver.outside("PRAGMA synchronous = FULL", "PRAGMA wal_checkpoint(TRUNCATE)")
        return copied, won
    finally:
        receiver.close()


def _verify(connection: Connection, path: Path, selection: Selection, wait_s: float) -> None:
    """Open the archive anew and compare each row with the one it was copied from.

    Raises:
        DatabaseRefused: a row is missing or differs, or the file is damaged.
    """
    receiver = open_database(path, wait_s=wait_s, create=False)
    try:
        refuse_broken(receiver, check(receiver))
        with receiver.reading() as reads:
            for table in (trials, winners):
                there = {_digest(row) for row in _whole(reads, table)}
                for row in _whole(connection, table, *selection.of(table)):
                    if _digest(row) not in there:
                        raise DatabaseRefused(
                            f"archive {str(path)!r} does not hold {table.name} {row['id']} as it "
                            "is here: nothing was removed; give another file"
                        )
    finally:
        receiver.close()


def _whole(
    connection: Connection, table: Table, *wanted: ColumnElement[bool]
) -> Iterator[RowMapping]:
    """Return rows with the keys of what they point at, oldest first."""
    statement = _keyed(table).where(*wanted).order_by(table.c.id).limit(CHUNK)
    last = 0
    while rows := connection.execute(statement.where(table.c.id > last)).mappings().all():
        yield from rows
        last = rows[-1]["id"]


def _keyed(table: Table) -> Select[Any]:
    parents = (sweeps, problems, silicons, toolchains)
    whole = table
    keys = [parent.c.key.label(f"{parent.name}_key") for parent in (*parents, compiles)]
    joined: Any = whole
    for parent in parents:
        joined = joined.join(parent)
    return select(table, *keys).select_from(joined.outerjoin(compiles))


def _digest(row: RowMapping) -> bytes:
    values = {
        name: value for name, value in row.items() if not name.endswith("_id") and name != "id"
    }
    text = repr(sorted(values.items())).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()


def _refuse_unknown(connection: Connection, selection: Selection) -> None:
    for name, given, column in (
        ("kernel", selection.kernel, trials.c.kernel),
        ("silicon", selection.silicon, silicons.c.key),
    ):
        if given is None:
            continue
        known = set(connection.execute(select(column).distinct()).scalars())
        if name == "silicon":
            named = select(trials.c.silicon_name).where(trials.c.silicon_name == given).limit(1)
            known |= set(connection.execute(named).scalars())
        if given not in known:
            raise InvalidInput(
                f"{name} {given!r} has no trials in the database: known are "
                f"{', '.join(map(repr, sorted(known))) or 'none'}"
            )


def _remove_file(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)
