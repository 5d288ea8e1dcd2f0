"""The winners of an SQLite file for look-ups only: read-only, without SQLAlchemy.

A serving engine that names a database waits for this. It reads the same rows as `Store.winners`
and makes the same table (tests/db/test_light.py compares them); whatever it does not know (another
revision, a damaged file) it leaves to the store, which says what is wrong in words.
"""

from __future__ import annotations

import gc
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count, islice
from operator import and_, eq, itemgetter, le
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import DatabaseRefused, InvalidInput
from . import codec
from .formats.json import rounded
from .frozen import FrozenDict
from .records import Evidence, Silicon
from .table_check import ASSUMED, MOST_TOKENS, NEEDS, TABLE_SCHEMA, Document
from .table_file import LAYER_GEMMS, NO_NEEDS, Key, Needs, needs_of_layer, problem_keys

# Revisions whose winners these statements read.
READS = ("0001", "0002", "0003", "0004", "0005")
_REVISION = "SELECT version_num FROM rubin_tune_version"
_WINNERS = """
    SELECT kernel, unit, problem_id, silicon_id, config, evidence, time_us, compile_id, sweep_id,
        {edge}
    FROM winners ORDER BY id
"""
# Since which revision winners have an edge.
_EDGES_SINCE = "0005"
_EDGE = "edge_tokens, edge_evidence"
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
_COLUMNS, _SWEEP = 11, 8
_ASSUMED = ASSUMED[0]
# A place's number and a token count are one integer.
_TOKEN_BITS = MOST_TOKENS.bit_length()
_TOKEN_MASK = (1 << _TOKEN_BITS) - 1
_UNITS = ("down", "gate_up")
_FIRST, _NEXT, _DOWN, _UP = '{"down.', ',"', ',"down.', ',"gate_up.'


def read_winners(path: Path) -> Document | None:
    """Return the table document of a database's winners; None = ask the store.

    Raises:
        DatabaseRefused: a record in it is not what its revision holds.
    """
    with _no_collections():
        return _read(path)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: rows make no cycles, and a look at each of them takes a tenth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read(path: Path) -> Document | None:
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
        edge = _EDGE if found[0][0] >= _EDGES_SINCE else "NULL, NULL"
        return _Rows(
            winners=_oldest_first(
                connection.execute(_WINNERS.format(edge=edge)).fetchall(),
                dict(connection.execute(_SWEEPS).fetchall()),
            ),
            problems=connection.execute(_PROBLEMS).fetchall(),
            silicons=connection.execute(_SILICONS).fetchall(),
            compiles=connection.execute(_COMPILES).fetchall(),
        )


def _oldest_first(rows: list[tuple[Any, ...]], began: dict[int, str]) -> list[tuple[Any, ...]]:
    """Put rows in the order in which their sweeps began, as they are unless databases were merged."""
    if len(began) == 1:
        return rows
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
        columns = list(zip(*self.winners, strict=True)) or [()] * _COLUMNS
        ops, units, problems, silicons, texts, evidence, times, reports, sweeps, ends, grounds = (
            columns
        )
        keys = self._keys()
        counts = {number: tokens for number, tokens, _ in self.problems}
        tokens = _tokens(list(map(counts.__getitem__, problems)))
        named = list(zip(ops, units, keys.numbered(problems, silicons), strict=True))
        places = {place: number for number, place in enumerate(dict.fromkeys(named))}
        # Rows of one place lie together, by their tokens.
        spots = [
            places[place] << _TOKEN_BITS | count
            for place, count in zip(named, tokens, strict=True)
        ]
        chosen = _strongest(spots, evidence)
        kept = _picker(chosen)
        known = self._needs()
        needs = _layer_needs(
            places,
            kept(spots),
            kept(sweeps),
            [known.get(report, NO_NEEDS) for report in kept(reports)],
        )
        kinds, configs = _configs(dict.fromkeys(kept(texts)))
        need_numbers = {need: number for number, need in enumerate(dict.fromkeys(needs))}
        letters = {int(one): one.word[0] for one in Evidence}
        same = _followed(kept(spots), kept(sweeps))
        lasts = [
            tokens if own and tokens else 0 for own, tokens in zip(same, kept(ends), strict=True)
        ]
        held = Counter([spot >> _TOKEN_BITS for spot in kept(spots)])
        return {
            "schema": TABLE_SCHEMA,
            "configs": kinds,
            "needs": {name: [need[i] for need in need_numbers] for i, name in enumerate(NEEDS)},
            "problems": [dict(problem) for problem in keys.numbers],
            "groups": [
                {"op": op, "unit": unit, "problem": problem, "rows": held[place]}
                for (op, unit, problem), place in places.items()
            ],
            "rows": {
                "tokens": list(kept(tokens)),
                "config": list(map(configs.__getitem__, kept(texts))),
                "evidence": "".join(map(letters.__getitem__, kept(evidence))),
                "needs": list(map(need_numbers.__getitem__, needs)),
                "time_us": list(map(rounded, kept(times))),
                "last": lasts,
                "edge": "".join(
                    [
                        letters[ground] if last else _ASSUMED
                        for last, ground in zip(lasts, kept(grounds), strict=True)
                    ]
                ),
            },
        }

    def _keys(self) -> _Keys:
        return _Keys(
            records={number: record for number, _, record in self.problems},
            silicons={number: _silicon(*rest) for number, *rest in self.silicons},
        )

    def _needs(self) -> dict[int | None, Needs]:
        numbers = [number for number, _ in self.compiles]
        reports = _parsed(text for _, text in self.compiles)
        return dict(zip(numbers, map(_needs, reports), strict=True))


