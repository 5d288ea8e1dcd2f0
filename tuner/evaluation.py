"""What an evaluator answers: how fast a variant is, and on what evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..db import (
    CompileReport,
    Evidence,
    Measurement,
    Prediction,
    Rejected,
    Silicon,
    Toolchain,
)
from ..kernels._kernel import Kernel
from ..search_spaces import LaunchConfig, Problem, Space, Unit
from ..topology import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a sweep is about, resolved: everything an evaluator may need to know."""

    kernel: Kernel
    gpu: Gpu
    problems: tuple[Problem, ...]
    seed: int

    def problem(self, tokens: int) -> Problem:
        """Return the problem of one token count of the ladder."""
        return next(p for p in self.problems if p.tokens == tokens)

    @property
    def ladder(self) -> tuple[int, ...]:
        """The token counts."""
        return tuple(p.tokens for p in self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one variant did at one token count: a time with its interval, or why not.

    `verify_s` are the seconds of its check (once for all token counts), `time_s` those of its timing.
    """

    config: LaunchConfig
    time_us: float | None = None
    interval_us: tuple[float, float] | None = None
    measurement: Measurement | None = None
    prediction: Prediction | None = None
    rejected: Rejected | None = None
    error: float | None = None
    verify_s: float | None = None
    time_s: float | None = None

    @classmethod
    def refused(cls, rejected: Rejected, error: float | None = None) -> Outcome:
        """Return the outcome of a config that left the search."""
        return cls(config=rejected.config, rejected=rejected, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOutcome:
    """Times of the glue that some configs need (None: not known) and of everything."""

    glue: Outcome | None
    layer: Outcome


Pair = Mapping[Unit, LaunchConfig]


class Evaluator(Protocol):
    """Times variants. Interchangeable: the sweep never asks which one it has."""

    evidence: Evidence
    policy: str
    compiles: bool
    """Whether variants are compiled before they are evaluated."""

    @property
    def silicon(self) -> Silicon:
        """What the times belong to."""
        ...

    @property
    def toolchain(self) -> Toolchain:
        """What made the code."""
        ...

    def hold(self, wait_s: float = 0.0, says: Callable[[str], None] | None = None) -> None:
        """Take what nobody else may use meanwhile, before anything of a sweep is written.

        Args:
            wait_s: Seconds to wait for it.
            says: Hears, once, what is waited for.

        Raises:
            GpuBusy: somebody has it for longer, or it cannot be timed on.
        """
        ...

    def warm_up(self) -> None:
        """Get ready, without waiting, while the search ranks and the first variants compile."""
        ...

    def restrict(self, space: Space, unit: Unit) -> Space:
        """Return the part of a space that this evaluator knows (a recording knows its grid)."""
        ...

    def stand_in(self, tokens: int, config: LaunchConfig) -> LaunchConfig:
        """Return the config to evaluate where a given one (a default) is meant."""
        ...

    def evaluate(
        self,
        unit: Unit,
        config: LaunchConfig,
        report: CompileReport | None,
        best_us: Mapping[int, float],
    ) -> Mapping[int, Outcome]:
        """Return the outcome at every token count; `best_us` lets a slow variant stop early."""
        ...

    def together(
        self, unit: Unit, tokens: int, configs: Sequence[LaunchConfig]
    ) -> Mapping[LaunchConfig, Outcome]:
        """Re-measure configs in one batch, interleaved, so that their times may be compared.

        The first is never dropped from the batch, however slow.
        """
        ...

    def layers(self, tokens: int, pairs: Sequence[Pair]) -> list[LayerOutcome]:
        """Return the whole layer's time with each choice of configs, measured together."""
        ...

    def close(self) -> None:
        """End worker processes."""
        ...
