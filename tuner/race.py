"""Racing: sample all contestants in rounds, drop those that cannot win, stop when the rest are equal.

A contestant is dropped when the one-sided confidence interval of its mean difference from the leader,
over the rounds that both ran, lies above zero. The level is shared by Bonferroni over contestants, as
many can be wrongly dropped (Hoeffding races: Maron and Moore, NIPS 1993; here with Student's t, since samples
of a kernel's time spread by a few percent and are near normal). Differences within a round are free of
whatever drifts slower than a round: clocks, temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache

import numpy as np
from scipy.stats import t as student

# Samples of each contestant before any is dropped.
FIRST_ROUNDS = 3
# Chance that any contestant is wrongly dropped, in one check.
LEVEL = 0.05
# Survivors whose means differ by less than this are equal (tuner/choose.py: the tie band).
EQUAL = 0.01

Round = Callable[[Sequence[int]], Sequence[float]]


def race(
    count: int,
    sample: Round,
    *,
    rounds: int,
    kept: Collection[int] = (),
    until_equal: bool = True,
) -> list[list[float]]:
    """Return every contestant's samples.

    Args:
        count: Contestants, at least 1.
        sample: Takes one round: one sample of each contestant named, in the same order.
        rounds: Rounds at most.
        kept: Contestants that are never dropped (a default, an incumbent).
        until_equal: Whether to stop once every survivor is known to equal the leader (or, of the
            kept, to be slower); else survivors run all rounds.
    """
    samples: list[list[float]] = [[] for _ in range(count)]
    alive = list(range(count))
    for number in range(1, rounds + 1):
        for contestant, taken in zip(alive, sample(alive), strict=True):
            samples[contestant].append(taken)
        if number < FIRST_ROUNDS:
            continue
        leader = min(alive, key=lambda i: float(np.mean(samples[i])))
        bounds = {i: _bounds(samples[i], samples[leader], count) for i in alive if i != leader}
        slower = {i for i, (low, _) in bounds.items() if low > 0}
        alive = [i for i in alive if i not in slower or i in kept]
        equal = EQUAL * float(np.mean(samples[leader]))
        told = [i for i, (_, high) in bounds.items() if high < equal or i in slower]
        if until_equal and len(told) == len(bounds):
            break
    return samples


def hopeless(samples: Sequence[float], best: float) -> bool:
    """Say whether few samples show that a variant is slower than the best time known (one-sided 95 %)."""
    values = np.asarray(samples)
    half = _critical(len(values), 2) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half > best


def _bounds(own: Sequence[float], leader: Sequence[float], count: int) -> tuple[float, float]:
    """Return the interval of a contestant's mean difference from the leader."""
    shared = min(len(own), len(leader))
    differences = np.asarray(own[:shared]) - np.asarray(leader[:shared])
    half = _critical(shared, count) * float(differences.std(ddof=1)) / math.sqrt(shared)
    middle = float(differences.mean())
    return middle - half, middle + half


@lru_cache(maxsize=1024)
def _critical(samples: int, count: int) -> float:
    return float(student.ppf(1 - LEVEL / max(count - 1, 1), samples - 1))
