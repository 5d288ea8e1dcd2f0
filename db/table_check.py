"""Whether a document is a table of winners ("rubin-tune.table/3").

Columns are checked whole, by functions that run in C: a table of 10,000 rows is checked in less time
than it takes to parse. Everything is checked before anything is used, so that a look-up inside a
server cannot fail over what a file holds.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, compress, count, islice, pairwise
from typing import Any

# History: 1 = rows as objects, 2 = columns, 3 = edges of buckets; 1 and 2 were never released.
TABLE_SCHEMA = "rubin-tune.table/3"
COLUMNS = ("tokens", "config", "evidence", "needs", "time_us", "last", "edge")
NEEDS = ("shared_bytes", "threads", "registers", "tmem_columns")
EVIDENCE = {"m": "measured", "p": "predicted", "r": "recorded"}
ASSUMED = "assumed"
# What an edge between two token counts stands on; the assumed one is at their geometric mean.
EDGES = {**EVIDENCE, "a": ASSUMED}
# Ends the last bucket; no engine's step has more tokens.
MOST_TOKENS = 1 << 20
MOST_ROWS = 1_000_000
Document = dict[str, Any]

# Names may end in file names, so none can leave a folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MOST_NAMES = 256
_MOST_TEXT = 1000
_MOST_INTEGER = 1 << 53
_KINDS = {"configs": list, "needs": dict, "problems": list, "groups": list}


def wrong_document(document: object) -> str:
    """Say what is wrong with a document, "" where nothing is; its hash is not looked at."""
    if not isinstance(document, dict):
        return f"it is {_kind(document)}, not an object"
    if document.get("schema") != TABLE_SCHEMA:
        return f"its schema is {document.get('schema')!r:.60}"
    if not isinstance(document.get("content_hash", ""), str):
        return "its content_hash is no text"
    for name, kind in _KINDS.items():
        if not isinstance(document.get(name), kind):
            return f"{name!r} is {_kind(document.get(name))}, not a {kind.__name__}"
    return (
        _wrong_rows(document.get("rows"))
        or _wrong_needs(document["needs"])
        or _wrong_configs(document["configs"])
        or _wrong_problems(document["problems"])
        or _wrong_numbers(document)
        or _wrong_groups(document)
    )


def is_sorted(document: Document) -> bool:
    """Whether a document is in the one order that has a hash, everything in it used."""
    rows, needs = document["rows"], document["needs"]
    places = [_place(document, group) for group in document["groups"]]
    return (
        list(needs) == list(NEEDS)
        and _ascends(list(zip(*needs.values(), strict=True)))
        and _ascends([plain_text(p) for p in document["problems"]])
        and _configs_sorted(document["configs"], rows["config"])
        and _ascends(places)
        and rows_ascend(document)
        and len(set(rows["needs"])) == len(needs[NEEDS[0]])
        and len({group["problem"] for group in document["groups"]}) == len(document["problems"])
    )


def _configs_sorted(kinds: Sequence[Mapping[str, Any]], used: Sequence[int]) -> bool:
    plain = [kind for kind in kinds if "values" in kind]
    joint = [kind for kind in kinds if "parts" in kind]
    names = [(0, *kind["values"]) for kind in plain] + [(1, *kind["parts"]) for kind in joint]
    parts = chain.from_iterable(chain.from_iterable(kind["parts"].values()) for kind in joint)
    return (
        kinds == [*plain, *joint]
        and _ascends(names)
        and all(_ascends(one[1:]) for one in names)
        and all(_ascends(list(map(str, rows_of(kind)))) for kind in plain)
        and all(_ascends(list(zip(*kind["parts"].values(), strict=True))) for kind in joint)
        and len({*used, *parts}) == sum(kind["count"] for kind in kinds)
        and not any(_parts_of(kind["values"]) for kind in plain)
    )


def _parts_of(names: Mapping[str, Any]) -> bool:
    """Whether a config of these parameters is one that is written in parts."""
    split = [name.partition(".") for name in names]
    return bool(split) and all(unit and own for unit, _, own in split)


def rows_ascend(document: Document) -> bool:
    """Whether each group's tokens ascend: one may fall only where a group begins."""
    tokens = document["rows"]["tokens"]
    falls = compress(count(1), map(operator.ge, tokens, islice(tokens, 1, None)))
    begins = {start for start, _ in ranges(document["groups"])}
    return begins.issuperset(falls)


