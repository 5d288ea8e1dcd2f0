"""Recorded landscapes: a grid of vLLM's fused-MoE kernel, one JSON line a timed point.

The first line is a header (shape, formats, the grid with the order of its parameters, token
counts), each further line one (GEMM, tokens, config). Files may be gzipped. Configs leave in
lower case.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar, cast

from ..errors import CorruptFile, InvalidInput
from ..search_spaces import LaunchConfig, Layout, MoEShape, Problem, Unit

# A landscape of 20,000 points takes 4 MB; this is where a gzip bomb or a wrong file is told apart.
MOST_BYTES = 512 << 20
MOST_LINE_BYTES = 1 << 20
MOST_NUMBER = 1e15
_EXPECTED = "a landscape: a JSON header line, then one JSON line a point (.jsonl or .jsonl.gz)"
_UNITS = {1: Unit.GATE_UP, 2: Unit.DOWN}
# Engine's spelling -> ours.
_NAMES = {
    "BLOCK_SIZE_M": "block_m",
    "BLOCK_SIZE_N": "block_n",
    "BLOCK_SIZE_K": "block_k",
    "GROUP_SIZE_M": "group_m",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
_DTYPES = {"bf16": "bf16", "fp8": "fp8_block128"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What was recorded.

    Attributes:
        shape: The whole layer (experts over all ranks).
        layout: How its experts are sharded.
        gpu: The GPU's name, as the driver says it.
        triton: Version that made the code.
        torch: Version that launched it.
        grid: Parameter names (lower case) and their values, in the order of a row's config.
        tokens: Token counts that the file says it holds.
    """

    shape: MoEShape
    layout: Layout
    gpu: str
    triton: str
    torch: str
    grid: tuple[tuple[str, tuple[int, ...]], ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point.

    Attributes:
        unit: Which GEMM.
        tokens: Tokens over all ranks.
        config: The point.
        shared_bytes: Shared memory a block (0 = not recorded).
        registers: Registers a thread, None where it never ran.
        spill_bytes: Spilled bytes a thread, None where it never ran.
        compile_s: Seconds that the compilation took.
        samples_us: Times; empty where it failed.
        rough: Whether the time is one rough figure of a hopeless point.
        status: Why it failed, in the recorder's words ("" = it did not).
    """

    unit: Unit
    tokens: int
    config: LaunchConfig
    shared_bytes: int = 0
    registers: int | None = None
    spill_bytes: int | None = None
    compile_s: float = 0.0
    samples_us: tuple[float, ...] = ()
    rough: bool = False
    status: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A whole recording."""

    header: Header
    rows: tuple[Row, ...]

    @property
    def gpu(self) -> str:
        """The GPU's name, as the driver says it."""
        return self.header.gpu

    @property
    def triton(self) -> str:
        """Version of triton that made the code."""
        return self.header.triton

    @property
    def torch(self) -> str:
        """Version of torch that launched it."""
        return self.header.torch

    @property
    def tokens(self) -> tuple[int, ...]:
        """Token counts with at least one row, ascending."""
        return tuple(sorted({row.tokens for row in self.rows}))

    def mismatch(self, problem: Problem) -> str:
        """Say how the recording's problem differs from another, "" where it does not.

        The model's name and the word for the layout do not matter; what one rank computes does.
        """
        shape, layout = self.header.shape, self.header.layout
        pairs = (
            ("experts", shape.experts, problem.shape.experts),
            ("local experts", layout.local_experts(shape.experts), problem.local_experts),
            ("top_k", shape.top_k, problem.shape.top_k),
            ("hidden", shape.hidden, problem.shape.hidden),
            ("local intermediate", shape.intermediate, problem.local_intermediate),
            ("weights", shape.weights, problem.shape.weights),
            ("activations", shape.activations, problem.shape.activations),
            ("routing", "uniform", problem.routing.name),
        )
        wrong = (
            f"it has {n} {own}, the problem {other}" for n, own, other in pairs if own != other
        )
        return next(wrong, "")


def read_landscape(path: Path) -> Landscape:
    """Read and check a whole landscape.

    Raises:
        CorruptFile: it is missing, truncated or not a landscape; the message names the line.
    """
    header, rows = read_rows(path)
    kept = tuple(rows)
    if not kept:
        raise CorruptFile(path, "it has a header and no rows", _EXPECTED)
    return Landscape(header=header, rows=kept)


def read_rows(path: Path) -> tuple[Header, Iterator[Row]]:
    """Return the header and an iterator that reads and checks the rows as they are asked for.

    Raises:
        CorruptFile: at once for the header, while iterating for a row.
    """
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise CorruptFile(path, "it is empty", _EXPECTED)
    header = _checked(path, 1, first, _header)
    return header, _rows(path, header, lines)


def _rows(path: Path, header: Header, lines: Iterator[bytes]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=2):
        if line.strip():
            yield _checked(path, number, line, lambda found: _row(found, header))


def _lines(path: Path) -> Iterator[bytes]:
    """Yield raw lines; turn every way in which a file can be broken into CorruptFile."""
    number, total = 0, 0
    try:
        with _open(path) as stream:
            while line := stream.readline(MOST_LINE_BYTES + 1):
                number, total = number + 1, total + len(line)
                if len(line) > MOST_LINE_BYTES:
                    raise CorruptFile(path, f"line {number} is over 1 MiB long", _EXPECTED)
                if total > MOST_BYTES:
                    why = f"it holds over {MOST_BYTES >> 20} MiB (line {number})"
                    raise CorruptFile(path, why, _EXPECTED)
                yield line
    except FileNotFoundError as error:
        raise CorruptFile(path, "no such file", _EXPECTED) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        why = f"its gzip stream breaks off or is damaged after line {number}"
        raise CorruptFile(path, why, _EXPECTED) from error
    except OSError as error:
        raise CorruptFile(path, error.strerror or str(error), _EXPECTED) from error


def _open(path: Path) -> IO[bytes]:
    """Open a file, through gzip where its first bytes say so, whatever its name."""
    with path.open("rb") as probe:
        zipped = probe.read(2) == b"\x1f\x8b"
    if zipped:
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


class _Wrong(Exception):
    """What is wrong with one line."""


_T = TypeVar("_T")
_Line = Mapping[str, object]


def _checked(path: Path, number: int, line: bytes, read: Callable[[_Line], _T]) -> _T:
    try:
        found = json.loads(line, parse_constant=_no_constant)
        if not isinstance(found, dict):
            raise _Wrong("is no JSON object")
        return read(found)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, f"line {number} is not JSON", _EXPECTED) from error
    except (_Wrong, InvalidInput) as error:
        raise CorruptFile(path, f"line {number}: {error}", _EXPECTED) from error


