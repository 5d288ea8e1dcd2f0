"""The winners of an SQLite file for look-ups only: read-only, without SQLAlchemy.

A serving engine that names a database waits for this. It reads the same rows as `Store.winners`
and makes the same table (tests/db/test_light.py compares them); whatever it does not know (another
revision, a damaged file) it leaves to the store, which says what is wrong in words.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice
from operator import le
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import DatabaseRefused, InvalidInput
from . import codec
from .formats.json import rounded
from .frozen import FrozenDict
from .records import Evidence, Silicon
from .table_check import NEEDS, TABLE_SCHEMA, Document
from .table_file import (
    NO_NEEDS,
    Key,
    Needs,
    Place,
    layer_needs,
    problem_keys,
)

# Revisions whose winners these statements read.
READS = ("0001", "0002", "0003", "0004")
_REVISION = "SELECT version_num FROM rubin_tune_version"
_WINNERS = """
    SELECT kernel, unit, problem_id, silicon_id, config, evidence, time_us, compile_id, sweep_id
    FROM winners ORDER BY id
"""
_SWEEPS = "SELECT id, started_at FROM sweeps"
_PROBLEMS = """
    SELECT id, tokens, record FROM problems WHERE id IN (SELECT problem_id FROM winners)
"""
_SILICONS = """
    SELECT id, arch, sms, memory_bytes, shared_limit_bytes, power_limit_w FROM silicons
"""
_COMPILES = """
    SELECT id, record FROM compiles WHERE id IN (SELECT compile_id FROM winners)