def ranges(groups: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return where the rows of each of a document's groups begin and end."""
    return list(pairwise(accumulate((group["rows"] for group in groups), initial=0)))


def rows_of(kind: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Iterate over the configs of one kind, the values of each in the order of its names."""
    if not kind["values"]:
        return iter([()] * kind["count"])
    return zip(*kind["values"].values(), strict=True)


def plain_text(value: object) -> str:
    """Return a value as canonical JSON: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _wrong_rows(rows: object) -> str:
    if not isinstance(rows, dict):
        return "it has no 'rows'"
    for name in COLUMNS:
        kind = str if name in ("evidence", "edge") else list
        if not isinstance(rows.get(name), kind):
            return f"its rows lack a column {name!r}"
    lengths = sorted({len(rows[name]) for name in COLUMNS})
    if len(lengths) > 1:
        return f"its columns have {' and '.join(map(str, lengths))} rows"
    if lengths[0] > MOST_ROWS:
        return f"it has more than {MOST_ROWS} rows"
    return _wrong_values_of_rows(rows) if rows["tokens"] else ""


def _wrong_values_of_rows(rows: Mapping[str, Any]) -> str:
    for name in ("tokens", "config", "needs", "last"):
        if set(map(type, rows[name])) != {int}:
            return f"the column {name!r} holds something else than integers"
    for name, letters in (("evidence", EVIDENCE), ("edge", EDGES)):
        strange = set(rows[name]).difference(letters)
        if strange:
            return f"{name} {min(strange)!r} is none of {', '.join(letters)}"
    if min(rows["last"]) < 0 or max(rows["last"]) > MOST_TOKENS:
        return f"the column 'last' holds something else than 0 to {MOST_TOKENS}"
    if rows["last"].count(0) != rows["edge"].count("a"):
        return "the columns 'last' and 'edge' do not assume the same edges"
    least, most = min(rows["tokens"]), max(rows["tokens"])
    if least < 1 or most > MOST_TOKENS:
        return f"a row has tokens {least if least < 1 else most}: must be 1 to {MOST_TOKENS}"
    times = rows["time_us"]
    if not set(map(type, times)) <= {int, float} or not _are_finite(times):
        return "the column 'time_us' holds something else than finite numbers"
    return "" if min(times) >= 0 else f"a row has time_us {min(times)}: must not be negative"


def _are_finite(numbers: Sequence[float]) -> bool:
    try:
        # A sum is not finite where one of them is not.
        return math.isfinite(sum(numbers))
    except OverflowError:
        return False


def _wrong_needs(needs: Mapping[str, object]) -> str:
    lengths = set()
    for name in NEEDS:
        column = needs.get(name)
        if not isinstance(column, list) or not set(map(type, column)) <= {int}:
            return f"needs lack a column {name!r} of integers"
        if column and not 0 <= min(column) <= max(column) < _MOST_INTEGER:
            return f"{name!r} of needs is out of range: must be at least 0"
        lengths.add(len(column))
    if len(lengths) > 1 or len(needs) != len(NEEDS):
        return f"needs must be {', '.join(NEEDS)}, of equal length"
    return ""


def _wrong_configs(kinds: Sequence[object]) -> str:
    known = 0
    for kind in kinds:
        if not isinstance(kind, dict):
            return f"configs hold {_kind(kind)}"
        number, columns = kind.get("count"), kind.get("values", kind.get("parts"))
        if type(number) is not int or not 1 <= number <= MOST_ROWS:
            return f"configs have count {number!r:.40}: must be 1 to {MOST_ROWS}"
        if not isinstance(columns, dict) or ("parts" in kind and not columns):
            return "configs have neither values nor parts"
        why = _wrong_names("a config", list(columns))
        for name, column in columns.items():
            why = why or _wrong_column(name, column, number)
            if not why and "values" not in kind:
                why = _wrong_parts(name, column, known)
        if why:
            return why
        known += number if "values" in kind else 0
    return _wrong_order(kinds)


def _wrong_order(kinds: Sequence[Any]) -> str:
    """Parts point at plain configs by their number, so these stand first."""
    plain = ["values" in kind for kind in kinds]
    return "" if plain == sorted(plain, reverse=True) else "configs in parts must stand last"


def _wrong_parts(name: str, column: Sequence[Any], known: int) -> str:
    if set(map(type, column)) != {int} or not 0 <= min(column) <= max(column) < known:
        return f"the part {name!r} of configs points past the {known} that there are"
    return ""


def _wrong_column(name: str, values: object, number: int) -> str:
    if not isinstance(values, list) or len(values) != number:
        return f"{name!r} of configs has not {number} values"
    kinds = set(map(type, values))
    if not kinds <= {int, str, bool}:
        return f"{name!r} of configs holds something else than integers, words and true or false"
    if int not in kinds:
        return ""
    numbers = values if len(kinds) == 1 else [v for v in values if type(v) is int]
    if not -_MOST_INTEGER < min(numbers) <= max(numbers) < _MOST_INTEGER:
        return f"{name!r} of configs holds an integer that no kernel takes"
    return ""


def _wrong_problems(problems: Sequence[object]) -> str:
    if not set(map(type, problems)) <= {dict}:
        return "problems hold something else than objects"
    found: Sequence[dict[str, Any]] = problems  # type: ignore[assignment]
    for names in set(map(tuple, found)):
        why = _wrong_names("a problem", names)
        if why:
            return why
    values = list(chain.from_iterable(problem.values() for problem in found))
    if not set(map(type, values)) <= {int, float, str, bool}:
        return "a problem holds something else than numbers, short texts and true or false"
    if any(type(v) is float and not math.isfinite(v) for v in values):
        return "a problem holds a number that is not finite"
    if any(type(v) is int and not -_MOST_INTEGER < v < _MOST_INTEGER for v in values):
        return "a problem holds an integer that is out of range"
    if max((len(v) for v in values if type(v) is str), default=0) > _MOST_TEXT:
        return f"a problem holds a text of more than {_MOST_TEXT} characters"
    return ""


def _wrong_names(what: str, names: Sequence[object]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{what} has {len(names)} names: must have at most {_MOST_NAMES}"
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return f"{what} names {name!r:.60}: must be letters, digits, '_', '.' and '-'"
    return ""


def _wrong_numbers(document: Document) -> str:
    rows = document["rows"]
    known = {
        "config": sum(kind["count"] for kind in document["configs"]),
        "needs": len(document["needs"][NEEDS[0]]),
    }
    for name, number in known.items():
        column = rows[name]
        if column and not 0 <= min(column) <= max(column) < number:
            return f"the column {name!r} points past the {number} that there are"
    return ""


def _wrong_groups(document: Document) -> str:
    problems, left = len(document["problems"]), len(document["rows"]["tokens"])
    for group in document["groups"]:
        if not isinstance(group, dict):
            return f"groups hold {_kind(group)}"
        number, rows = group.get("problem"), group.get("rows")
        if type(number) is not int or not 0 <= number < problems:
            return f"a group has problem {number!r:.60}: must be a number below {problems}"
        if type(rows) is not int or not 1 <= rows <= left:
            return f"a group has rows {rows!r:.60}: must be 1 to the {left} that are left"
        left -= rows
    if left:
        return f"{left} rows belong to no group"
    named = [group.get(name) for group in document["groups"] for name in ("op", "unit")]
    if not set(map(type, named)) <= {str}:
        return "a group has no op or no unit"
    return _wrong_names("a group", sorted(set(named))) or _wrong_places(document)


def _wrong_places(document: Document) -> str:
    if len({_place(document, group) for group in document["groups"]}) < len(document["groups"]):
        return "two groups are of one op, unit and problem"
    if rows_ascend(document):
        return ""
    tokens = document["rows"]["tokens"]
    for start, end in ranges(document["groups"]):
        if len(set(tokens[start:end])) < end - start:
            return "two rows of a group have the same tokens"
    return ""


def _place(document: Document, group: Mapping[str, Any]) -> tuple[str, str, int]:
    return group["op"], group["unit"], group["problem"]


def _ascends(values: Sequence[Any]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
