"""Recorded search spaces of any kernel: what Kernel Tuner and KTT leave behind.

Unlike a landscape (landscape.py) such a space has parameters of its own kernel and no problem of
ours: it serves to compare ways of searching, to test pruning, and as seeds where its parameters
happen to be those of one of our kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidInput
from ..search_spaces import LaunchConfig, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFacts:
    """What the compiler said about one point, and its block.

    Attributes:
        registers: Registers a thread.
        shared_bytes: Shared memory a block.
        spill_bytes: Spilled bytes a thread.
        threads: Threads a block.
        blocks: Blocks launched.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPoint:
    """One point: a time, or why it has none.

    Attributes:
        config: The point, parameters spelled as in the file.
        time_us: The recorder's own figure; None where it failed.
        samples_us: Raw samples where they were kept.
        status: Why it failed, in the recorder's words ("" = it did not).
        code: Compiler facts where they were kept.
    """

    config: LaunchConfig
    time_us: float | None
    samples_us: tuple[float, ...] = ()
    status: str = ""
    code: CodeFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpace:
    """A whole recording.

    Attributes:
        source: "kernel_tuner" or "ktt".
        kernel: The kernel's name.
        device: The GPU's name, "" where the file does not say.
        parameters: Names and values, in the file's order.
        points: Every recorded point once.
    """

    source: str
    kernel: str
    device: str
    parameters: tuple[tuple[str, tuple[Value, ...]], ...]
    points: tuple[RecordedPoint, ...]

    def __post_init__(self) -> None:
        """Refuse a recording of nothing, or with one point twice."""
        if not self.points:
            raise InvalidInput("it holds no points")
        if len({point.config for point in self.points}) != len(self.points):
            raise InvalidInput("it holds a point twice")

    @property
    def timed(self) -> tuple[RecordedPoint, ...]:
        """Points with a time, fastest first."""
        kept = (p for p in self.points if p.time_us is not None)
        return tuple(sorted(kept, key=lambda p: (p.time_us or 0.0, p.config.key)))

    @property
    def varying(self) -> tuple[str, ...]:
        """Names of the parameters that have more than one value."""
        return tuple(name for name, values in self.parameters if len(values) > 1)