"""
# A stored problem is canonical JSON, so its two counts stand first and last.
_CAPACITY, _TOKENS = '{"capacity":', ',"tokens":'
# Where these stand in a row of winners, after its place (kernel, unit, problem, silicon).
_CONFIG, _EVIDENCE, _, _REPORT, _SWEEP = range(4, 9)


def read_winners(path: Path) -> Document | None:
    """Return the table document of a database's winners; None = ask the store.

    Raises:
        DatabaseRefused: a record in it is not what its revision holds.
    """
    try:
        rows = _fetch(path)
    except sqlite3.Error:
        return None
    if rows is None:
        return None
    try:
        return rows.document()
    except (InvalidInput, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DatabaseRefused(
            f"database {str(path)!r} holds a record that cannot be read ({error}): restore a copy"
        ) from error


def _fetch(path: Path) -> _Rows | None:
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=30.0)) as connection:
        # One transaction: a sweep that ends meanwhile is seen whole or not at all.
        connection.execute("BEGIN")
        found = connection.execute(_REVISION).fetchall()
        if [revision for (revision,) in found] not in [[known] for known in READS]:
            return None
        return _Rows(
            winners=_oldest_first(
                connection.execute(_WINNERS).fetchall(),
                dict(connection.execute(_SWEEPS).fetchall()),
            ),
            problems=connection.execute(_PROBLEMS).fetchall(),
            silicons=connection.execute(_SILICONS).fetchall(),
            compiles=connection.execute(_COMPILES).fetchall(),
        )


def _oldest_first(rows: list[tuple[Any, ...]], began: dict[int, str]) -> list[tuple[Any, ...]]:
    """Put rows in the order in which their sweeps began, as they are unless databases were merged."""
    times = [began.get(row[_SWEEP], "") for row in rows]
    if all(map(le, times, islice(times, 1, None))):
        return rows
    return [row for _, _, row in sorted(zip(times, count(), rows, strict=False))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """What was read; each text that rows share is parsed once."""

    winners: list[tuple[Any, ...]]
    problems: list[tuple[int, int, str]]
    silicons: list[tuple[int, ...]]
    compiles: list[tuple[int, str]]

    def document(self) -> Document:
        """Return a document of the rows: whole, though not in the order that has a hash."""
        groups, reports = self._strongest(), self._needs()
        asked = layer_needs(groups, lambda row: (row[_SWEEP], reports.get(row[_REPORT], NO_NEEDS)))
        held = [
            sorted(zip(rows.items(), asked[place], strict=True)) for place, rows in groups.items()
        ]
        flat = [one for rows in held for one in rows]
        rows = [row for (_, row), _ in flat]
        needs = [need for _, need in flat]
        texts, evidence, times = (
            [row[at] for row in rows] for at in (_CONFIG, _EVIDENCE, _EVIDENCE + 1)
        )
        kinds, numbers = _kinds(dict.fromkeys(texts))
        known = {need: number for number, need in enumerate(dict.fromkeys(needs))}
        letters = {int(one): one.word[0] for one in Evidence}
        problems = {problem: number for number, problem in enumerate({p for _, _, p in groups})}
        return {
            "schema": TABLE_SCHEMA,
            "configs": kinds,
            "needs": {name: [need[i] for need in known] for i, name in enumerate(NEEDS)},
            "problems": [dict(problem) for problem in problems],
            "groups": [
                {"op": op, "unit": unit, "problem": problems[problem], "rows": len(own)}
                for (op, unit, problem), own in zip(groups, held, strict=True)
            ],
            "rows": {
                "tokens": [tokens for (tokens, _), _ in flat],
                "config": [numbers[text] for text in texts],
                "evidence": "".join([letters[one] for one in evidence]),
                "needs": [known[need] for need in needs],
                "time_us": [rounded(time_us) for time_us in times],
            },
        }

    def _strongest(self) -> dict[Place, dict[int, tuple[Any, ...]]]:
        """Return the rows of each place: the strongest evidence, then the newest."""
        tokens = {number: count for number, count, _ in self.problems}
        keys = _Keys(
            records={number: record for number, _, record in self.problems},
            silicons={number: _silicon(*rest) for number, *rest in self.silicons},
        )
        known: dict[tuple[int, int], int] = {}
        groups: dict[tuple[str, str, int], dict[int, tuple[Any, ...]]] = {}
        # Once a row: what can be looked up is not made again.
        for row in self.winners:
            op, unit, problem, silicon, _, evidence, _, _, _ = row
            pair = problem, silicon
            number = known.get(pair)
            if number is None:
                number = known[pair] = keys.number(problem, silicon)
            rows = groups.get((op, unit, number))
            if rows is None:
                rows = groups[op, unit, number] = {}
            count = tokens[problem]
            held = rows.get(count)
            if held is None or evidence >= held[_EVIDENCE]:
                rows[count] = row
        found = list(keys.numbers)
        return {(op, unit, found[number]): rows for (op, unit, number), rows in groups.items()}

    def _needs(self) -> dict[int | None, Needs]:
        numbers = [number for number, _ in self.compiles]
        reports = _parsed(text for _, text in self.compiles)
        return dict(zip(numbers, map(_needs, reports), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """What look-ups are made by, numbered; token counts of one layer have one number."""

    records: dict[int, str]
    silicons: dict[int, Silicon]
    numbers: dict[FrozenDict[Key], int] = field(default_factory=dict)
    known: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def number(self, problem: int, silicon: int) -> int:
        """Return the number of a stored problem on a stored silicon."""
        record = self.records[problem]
        place = (*_layer(record), silicon)
        if place not in self.known:
            whole = codec.problem_from_json(codec.loads(record))
            keys = problem_keys(whole, self.silicons[silicon])
            # Two power limits of one GPU are looked up alike.
            self.known[place] = self.numbers.setdefault(keys, len(self.numbers))
        return self.known[place]


def _layer(record: str) -> tuple[str, str]:
    """Return what of a stored problem is the same at every token count, as text.

    Without a capacity of its own (then "") a problem is looked up alike at each.
    """
    head, _, rest = record.partition(",")
    layer, _, tail = rest.rpartition(_TOKENS)
    capacity, tokens = head[len(_CAPACITY) :], tail[:-1]
    if not (head.startswith(_CAPACITY) and capacity.isdigit() and tokens.isdigit()):
        return record, ""
    return layer, "" if capacity == tokens else capacity


def _kinds(texts: Iterable[str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return configs by their parameters, none in parts, and the number of each text."""
    kinds: dict[tuple[str, ...], list[tuple[str, tuple[Any, ...]]]] = {}
    known = list(texts)
    for text, config in zip(known, _parsed(known), strict=True):
        kinds.setdefault(tuple(config), []).append((text, tuple(config.values())))
    written, numbers = [], dict[str, int]()
    for names, rows in kinds.items():
        numbers.update({text: len(numbers) + i for i, (text, _) in enumerate(rows)})
        columns = map(list, zip(*(values for _, values in rows), strict=True))
        written.append({"count": len(rows), "values": dict(zip(names, columns, strict=True))})
    return written, numbers


def _parsed(texts: Iterable[str]) -> list[Any]:
    found: list[Any] = json.loads(f"[{','.join(texts)}]")
    if not set(map(type, found)) <= {dict}:
        raise InvalidInput("it is no object")
    return found


def _silicon(
    arch: int, sms: int, memory_bytes: int, shared_limit_bytes: int, power_limit_w: int
) -> Silicon:
    return Silicon(
        name="",
        arch=arch,
        sms=sms,
        memory_bytes=memory_bytes,
        shared_limit_bytes=shared_limit_bytes,
        power_limit_w=power_limit_w,
    )


def _needs(report: dict[str, Any]) -> Needs:
    shared, threads, registers, columns = (int(report[name]) for name in NEEDS)
    return shared, threads, registers, columns
