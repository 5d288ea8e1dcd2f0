"""A sample of what was pruned or ranked low, timed all the same: how much does a search miss?

Points that are impossible (hard constraints, clamped duplicates, limits of the SM found in the compile
report) are never timed. What else a search does not reach was either pruned by a soft constraint (it
could run, and is thought not to win) or ranked low by the cost model before compiling. The sample is
half of each: of the pruned points, and of the worse half of the ranking (points whose best place, over
the token counts, is behind the median). Without soft constraints all of it is of the latter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from ..search_spaces import LaunchConfig, Space, Unit
from .choose import beats
from .evaluation import Outcome

# Variants a unit; two of 64 cost 3 % and over the sweeps of a week bound the rate well.
DEFAULT_AUDIT = 2
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a sample of pruned and low-ranked points showed.

    Attributes:
        timed: Sampled variants that have a time.
        misranked: Those faster, somewhere and by more than the tie band, than all that the search
            itself tried.
    """

    timed: int
    misranked: int

    @property
    def rate(self) -> float:
        """The share that was set aside though it wins (0 where nothing was timed)."""
        return self.misranked / self.timed if self.timed else 0.0

    @property
    def at_most(self) -> float:
        """Upper end of the one-sided 95 % interval of the rate (Clopper and Pearson)."""
        if self.misranked >= self.timed:
            return 1.0
        return float(beta.ppf(_CONFIDENCE, self.misranked + 1, self.timed - self.misranked))

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form."""
        return {
            "timed": self.timed,
            "misranked": self.misranked,
            "rate": self.rate,
            "at_most": self.at_most,
        }

    def __str__(self) -> str:
        """Say it for people."""
        return (
            f"audit: {self.misranked} of {self.timed} pruned or low-ranked points beat all others "
            f"({self.rate:.0%}; 95 %: at most {self.at_most:.0%})"
        )


def sample(
    space: Space,
    ranking: Mapping[int, Sequence[LaunchConfig]],
    seen: Collection[LaunchConfig],
    count: int,
    seed: int,
) -> list[LaunchConfig]:
    """Return up to `count` points to audit: pruned ones first, then low-ranked ones.

    Args:
        space: What was searched.
        ranking: For each token count all legal points, predicted fastest first.
        seen: Points that the search tried.
        count: Sample size.
        seed: Same seed, same sample.
    """
    pruned = list(space.doubted()) if count > 1 else []
    chosen = np.random.default_rng(seed).permutation(len(pruned))[: count // 2]
    doubted = [pruned[place] for place in sorted(chosen)]
    return [*doubted, *draw(ranking, seen, count - len(doubted), seed)]


def draw(
    ranking: Mapping[int, Sequence[LaunchConfig]],
    seen: Collection[LaunchConfig],
    count: int,
    seed: int,
) -> list[LaunchConfig]:
    """Return up to `count` unseen points of the worse half of a ranking, drawn evenly.

    Args:
        ranking: For each token count all legal points, predicted fastest first.
        seen: Points that the search tried.
        count: Sample size.
        seed: Same seed, same sample.
    """
    best: dict[LaunchConfig, int] = {}
    for ranked in ranking.values():
        for place, config in enumerate(ranked):
            best[config] = min(place, best.get(config, place))
    behind = sorted(best, key=lambda config: (best[config], config.key))[len(best) // 2 :]
    kept = [config for config in behind if config not in seen]
    chosen = np.random.default_rng(seed).permutation(len(kept))[:count]
    return [kept[place] for place in sorted(chosen)]


Outcomes = Mapping[Unit, Mapping[int, Mapping[LaunchConfig, Outcome]]]


def judge(outcomes: Outcomes, audited: Collection[tuple[Unit, LaunchConfig]]) -> Audit:
    """Compare the audited variants with everything else that was timed."""
    timed: set[tuple[Unit, LaunchConfig]] = set()
    misranked: set[tuple[Unit, LaunchConfig]] = set()
    for unit, tables in outcomes.items():
        for table in tables.values():
            others = [
                outcome
                for config, outcome in table.items()
                if (unit, config) not in audited and outcome.time_us is not None
            ]
            best = min(others, key=lambda o: o.time_us or 0.0, default=None)
            for config, outcome in table.items():
                if (unit, config) in audited and outcome.time_us is not None:
                    timed.add((unit, config))
                    if best is None or beats(outcome, best):
                        misranked.add((unit, config))
    return Audit(timed=len(timed), misranked=len(misranked))
