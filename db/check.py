"""Whether a database holds what it says: pointers, keys, times, and what winners stand on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, RowMapping, Table, exists, select

from ..errors import RubinTuneError
from . import codec
from .codec import dumps, loads
from .copying import batches
from .engine import Database, open_database
from .grounds import is_of
from .records import Evidence, Why
from .rows import report_key
from .schema import compiles, metadata, problems, silicons, toolchains, trials, winners
from .statistics import silicon_record

# Ids that a finding names.
_EXAMPLES = 3
# No launch of a layer takes an hour.
_LONGEST_US = 3.6e9
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, and with how many rows.

    Attributes:
        table: Where.
        what: What is wrong, in words.
        rows: How many rows.
        examples: Ids of the first of them.
        grave: Whether such rows must not be copied: false where something else is missing.
    """

    table: str
    what: str
    rows: int
    examples: tuple[int, ...]
    grave: bool = True

    def __str__(self) -> str:
        """Return "trials: 2 rows whose time is no time (ids 4, 9)"."""
        named = ", ".join(map(str, self.examples))
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        ids = f" (ids {named}{', ...' if self.rows > len(self.examples) else ''})" if named else ""
        return f"{self.table}: {rows} {self.what}{ids}"


def check(database: Database) -> list[Finding]:
    """Return everything that is wrong with a database, in one reading transaction."""
    with database.reading() as connection:
        if connection.dialect.name == "sqlite":
            damaged = _sqlite_damage(connection)
            if damaged:
                return damaged
        return [
            *_pointers(connection),
            *_keys(connection),
            *_contents(connection),
            *_unfounded(connection),
        ]


def check_database(target: str | Path, *, wait_s: float = 30.0) -> tuple[str, list[Finding]]:
    """Open a database, check it, and return its name and what is wrong.

    Raises:
        DatabaseRefused: see `open_store`.
    """
    database = open_database(target, wait_s=wait_s, create=False)
    try:
        return database.shown, check(database)
    finally:
        database.close()


def _sqlite_damage(connection: Connection) -> list[Finding]:
    words = [row[0] for row in connection.exec_driver_sql("PRAGMA quick_check(3)")]
    return [
        Finding(table="file", what=f"is damaged: {said}", rows=1, examples=())
        for said in words
        if said != "ok"
    ]


def _pointers(connection: Connection) -> Iterator[Finding]:
    for table in metadata.sorted_tables:
        for key in table.foreign_keys:
            column, parent = key.parent, key.column.table
            lost = select(table.c.id).where(
                column.is_not(None), ~exists().where(parent.c.id == column)
            )
            ids = list(connection.execute(lost).scalars())
            if ids:
                yield _finding(table, f"whose {column.name} points at nothing", ids)


# What stands under a key must be what the key says.


def _keys(connection: Connection) -> Iterator[Finding]:
    checks: dict[Table, Callable[[RowMapping], bool]] = {
        problems: _is_problem,
        silicons: lambda row: silicon_record(row).key == row["key"],  # type: ignore[arg-type]
        toolchains: lambda row: codec.toolchain_from_json(loads(row["record"])).key == row["key"],
        compiles: _is_report,
    }
    for table, holds in checks.items():
        wrong = [
            row["id"]
            for rows in batches(connection, table)
            for row in rows
            if not _tried(holds, row)
        ]
        if wrong:
            yield _finding(table, "whose key is not their content's", wrong)


def _is_problem(row: RowMapping) -> bool:
    found = codec.problem_from_json(loads(row["record"]))
    return (found.key, found.tokens) == (row["key"], row["tokens"])


def _is_report(row: RowMapping) -> bool:
    found = codec.compile_from_json(loads(row["record"]))
    named = (row["key"], row["cubin_sha256"], row["target"])
    return (report_key(found), found.cubin_sha256, found.target) == named


def _tried(holds: Callable[[RowMapping], bool], row: RowMapping) -> bool:
    try:
        return holds(row)
    except (RubinTuneError, TypeError, ValueError, KeyError, AttributeError):
        # Whatever reading it says, it does not hold what it should.
        return False


# Trials and winners


@dataclass(slots=True)
class _Contents:
    """Reads texts that many rows share once."""

    configs: dict[str, bool] = field(default_factory=dict)

    def is_config(self, text: str) -> bool:
        if text not in self.configs:
            self.configs[text] = _reads(lambda: codec.config_from_json(loads(text)).key == text)
        return self.configs[text]

    def wrong(self, row: RowMapping) -> Iterator[str]:
        texts = [row["config"], row.get("default_config")]
        if not all(self.is_config(text) for text in texts if text is not None):
            yield "whose config cannot be read"
        if not _is_time(row["time_us"], row["low_us"], row["high_us"]):
            yield "whose time is no time that a launch can take"
        if "default_time_us" in row and not _is_time(row["default_time_us"], None, None):
            yield "whose default's time is no time that a launch can take"
        if row["evidence"] not in tuple(Evidence):
            yield "whose evidence is none"
        if not _reads(lambda: self._records(row)):
            yield "whose record cannot be read"

    def _records(self, row: RowMapping) -> bool:
        if "parts" in row:
            parts = loads(row["parts"])["units"]
            return all(self.is_config(dumps(config)) for _, config in parts)
        prediction, measurement, why = row["prediction"], row["measurement"], row["why"]
        if prediction is not None:
            codec.prediction_from_json(loads(prediction))
        if measurement is not None:
            codec.measurement_from_json(loads(measurement))
        return (why is None) != (row["time_us"] is None) and (why is None or why in tuple(Why))


def _contents(connection: Connection) -> Iterator[Finding]:
    for table in (trials, winners):
        contents = _Contents()
        wrong: dict[str, list[int]] = {}
        for rows in batches(connection, table):
            for row in rows:
                for what in contents.wrong(row):
                    wrong.setdefault(what, []).append(row["id"])
        yield from (_finding(table, what, ids) for what, ids in wrong.items())


def _is_time(time_us: float | None, low_us: float | None, high_us: float | None) -> bool:
    if time_us is None:
        return low_us is None and high_us is None
    if not (math.isfinite(time_us) and 0 < time_us <= _LONGEST_US):
        return False
    if low_us is None or high_us is None:
        return low_us is high_us
    slack = _ROUNDING * time_us
    return 0 < low_us <= time_us + slack and time_us - slack <= high_us < math.inf


def _reads(read: Callable[[], bool]) -> bool:
    try:
        return read()
    except (RubinTuneError, TypeError, ValueError, KeyError):
        return False


def _unfounded(connection: Connection) -> Iterator[Finding]:
    """Find winners of a GEMM whose own trial is gone."""
    lost = select(winners.c.id).where(
        winners.c.unit.in_(("gate_up", "down")), ~exists().where(is_of(winners.c.config))
    )
    ids = list(connection.execute(lost).scalars())
    if ids:
        yield _finding(winners, "whose trial is missing", ids, grave=False)


def _finding(table: Table, what: str, ids: list[int], *, grave: bool = True) -> Finding:
    return Finding(
        table=table.name, what=what, rows=len(ids), examples=tuple(ids[:_EXAMPLES]), grave=grave
    )