def _tokens(counts: list[int]) -> list[int]:
    if counts and not 1 <= min(counts) <= max(counts) <= MOST_TOKENS:
        raise InvalidInput(f"tokens must be 1 to {MOST_TOKENS}")
    return counts


def _strongest(spots: Sequence[int], evidence: Sequence[int]) -> list[int]:
    """Return the row of each spot, in their order: the strongest evidence, then the newest."""
    order = sorted(range(len(spots)), key=spots.__getitem__)
    if len(set(spots)) == len(spots):
        return order
    kept: dict[int, int] = {}
    for i in order:
        held = kept.get(spots[i])
        if held is None or evidence[i] >= evidence[held]:
            kept[spots[i]] = i
    return list(kept.values())


def _picker(chosen: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return what picks these of a column, in C."""
    if len(chosen) > 1:
        return itemgetter(*chosen)
    return lambda column: tuple(column[i] for i in chosen)


def _followed(spots: Sequence[int], sweeps: Sequence[int]) -> list[bool]:
    """Return whether each row's sweep also found the next row of its place: then its edge stands."""
    places = [spot >> _TOKEN_BITS for spot in spots]
    alike = [list(map(eq, column, islice(column, 1, None))) for column in (places, sweeps)]
    return [*map(and_, *alike), False][: len(spots)]


def _layer_needs(
    places: Mapping[tuple[str, str, int], int],
    spots: Sequence[int],
    sweeps: Sequence[int],
    own: Sequence[Needs],
) -> list[Needs]:
    """Return the needs of every row; a layer without needs of its own has its GEMMs'."""
    found = list(own)
    where = {spot: row for row, spot in enumerate(spots)}
    gemms = {
        place: [places.get((op, gemm, problem), -1) for gemm in LAYER_GEMMS]
        for (op, unit, problem), place in places.items()
        if unit == "layer"
    }
    for row, need in enumerate(own):
        if need == NO_NEEDS and (spot := spots[row]) >> _TOKEN_BITS in gemms:
            tokens = spot & _TOKEN_MASK
            places_of_gemms = gemms[spot >> _TOKEN_BITS]
            rows = [where.get(place << _TOKEN_BITS | tokens) for place in places_of_gemms]
            parts = [None if i is None else (sweeps[i], own[i]) for i in rows]
            found[row] = needs_of_layer(sweeps[row], parts)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Keys:
    """What look-ups are made by, numbered; token counts of one layer have one number."""

    records: dict[int, str]
    silicons: dict[int, Silicon]
    numbers: dict[FrozenDict[Key], int] = field(default_factory=dict)
    known: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def numbered(self, problems: Sequence[int], silicons: Sequence[int]) -> list[int]:
        """Return the number of each row's problem."""
        pairs = list(zip(problems, silicons, strict=True))
        found = {pair: self._number(*pair) for pair in dict.fromkeys(pairs)}
        return list(map(found.__getitem__, pairs))

    def _number(self, problem: int, silicon: int) -> int:
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


def _configs(texts: Iterable[str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return configs as a document holds them, and the number of each text.

    A layer's text is parted before it is parsed: most of its parts are GEMMs' texts.
    """
    known: dict[str, str] = {}
    split = {text: _split(text, known) for text in texts}
    plain = dict.fromkeys(part for text, parts in split.items() for part in parts or (text,))
    kinds, numbers = _kinds(plain)
    joint = {text: parts for text, parts in split.items() if parts}
    if joint:
        columns = zip(*joint.values(), strict=True)
        parts = {u: [numbers[one] for one in c] for u, c in zip(_UNITS, columns, strict=True)}
        kinds.append({"count": len(joint), "parts": parts})
    first = len(numbers)
    numbers.update({text: first + i for i, text in enumerate(joint)})
    return kinds, numbers


def _split(text: str, known: dict[str, str]) -> tuple[str, ...]:
    """Return the configs of a layer's GEMMs, as text; nothing where one is written otherwise.

    A quote inside a JSON text is escaped, so after a comma it begins a name.

    Args:
        text: Canonical JSON: every name of the down part, then every name of the gate_up part.
        known: Parts that were seen, and what was made of them ("" = they are none).
    """
    down, found, up = text.partition(_UP)
    if not found:
        return ()
    own = known.get(down)
    if own is None:
        plain = down.startswith(_FIRST) and down.count(_NEXT) == down.count(_DOWN)
        own = known[down] = f'{{"{down[len(_FIRST) :].replace(_DOWN, _NEXT)}}}' if plain else ""
    other = known.get(up)
    if other is None:
        plain = up.count(_NEXT) == up.count(_UP)
        other = known[up] = f'{{"{up.replace(_UP, _NEXT)}' if plain else ""
    return (own, other) if own and other else ()


def _kinds(texts: Iterable[str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return plain configs by their parameters, and the number of each text."""
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
