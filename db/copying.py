"""Rows from one database into another: ids are the receiver's, keys and contents stay.

Nothing is read into records: a row that was written by this schema is written as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, insert, select

from ..errors import DatabaseRefused
from .schema import compiles, portfolios, problems, seeds, silicons, sweeps, toolchains
from .schema import trials as _trials
from .schema import winners as _winners
from .upsert import TRIAL_KEY, WINNER_KEY, insert_missing, upsert

CHUNK = 1000
_PARENTS = (sweeps, problems, silicons, toolchains, compiles)
_SEED_FILE = ("kernel", "source", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """How many rows were read, and how many of them the receiver did not have."""

    read: int
    written: int


@dataclass(slots=True, kw_only=True)
class Copier:
    """Copies within one transaction of each side.

    Attributes:
        source: Read from.
        target: Written to.
        shown: How the source is called in messages.
        newest: Whether a row of equal evidence replaces the receiver's.
    """

    source: Connection
    target: Connection
    shown: str
    newest: bool = False
    _ids: dict[str, dict[int, int]] = field(
        default_factory=lambda: {table.name: {} for table in _PARENTS}
    )

    def trials(self, *wanted: ColumnElement[bool]) -> Copied:
        """Copy trials and what they point at; a row of weaker evidence displaces none."""
        return self._rows(_trials, TRIAL_KEY, wanted)

    def winners(self, *wanted: ColumnElement[bool]) -> Copied:
        """Copy winners and what they point at."""
        return self._rows(_winners, WINNER_KEY, wanted)

    def sweeps(self) -> Copied:
        """Copy all sweeps, those without trials too."""
        before = len(self._ids[sweeps.name])
        found = list(self.source.execute(select(sweeps.c.id)).scalars())
        return Copied(read=len(found), written=self._know(sweeps, found) if before == 0 else 0)

    def portfolios(self) -> Copied:
        """Copy the portfolios of sweeps that were copied."""
        known = self._ids[sweeps.name]
        rows = [
            {"sweep_id": known[row.sweep_id], "record": row.record}
            for row in self.source.execute(select(portfolios))
            if row.sweep_id in known
        ]
        statement = insert_missing(self.target.dialect.name, portfolios, ("sweep_id",))
        return Copied(read=len(rows), written=self._execute(statement, rows))

    def seeds(self) -> Copied:
        """Copy the seeds of files that the receiver has not imported."""
        files = select(*(seeds.c[name] for name in _SEED_FILE)).distinct()
        there = {tuple(row) for row in self.target.execute(files)}
        rows = [_without_id(row) for row in self.source.execute(select(seeds)).mappings()]
        new = [row for row in rows if tuple(row[name] for name in _SEED_FILE) not in there]
        if new:
            self.target.execute(insert(seeds), new)
        return Copied(read=len(rows), written=len(new))

    def _rows(
        self, table: Table, key: Sequence[str], wanted: Sequence[ColumnElement[bool]]
    ) -> Copied:
        statement = upsert(self.target.dialect.name, table, key, equal=self.newest)
        read = written = 0
        for rows in batches(self.source, table, wanted):
            values = self._moved(table, rows)
            values.sort(key=lambda row: tuple(row[name] for name in key))
            read += len(values)
            written += self._execute(statement, values)
        return Copied(read=read, written=written)

    def _moved(self, table: Table, rows: Sequence[RowMapping]) -> list[dict[str, Any]]:
        """Return the values of rows with the receiver's ids."""
        values = [_without_id(row) for row in rows]
        for parent in _PARENTS:
            name = f"{parent.name.removesuffix('s')}_id"
            if name not in table.c:
                continue
            self._know(parent, {row[name] for row in values if row[name] is not None})
            known = self._ids[parent.name]
            for row in values:
                if row[name] is not None:
                    row[name] = known[row[name]]
        return values

    def _know(self, table: Table, ids: Iterable[int]) -> int:
        """Learn the receiver's ids of rows of the source; what it lacks is written first."""
        known = self._ids[table.name]
        missing = sorted(set(ids) - known.keys())
        written = 0
        for some in _chunks(missing):
            found = select(table).where(table.c.id.in_(some))
            rows = {row["id"]: row for row in self.source.execute(found).mappings()}
            if len(rows) != len(some):
                raise DatabaseRefused(
                    f"database {self.shown!r} lacks {table.name} that its rows point at: run "
                    f"rubin-tune db check --db {self.shown}"
                )
            values = sorted(map(_without_id, rows.values()), key=lambda row: str(row["key"]))
            written += self._execute(insert_missing(self.target.dialect.name, table), values)
            keys = [row["key"] for row in values]
            there = select(table.c.key, table.c.id).where(table.c.key.in_(keys))
            numbers = {row.key: row.id for row in self.target.execute(there)}
            known.update({number: numbers[row["key"]] for number, row in rows.items()})
        return written

    def _execute(self, statement: Any, values: list[dict[str, Any]]) -> int:
        if not values:
            return 0
        count: int = self.target.execute(statement, values).rowcount
        return count


def batches(
    connection: Connection, table: Table, wanted: Sequence[ColumnElement[bool]] = ()
) -> Iterator[Sequence[RowMapping]]:
    """Return the rows of a table that are wanted, a thousand at a time, oldest first."""
    statement = select(table).where(*wanted).order_by(table.c.id).limit(CHUNK)
    last = 0
    while rows := connection.execute(statement.where(table.c.id > last)).mappings().all():
        yield rows
        last = rows[-1]["id"]


def _without_id(row: RowMapping) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), CHUNK):
        yield ids[start : start + CHUNK]
