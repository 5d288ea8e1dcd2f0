"""Traces of requests: when each arrived, how long its prompt and its answer are.

Three forms, plain or gzipped, UTF-8:

    azure     CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens (others are ignored);
              a time is ISO 8601 (without a zone: UTC) or seconds.
              Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md
    mooncake  JSON lines with timestamp (ms), input_length, output_length and, where prefix reuse is
              known, hash_ids (one a block of 512 prompt tokens; equal prefixes have equal ids).
              Source: kvcache-ai/Mooncake, FAST25-release/traces
    lengths   lines "PROMPT OUTPUT" or "PROMPT" (blanks or a comma between), no times.

What cannot be meant is refused in one sentence with its line and column. What can be repaired
without guessing is, and `Trace.repairs` says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptFile, InvalidInput
from ._trace_lines import numbered_lines, sha256_of, starts_with_mark
from ._trace_readers import BLOCK_TOKENS, EXPECTED, READERS, Rows

Integers = NDArray[np.int64]

# A trace is hours or days; a request a year after the first is a wrong unit or a wrong date.
MOST_SPAN_S = 366 * 86400.0
MOST_RATE = 1e6
FORMATS = tuple(EXPECTED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: The file's name.
        format: "azure", "mooncake" or "lengths".
        sha256: Hash of the file ("" for one made in memory).
        arrival_us: Microseconds after the first request [requests], ascending.
        prompt: Prompt tokens [requests].
        output: Generated tokens [requests]; 0 = nothing was generated.
        reusable: Leading prompt tokens that an earlier request had too [requests].
        repairs: What was mended in reading, one sentence each.
    """

    name: str
    arrival_us: Integers
    prompt: Integers
    output: Integers
    reusable: Integers
    format: str = "lengths"
    sha256: str = ""
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse arrays that are not of the same requests in order."""
        lengths = {len(a) for a in (self.arrival_us, self.prompt, self.output, self.reusable)}
        if len(lengths) != 1 or not len(self.prompt):
            raise InvalidInput(f"trace {self.name!r} has columns of {sorted(lengths)} requests")
        if (np.diff(self.arrival_us) < 0).any() or (self.prompt < 1).any():
            raise InvalidInput(f"trace {self.name!r} is out of order or has an empty prompt")

    def __len__(self) -> int:
        """Requests."""
        return len(self.prompt)

    @property
    def requests_per_s(self) -> float:
        """Requests a second between the first and the last (inf where all come at once)."""
        span = float(self.arrival_us[-1])
        return math.inf if span == 0 else (len(self) - 1) / span * 1e6

    def at_rate(self, rate: float) -> Trace:
        """Return the same requests arriving `rate` times as fast.

        Raises:
            InvalidInput: a rate that is not positive and finite.
        """
        if not (isinstance(rate, int | float) and 1 / MOST_RATE <= rate <= MOST_RATE):
            raise InvalidInput(
                f"rate is {rate!r}: must be a factor from {1 / MOST_RATE:g} to {MOST_RATE:g}"
            )
        return replace(self, arrival_us=np.rint(self.arrival_us / rate).astype(np.int64))

    def first(self, requests: int) -> Trace:
        """Return the first requests only.

        Raises:
            InvalidInput: fewer than one.
        """
        if requests < 1:
            raise InvalidInput(f"requests is {requests!r}: must be at least 1")
        columns = ("arrival_us", "prompt", "output", "reusable")
        return replace(self, **{name: getattr(self, name)[:requests] for name in columns})


def read_trace(path: str | Path, format: str = "auto") -> Trace:
    """Read a trace file.

    Args:
        path: The file, plain or gzipped.
        format: "azure", "mooncake", "lengths", or "auto": by the name (.csv, .jsonl, .txt), else
            by the first line.

    Raises:
        InvalidInput: no such file or format.
        CorruptFile: what the file holds cannot be meant.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"trace is {str(path)!r}: there is no such file")
    if format != "auto" and format not in FORMATS:
        raise InvalidInput(f"trace format is {format!r}: must be auto, {', '.join(FORMATS)}")
    rows = Rows(file, _guess(file) if format == "auto" else format)
    READERS[rows.format](rows)
    if not rows.prompts:
        raise rows.wrong("it has no request")
    return _finish(rows)


def _guess(path: Path) -> str:
    """Choose the reader by the name, else by the first line that is not blank."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    known = {".csv": "azure", ".jsonl": "mooncake", ".ndjson": "mooncake", ".txt": "lengths"}
    if suffix in known:
        return known[suffix]
    expected = "a trace (azure CSV, mooncake JSON lines, or lengths)"
    for _, line in numbered_lines(path, expected):
        word = line.strip()
        if word:
            if word.startswith("{"):
                return "mooncake"
            return "azure" if re.search("[A-Za-z]", word) else "lengths"
    raise CorruptFile(path, "it is empty", expected)


def _finish(rows: Rows) -> Trace:
    """Sort, shift to the first arrival, find reusable prefixes, and say what was repaired."""
    times = np.array(rows.times_us, dtype=np.int64)
    prompt, output = (np.array(c, dtype=np.int64) for c in (rows.prompts, rows.outputs))
    order = np.argsort(times, kind="stable")
    late = np.flatnonzero(times < np.maximum.accumulate(times))
    if starts_with_mark(rows.path):
        rows.repairs.append("a UTF-8 byte-order mark was skipped")
    if rows.blank:
        rows.repairs.append(f"{rows.blank} blank lines were skipped")
    if late.size:
        rows.repairs.append(
            f"{late.size} requests out of order were sorted by time "
            f"(the first on line {rows.lines[int(late[0])]})"
        )
    times = times[order] - times[order[0]]
    if times[-1] > MOST_SPAN_S * 1e6:
        # The jump is between two neighbours in time; the line of the first after it is named.
        at = order[int(np.argmax(np.diff(times))) + 1]
        raise rows.wrong(
            f"line {rows.lines[int(at)]}: the trace spans {times[-1] / 86400e6:.0f} days, "
            f"must be at most {MOST_SPAN_S / 86400:.0f} (a wrong unit?)"
        )
    return Trace(
        name=rows.path.name,
        format=rows.format,
        sha256=sha256_of(rows.path),
        arrival_us=times,
        prompt=prompt[order],
        output=output[order],
        reusable=_reusable(rows, prompt, order),
        repairs=tuple(rows.repairs),
    )


def _reusable(rows: Rows, prompt: Integers, order: Integers) -> Integers:
    """Return the leading tokens that earlier requests had; at least one token is always new.

    A block counts as reusable from the next request on, in every rank: the pool is unlimited and
    blocks enter it at once, so this is an upper bound.
    """
    reused = np.zeros(len(prompt), dtype=np.int64)
    if not rows.blocks:
        return reused
    ends = np.cumsum(np.array(rows.block_counts, dtype=np.int64))
    seen: set[int] = set()
    for place, request in enumerate(order):
        end = int(ends[request])
        blocks = rows.blocks[end - rows.block_counts[int(request)] : end]
        known = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        reused[place] = min(known * BLOCK_TOKENS, int(prompt[request]) - 1)
        seen.update(blocks)
    return reused
