"""Steps: how many tokens each rank brings to each step, kept as runs of equal steps.

A workload is saved as JSON lines (gzipped where the name ends in .gz), so that anyone can repeat a
replay. The first line says what it is:

    {"schema": "rubin-tune.steps/1", "ranks": 2, "records": 3, "sampled": false,
     "origin": {...}, "serving": {...}}

and each other line is a run of equal steps: `t` microseconds at which it starts, `us` assumed
microseconds of one step, `n` how many there are, `p` and `d` prefill and decode tokens per rank:

    {"t": 0, "us": 173840, "n": 1, "p": [8192, 300], "d": [0, 4]}
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptFile, InvalidInput
from ._trace_lines import numbered_lines
from .serving import MOST_RANKS, Serving

# 1: the first.
SCHEMA = "rubin-tune.steps/1"
KINDS = ("prefill", "decode", "all")
MOST_TOKENS = 1 << 31
_EXPECTED = f"a file of {SCHEMA}, as `rubin-tune workload steps` writes it"

Integers = NDArray[np.int64]
Counts = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A run of equal steps.

    Attributes:
        start_us: When the first begins, after the first request.
        duration_us: Assumed time of one of them.
        repeats: How many follow each other.
        prefill: Prompt tokens per rank.
        decode: Tokens of decoding sequences per rank, drafts included.
    """

    start_us: int
    duration_us: int
    repeats: int
    prefill: tuple[int, ...]
    decode: tuple[int, ...]

    @property
    def tokens_per_rank(self) -> tuple[int, ...]:
        """Tokens each rank brings (0 = an idle rank)."""
        return tuple(p + d for p, d in zip(self.prefill, self.decode, strict=True))

    @property
    def tokens(self) -> int:
        """Tokens over all ranks: what the ladder of a sweep speaks of."""
        return sum(self.prefill) + sum(self.decode)

    @property
    def idle_ranks(self) -> int:
        """Ranks without a token."""
        return sum(1 for count in self.tokens_per_rank if not count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where steps come from.

    Attributes:
        trace: Name of the trace file.
        format: Its format.
        sha256: Its hash.
        requests: Requests taken from it.
        rate: Factor by which their arrivals were quickened.
        reused_tokens: Prompt tokens that were not computed, thanks to the prefix cache.
        prompt_tokens: Prompt tokens of all requests.
        last_arrival_us: When the last request came.
        repairs: What was mended in reading the trace.
    """

    trace: str
    format: str
    sha256: str
    requests: int
    rate: float
    reused_tokens: int
    prompt_tokens: int
    last_arrival_us: int
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values of another type, which a file may hold."""
        object.__setattr__(self, "repairs", tuple(self.repairs))
        words = (self.trace, self.format, self.sha256, *self.repairs)
        counts = (self.requests, self.reused_tokens, self.prompt_tokens, self.last_arrival_us)
        if not all(isinstance(word, str) for word in words):
            raise InvalidInput(f"origin of steps holds {words!r:.80}: must be strings")
        if not all(_is_count(count, 0, 1 << 62) for count in counts):
            raise InvalidInput(f"origin of steps holds {counts!r:.80}: must be whole numbers")
        if type(self.rate) is not float or not 0 < self.rate < math.inf:
            raise InvalidInput(f"rate of steps is {self.rate!r:.40}: must be a positive number")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Steps in order, one row a run of equal steps.

    Attributes:
        origin: The trace.
        serving: The settings it was batched with.
        start_us: Start of each run [runs], ascending.
        duration_us: Assumed time of one step of it [runs].
        repeats: Steps in it [runs].
        prefill: Prompt tokens [runs, ranks].
        decode: Decode tokens [runs, ranks].
        sampled: Single steps were taken out, so starts do not follow each other.
    """

    origin: Origin
    serving: Serving
    start_us: Integers
    duration_us: Integers
    repeats: Integers
    prefill: Counts
    decode: Counts
    sampled: bool = False

    def __post_init__(self) -> None:
        """Refuse columns that are not of the same steps."""
        runs = len(self.repeats)
        shape = (runs, self.serving.ranks)
        if self.prefill.shape != shape or self.decode.shape != shape or not runs:
            raise InvalidInput(
                f"workload has tokens of shape {self.prefill.shape} and {self.decode.shape}: "
                f"must be {shape}, with at least one step"
            )
        if len(self.start_us) != runs or len(self.duration_us) != runs:
            raise InvalidInput(f"workload has {len(self.start_us)} starts: must be {runs}")

    def __len__(self) -> int:
        """Steps."""
        return int(self.repeats.sum())

    def __iter__(self) -> Iterator[Step]:
        """Yield each run of equal steps."""
        columns = (self.start_us, self.duration_us, self.repeats, self.prefill, self.decode)
        for start, duration, repeats, prefill, decode in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            yield Step(
                start_us=start,
                duration_us=duration,
                repeats=repeats,
                prefill=tuple(prefill),
                decode=tuple(decode),
            )

    @property
    def tokens_per_rank(self) -> Integers:
        """Tokens each rank brings [runs, ranks]."""
        return self.prefill.astype(np.int64) + self.decode

    @property
    def tokens(self) -> Integers:
        """Tokens over all ranks [runs]."""
        total: Integers = self.tokens_per_rank.sum(axis=1)
        return total

    def of_kind(self, kind: str) -> NDArray[np.bool_]:
        """Return which runs are prefill steps (a prompt token on any rank), decode steps, or all.

        Raises:
            InvalidInput: another kind.
        """
        if kind not in KINDS:
            raise InvalidInput(f"kind of step is {kind!r}: must be one of {', '.join(KINDS)}")
        prefill = np.asarray(self.prefill.any(axis=1))
        return {"prefill": prefill, "decode": ~prefill, "all": np.ones_like(prefill)}[kind]

    def sample(self, count: int, kind: str = "all", offset: float = 0.5) -> Workload:
        """Return single steps spread evenly over those of a kind.

        The i-th is the step at (i + offset) / count of the way, so another offset gives other
        steps of the same traffic (to hold some out).

        Raises:
            InvalidInput: more steps than there are, or an offset outside [0, 1).
        """
        runs = np.flatnonzero(self.of_kind(kind))
        ends = np.cumsum(self.repeats[runs])
        total = int(ends[-1]) if len(ends) else 0
        if not 1 <= count <= total:
            raise InvalidInput(f"steps is {count!r}: must be 1 to {total}, the {kind} steps found")
        if not 0 <= offset < 1:
            raise InvalidInput(f"offset is {offset!r}: must be at least 0 and below 1")
        places = np.floor((np.arange(count) + offset) * (total / count)).astype(np.int64)
        chosen = np.searchsorted(ends, places, side="right")
        into = places - (ends[chosen] - self.repeats[runs][chosen])
        rows = runs[chosen]
        return replace(
            self,
            start_us=self.start_us[rows] + into * self.duration_us[rows],
            duration_us=self.duration_us[rows],
            repeats=np.ones(count, dtype=np.int64),
            prefill=self.prefill[rows],
            decode=self.decode[rows],
            sampled=True,
        )


def save_steps(workload: Workload, path: str | Path) -> Path:
    """Write a workload (see the module's docstring) and return the path.

    The file appears whole or not at all.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    file = Path(path)
    header = {
        "schema": SCHEMA,
        "ranks": workload.serving.ranks,
        "records": len(workload.repeats),
        "sampled": workload.sampled,
        "origin": asdict(workload.origin),
        "serving": workload.serving.as_dict(),
    }
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise InvalidInput(f"cannot write {str(file)!r}: {error.strerror}") from error
    partial = Path(name)
    try:
        os.close(handle)
        # No time and no name within the gzip: the same steps give the same bytes.
        with (
            partial.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0)
            if file.suffix == ".gz"
            else contextlib.nullcontext(raw) as stream,
        ):
            stream.write(f"{json.dumps(header)}\n".encode())
            for step in workload:
                stream.write(_line(step).encode())
        partial.chmod(0o644)
        partial.replace(file)
    except OSError as error:
        raise InvalidInput(f"cannot write {str(file)!r}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return file


def _line(step: Step) -> str:
    return (
        f'{{"t": {step.start_us}, "us": {step.duration_us}, "n": {step.repeats}, '
        f'"p": {list(step.prefill)}, "d": {list(step.decode)}}}\n'
    )


def is_steps_file(path: str | Path) -> bool:
    """Whether a file says on its first line that it holds steps."""
    file = Path(path)
    if not file.is_file():
        return False
    # Not a trace reader's business to fail here: whoever reads the file next says what is wrong.
    with contextlib.suppress(CorruptFile):
        return any(f'"{SCHEMA}"' in line for _, line in _first_line(file))
    return False


def _first_line(path: Path) -> Iterator[tuple[int, str]]:
    for found in numbered_lines(path, _EXPECTED):
        yield found
        return


def load_steps(path: str | Path) -> Workload:
    """Read what `save_steps` wrote.

    Raises:
        InvalidInput: no such file.
        CorruptFile: a line that is not as described, or fewer lines than the header says.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"steps file is {str(path)!r}: there is no such file")
    lines = numbered_lines(file, _EXPECTED)
    header = _object(file, 1, next(lines, (1, ""))[1])
    origin, serving, records = _header(file, header)
    steps: list[Step] = []
    for number, line in lines:
        steps.append(_step(file, number, line, serving.ranks))
        if len(steps) > 1 and steps[-1].start_us < steps[-2].start_us:
            raise _wrong(file, f"line {number}: starts before the line above it")
    if len(steps) != records:
        raise _wrong(file, f"it has {len(steps)} records, and its first line says {records}")
    return replace(_workload(origin, serving, steps), sampled=header["sampled"] is True)


def _workload(origin: Origin, serving: Serving, steps: list[Step]) -> Workload:
    """Put records into columns."""
    columns = [(s.start_us, s.duration_us, s.repeats) for s in steps]
    start, duration, repeats = np.array(columns, dtype=np.int64).reshape(-1, 3).T
    shape = (len(steps), serving.ranks)
    return Workload(
        origin=origin,
        serving=serving,
        start_us=start,
        duration_us=duration,
        repeats=repeats,
        prefill=np.array([s.prefill for s in steps], dtype=np.int32).reshape(shape),
        decode=np.array([s.decode for s in steps], dtype=np.int32).reshape(shape),
    )


def _wrong(path: Path, why: str) -> CorruptFile:
    return CorruptFile(path, why, _EXPECTED)


def _object(path: Path, number: int, line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"line {number}: {error}") from error
    if not isinstance(found, dict):
        raise _wrong(path, f"line {number} is no object")
    return found


def _header(path: Path, found: dict[str, object]) -> tuple[Origin, Serving, int]:
    if found.get("schema") != SCHEMA:
        raise _wrong(path, f"line 1: schema is {found.get('schema')!r:.60}")
    serving, origin, records = (found.get(key) for key in ("serving", "origin", "records"))
    if not isinstance(serving, dict) or not isinstance(origin, dict) or type(records) is not int:
        raise _wrong(path, "line 1: has no serving, origin or records")
    if not isinstance(found.get("sampled"), bool):
        raise _wrong(path, f"line 1: sampled is {found.get('sampled')!r:.20}")
    try:
        settings = Serving.from_dict(serving)
        made = Origin(**origin)
    except (InvalidInput, TypeError) as error:
        raise _wrong(path, f"line 1: {error}") from error
    if found.get("ranks") != settings.ranks or settings.ranks > MOST_RANKS:
        raise _wrong(path, f"line 1: ranks is {found.get('ranks')!r:.20}, not {settings.ranks}")
    return made, settings, records


def _step(path: Path, number: int, line: str, ranks: int) -> Step:
    found = _object(path, number, line)
    if set(found) != {"t", "us", "n", "p", "d"}:
        raise _wrong(path, f"line {number}: keys are {sorted(found)}, must be t, us, n, p, d")
    for key, least in (("t", 0), ("us", 1), ("n", 1)):
        if not _is_count(found[key], least, 1 << 62):
            raise _wrong(path, f"line {number}: {key!r} is {found[key]!r:.40}")
    for key in ("p", "d"):
        row = found[key]
        if not isinstance(row, list) or len(row) != ranks:
            raise _wrong(path, f"line {number}: {key!r} must be a list of {ranks} numbers")
        if not all(_is_count(count, 0, MOST_TOKENS - 1) for count in row):
            raise _wrong(path, f"line {number}: {key!r} must hold whole numbers of tokens")
    step = Step(
        start_us=found["t"],  # type: ignore[arg-type]  # checked above
        duration_us=found["us"],  # type: ignore[arg-type]
        repeats=found["n"],  # type: ignore[arg-type]
        prefill=tuple(found["p"]),  # type: ignore[arg-type]
        decode=tuple(found["d"]),  # type: ignore[arg-type]
    )
    if not step.tokens:
        raise _wrong(path, f"line {number}: no rank has a token")
    return step


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