def _no_constant(text: str) -> float:
    raise _Wrong(f"holds {text}: must be finite numbers")


def _header(line: _Line) -> Header:
    if line.get("kind") != "header":
        raise _Wrong("is no header (kind is not 'header')")
    experts, held = _integer(line, "global_E", 1), _integer(line, "E", 1)
    dtype = _text(line, "dtype")
    if dtype not in _DTYPES:
        raise _Wrong(f"dtype is {dtype!r}: must be {' or '.join(_DTYPES)}")
    layout = _layout(experts, held)
    shape = MoEShape(
        model=_text(line, "shape"),
        experts=experts,
        top_k=_integer(line, "topk", 1),
        hidden=_integer(line, "H", 1),
        intermediate=_integer(line, "I", 1),
        weights=_DTYPES[dtype],
        activations=_DTYPES[dtype],
    )
    return Header(
        shape=shape,
        layout=layout,
        gpu=_text(line, "gpu"),
        triton=_text(line, "triton"),
        torch=_text(line, "torch"),
        grid=_grid(line),
        tokens=_counts("Ms", line.get("Ms")),
    )


def _layout(experts: int, held: int) -> Layout:
    ranks = -(-experts // held)
    layout = Layout() if ranks == 1 else Layout(kind="ep", ranks=ranks)
    if held > experts or layout.local_experts(experts) != held:
        raise _Wrong(f"E is {held} of global_E {experts}: no number of ranks gives that")
    return layout


def _grid(line: _Line) -> tuple[tuple[str, tuple[int, ...]], ...]:
    grid = line.get("grid")
    if not isinstance(grid, dict) or not grid:
        raise _Wrong("grid is missing or empty")
    unknown = [name for name in grid if name not in _NAMES]
    if unknown:
        raise _Wrong(f"grid names {unknown[0]!r}: known are {', '.join(_NAMES)}")
    return tuple((_NAMES[name], _counts(name, values)) for name, values in grid.items())


def _row(line: _Line, header: Header) -> Row:
    gemm = _integer(line, "g", 1)
    if gemm not in _UNITS:
        raise _Wrong(f"g is {gemm}: must be 1 or 2")
    samples = _samples(line)
    status = str(line.get("st") or "")
    if not samples and not status:
        raise _Wrong("has neither times (t) nor a reason why not (st)")
    return Row(
        unit=_UNITS[gemm],
        tokens=_integer(line, "M", 1),
        config=_config(line, header),
        shared_bytes=_maybe(line, "sh") or 0,
        registers=_maybe(line, "regs"),
        spill_bytes=_maybe(line, "spill"),
        compile_s=_seconds("ct", line.get("ct") or 0.0),
        samples_us=samples,
        rough=bool(line.get("rough", 0)),
        status=status,
    )


def _config(line: _Line, header: Header) -> LaunchConfig:
    values = _counts("c", line.get("c"))
    if len(values) != len(header.grid):
        raise _Wrong(f"c has {len(values)} values: the grid has {len(header.grid)} parameters")
    for value, (name, allowed) in zip(values, header.grid, strict=True):
        if value not in allowed:
            raise _Wrong(f"{name} is {value}: the grid has {', '.join(map(str, allowed))}")
    return LaunchConfig(tuple((name, v) for v, (name, _) in zip(values, header.grid, strict=True)))


def _samples(line: _Line) -> tuple[float, ...]:
    values = line.get("t", [])
    if not isinstance(values, list):
        raise _Wrong(f"t is {values!r}: must be a list of times")
    times = tuple(_seconds("t", value) for value in values)
    if not all(times):
        raise _Wrong("t holds 0: times must be positive")
    return times


def _seconds(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # An integer too large for a float is refused below, like infinity.
        number = float(value) if abs(value) < MOST_NUMBER else math.inf
        if math.isfinite(number) and number >= 0:
            return number
    raise _Wrong(f"{name} holds {value!r}: must be a number of at least 0")


def _counts(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or not values:
        raise _Wrong(f"{name} is missing or empty: must be a list of positive integers")
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise _Wrong(f"{name} holds {value!r}: must be positive integers")
    return tuple(values)


def _maybe(line: _Line, name: str) -> int | None:
    """Return an integer that the recorder could not always read."""
    return None if line.get(name) is None else _integer(line, name, 0)


def _integer(line: _Line, name: str, least: int) -> int:
    value = line.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        said = repr(value) if name in line else "missing"
        raise _Wrong(f"{name} is {said}: must be an integer of at least {least}")
    return value


def _text(line: _Line, name: str) -> str:
    value = line.get(name)
    if not isinstance(value, str) or not value:
        raise _Wrong(f"{name} is {'missing' if value is None else repr(value)}: must be a word")
    return value
