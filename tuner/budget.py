"""When to stop, and what remains: seconds, trials, or an expected gain that is no longer worth it.

The rule of `--until`. Say n variants of a unit have been timed and m more would be next. If they came
in any order, the chance that the m hold a new best is m / (n + m), whatever the times' distribution;
and where times lie evenly near the best, a new best is half a spacing better, which we double and
take the mean spacing of the five fastest over the best time. Their product is the expected gain of a
table (a unit at a token count). A search that learns proposes better than any order would, and one
that started from ranks proposes worse: so the rule also wants that no table's best improved by more
than the threshold over the last max(16, n / 4) variants. It stops when both hold for every table, at
24 variants a unit at the earliest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from math import inf

from ..errors import InvalidInput
from ..search_spaces import Unit

LEAST_VARIANTS = 24
LEAST_WINDOW = 16
_FASTEST = 5
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(slots=True)
class _Table:
    """The times of one unit at one token count, in the order in which they came."""

    times_us: list[float] = field(default_factory=list)

    def expected_gain(self, more: int) -> float:
        """Return the chance of a new best among `more` variants times its likely size, as a share."""
        seen = [time_us for time_us in self.times_us if time_us < inf]
        fastest = nsmallest(_FASTEST, seen)
        if len(fastest) < _FASTEST:
            return inf
        spacing = (fastest[-1] - fastest[0]) / (_FASTEST - 1)
        return more / (len(self.times_us) + more) * spacing / fastest[0]

    def gained(self) -> float:
        """Return by which share the best improved over the last max(16, n / 4) variants."""
        window = max(LEAST_WINDOW, len(self.times_us) // 4)
        before = min(self.times_us[:-window], default=inf)
        now = min(self.times_us, default=inf)
        if before == inf:
            return inf if now < inf else 0.0
        return 1.0 - now / before


@dataclass(slots=True, kw_only=True)
class Enough:
    """Says when a search may stop.

    Args:
        until: The expected gain under which it may, as a share; None = never.
        units: Units that are searched: it goes on until each has its least number of variants.
    """

    until: float | None = None
    units: tuple[Unit, ...] = ()
    _tables: dict[tuple[Unit, int], _Table] = field(default_factory=dict)

    def note(self, unit: Unit, times_us: Mapping[int, float | None]) -> None:
        """Add one variant's times at every token count; None = it failed there."""
        for tokens, time_us in times_us.items():
            table = self._tables.setdefault((unit, tokens), _Table())
            table.times_us.append(inf if time_us is None else time_us)

    def expected_gain(self, more: int) -> float:
        """Return the largest expected gain of a table from `more` variants, as a share."""
        return max((t.expected_gain(more) for t in self._tables.values()), default=inf)

    def reached(self, more: int) -> bool:
        """Whether `more` variants a unit are not worth their time."""
        if self.until is None or not self._tables or more < 1:
            return False
        if not {unit for unit, _ in self._tables}.issuperset(self.units):
            return False
        if any(len(t.times_us) < LEAST_VARIANTS for t in self._tables.values()):
            return False
        quiet = all(t.gained() <= self.until for t in self._tables.values())
        return quiet and self.expected_gain(more) < self.until


@dataclass(slots=True, kw_only=True)
class Budget:
    """Seconds that a run may start new variants in.

    Args:
        seconds: None = no limit.
        started: Monotonic clock at which the run began.
    """

    seconds: float | None
    started: float

    @property
    def spent(self) -> bool:
        """Whether no new variant may be started."""
        return self.seconds is not None and self._elapsed() > self.seconds

    @property
    def left(self) -> str:
        """What remains, in words ("" without a limit)."""
        if self.seconds is None:
            return ""
        return f"{spell_seconds(max(0.0, self.seconds - self._elapsed()))} of the budget left"

    def _elapsed(self) -> float:
        return time.monotonic() - self.started


def parse_seconds(text: str | None, name: str = "budget") -> float | None:
    """Read a duration such as 90, 90s, 5m or 1.5h; `name` is what messages call it.

    Raises:
        InvalidInput: it is none.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None:
        raise InvalidInput(f"{name} is {text!r}: must be a duration such as 90s, 5m or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


def parse_share(text: str | None) -> float | None:
    """Read a percentage such as 0.5% as a share.

    Raises:
        InvalidInput: it is none.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if found is None:
        raise InvalidInput(f"until is {text!r}: must be a percentage such as 0.5%")
    return float(found[1]) / 100


def spell_seconds(seconds: float) -> str:
    """Return a duration for people: 42 s, 3 min 20 s, 1 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def progress_note(
    unit: Unit, best_us: Mapping[int, float], evidence: str, done: int, total: int, left: str
) -> str:
    """Return what progress says after a variant: best so far, its evidence, what remains.

    Args:
        unit: The variant's.
        best_us: Best time by token count.
        evidence: What the times are worth, in a word.
        done: Variants done, over all units.
        total: Variants of the whole run.
        left: What is left of the budget, in words.
    """
    said = [f"{done} of {total} variants", *([left] if left else [])]
    if best_us:
        tokens = max(best_us)
        said.insert(
            0, f"best {unit.value} at {tokens} tokens: {best_us[tokens]:.1f} us ({evidence})"
        )
    return "; ".join(said)
