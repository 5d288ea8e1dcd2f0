"""Rounds in which the GPU was throttled are taken again, and the clocks of all that count are noted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .gpu_state import Monitor

# Repeats in a row after which a GPU is taken for one that stays throttled (a low power limit): it is timed
# as it is from then on.
REPEATS = 3

_T = TypeVar("_T")


@dataclass(slots=True)
class Watch:
    """Looks at the GPU after every round of one comparison.

    Args:
        monitor: None = nothing is known: no round is repeated, and clocks are 0.

    Attributes:
        last_mhz: SM clock after the last round.
        low_mhz: Lowest after a round that counts.
        high_mhz: Highest.
    """

    monitor: Monitor | None
    last_mhz: int = 0
    low_mhz: int = 0
    high_mhz: int = 0
    _cools: bool = True

    def calm(self, take: Callable[[], _T]) -> _T:
        """Return a round that was not throttled, or the last of `REPEATS` more."""
        taken = take()
        state = None if self.monitor is None else self.monitor.glance()
        for _ in range(REPEATS if self._cools else 0):
            if self.monitor is None or state is None or not state.throttled_by:
                break
            taken, state = take(), self.monitor.glance()
        if state is not None:
            self._cools = self._cools and not state.throttled_by
            self._note(state.clock_mhz)
        return taken

    def _note(self, clock_mhz: int) -> None:
        self.last_mhz = clock_mhz
        self.low_mhz = min(self.low_mhz or clock_mhz, clock_mhz)
        self.high_mhz = max(self.high_mhz, clock_mhz)
