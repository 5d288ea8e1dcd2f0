"""Readers of the three trace forms (traces.py describes them): lines to columns, unsorted."""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..errors import CorruptFile
from ._trace_lines import numbered_lines

# Above any context window served today (10 M tokens); below it a product with 2^32 fits in 64 bits.
MOST_LENGTH = 1 << 24
MOST_REQUESTS = 10_000_000
BLOCK_TOKENS = 512
EXPECTED = {
    "azure": "a CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens",
    "mooncake": "JSON lines with timestamp (ms), input_length, output_length",
    "lengths": "lines of PROMPT OUTPUT or PROMPT, in tokens",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_COLUMNS = ("timestamp", "contexttokens", "generatedtokens")


@dataclass(slots=True)
class Rows:
    """Columns as they are read, in the order of the file."""

    path: Path
    format: str
    lines: array[int] = field(default_factory=lambda: array("q"))
    times_us: array[int] = field(default_factory=lambda: array("q"))
    prompts: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    blocks: array[int] = field(default_factory=lambda: array("q"))
    block_counts: array[int] = field(default_factory=lambda: array("q"))
    blank: int = 0
    repairs: list[str] = field(default_factory=list)

    def wrong(self, why: str) -> CorruptFile:
        """Return the error to raise."""
        return CorruptFile(self.path, why, EXPECTED[self.format])

    def add(self, line: int, time_us: int, prompt: int, output: int) -> None:
        """Take one request.

        Raises:
            CorruptFile: one too many.
        """
        if len(self.prompts) >= MOST_REQUESTS:
            raise self.wrong(f"line {line}: more than {MOST_REQUESTS} requests")
        self.lines.append(line)
        self.times_us.append(time_us)
        self.prompts.append(prompt)
        self.outputs.append(output)


def _full_lines(rows: Rows) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(rows.path, EXPECTED[rows.format]):
        if line and not line.isspace():
            yield number, line
        else:
            rows.blank += 1


def _read_azure(rows: Rows) -> None:
    lines = _full_lines(rows)
    first = next(lines, None)
    if first is None:
        raise rows.wrong("it is empty")
    fields = [word.strip() for word in _split(rows, *first)]
    names = [word.lower() for word in fields]
    missing = [name for name in _COLUMNS if names.count(name) != 1]
    if missing:
        state = "twice" if missing[0] in names else "missing"
        raise rows.wrong(
            f"line {first[0]}: column {missing[0]!r} is {state} "
            f"(the line has {', '.join(fields[:8])!r:.120})"
        )
    at, prompt, output = (names.index(name) for name in _COLUMNS)
    for number, line in lines:
        cells = line.split(",") if '"' not in line else _split(rows, number, line)
        if len(cells) != len(names):
            raise rows.wrong(f"line {number} has {len(cells)} columns: must be {len(names)}")

        def place(column: int, number: int = number) -> str:
            return f"line {number}, column {column + 1} ({fields[column]})"

        rows.add(
            number,
            _moment(rows, cells[at], place, at),
            _length(rows, cells[prompt], place, prompt, 1),
            _length(rows, cells[output], place, output, 0),
        )


def _split(rows: Rows, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise rows.wrong(f"line {number}: {error}") from error


Place = Callable[[int], str]


def _moment(rows: Rows, text: str, place: Place, column: int) -> int:
    """Return microseconds since 1970, or since the trace's zero where times are seconds."""
    word = text.strip()
    try:
        if "-" in word[1:] and ":" in word:
            time = datetime.fromisoformat(word)
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            return (time - _EPOCH) // _MICROSECOND
        return _microseconds(float(word), 1e6)
    except (ValueError, OverflowError) as error:
        raise rows.wrong(f"{place(column)}: {word!r:.40} is no time") from error


def _microseconds(value: float, scale: float) -> int:
    if not (math.isfinite(value) and 0 <= value * scale < 2**62):
        raise ValueError
    return round(value * scale)


def _length(rows: Rows, text: str, place: Place, column: int, least: int) -> int:
    word = text.strip()
    # A length of 2^24 has 8 digits; the bound keeps int() from reading a megabyte of them.
    if re.fullmatch(r"[0-9]{1,9}", word, re.ASCII) and least <= int(word) <= MOST_LENGTH:
        return int(word)
    raise rows.wrong(
        f"{place(column)}: {word!r:.40} must be a whole number from {least} to {MOST_LENGTH}"
    )


def _read_mooncake(rows: Rows) -> None:
    for number, line in _full_lines(rows):
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            why = f"line {number}, column {error.colno}: {error.msg}"
            raise rows.wrong(why) from error
        except (ValueError, RecursionError) as error:
            raise rows.wrong(f"line {number}: {error}") from error
        if not isinstance(found, dict):
            raise rows.wrong(f"line {number}, column 1: {line.strip()!r:.40} is no object")
        prompt = _number(rows, number, found, "input_length", 1)
        rows.add(number, _stamp(rows, number, found), prompt,
                 _number(rows, number, found, "output_length", 0))  # fmt: skip
        ids = _hash_ids(rows, number, found, prompt)
        rows.blocks.extend(ids)
        rows.block_counts.append(len(ids))
    if not rows.prompts and not rows.blank:
        raise rows.wrong("it is empty")


def _value(rows: Rows, number: int, found: dict[str, object], key: str) -> object:
    if key not in found:
        raise rows.wrong(f"line {number}: key {key!r} is missing")
    return found[key]


def _number(rows: Rows, number: int, found: dict[str, object], key: str, least: int) -> int:
    value = _value(rows, number, found, key)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, int) and whole and least <= value <= MOST_LENGTH:
        return value
    raise rows.wrong(
        f"line {number}, key {key!r}: {value!r:.40} must be a whole number "
        f"from {least} to {MOST_LENGTH}"
    )


def _stamp(rows: Rows, number: int, found: dict[str, object]) -> int:
    value = _value(rows, number, found, "timestamp")
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _microseconds(float(value), 1e3)
    except (ValueError, OverflowError):
        pass  # said below, as for every other value that is no time
    raise rows.wrong(f"line {number}, key 'timestamp': {value!r:.40} is no time in milliseconds")


def _hash_ids(rows: Rows, number: int, found: dict[str, object], prompt: int) -> list[int]:
    ids = found.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 2**63 for i in ids):
        raise rows.wrong(f"line {number}, key 'hash_ids': {ids!r:.40} must be a list of numbers")
    most = -(-prompt // BLOCK_TOKENS)
    if len(ids) > most:
        raise rows.wrong(
            f"line {number}, key 'hash_ids': {len(ids)} blocks of {BLOCK_TOKENS} tokens, "
            f"but a prompt of {prompt} has {most}"
        )
    return ids


def _read_lengths(rows: Rows) -> None:
    for number, line in _full_lines(rows):
        cells = re.split(r"\s*,\s*|\s+", line.strip())
        if len(cells) > 2:
            raise rows.wrong(f"line {number} has {len(cells)} columns: must be 1 or 2")

        def place(column: int, number: int = number) -> str:
            return f"line {number}, column {column + 1}"

        prompt = _length(rows, cells[0], place, 0, 1)
        output = _length(rows, cells[1], place, 1, 0) if len(cells) == 2 else 1
        rows.add(number, len(rows.prompts) * 1_000_000, prompt, output)
    if not rows.prompts and not rows.blank:
        raise rows.wrong("it is empty")
    rows.repairs.append("no arrival times: requests are spaced evenly, one a second")


READERS: dict[str, Callable[[Rows], None]] = {
    "azure": _read_azure,
    "mooncake": _read_mooncake,
    "lengths": _read_lengths,
}
