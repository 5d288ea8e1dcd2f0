"""A race: losers leave by an interval, the kept stay, equals end it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rubin_tune.tuner.race import FIRST_ROUNDS, hopeless, race


class Track:
    """Contestants with known means, one percent of noise, and drift that all of a round share."""

    def __init__(self, means: Sequence[float], noise: float = 0.01, drift: float = 0.0) -> None:
        self.means, self.noise, self.drift = means, noise, drift
        self.rng = np.random.default_rng(3)

    def sample(self, alive: Sequence[int]) -> list[float]:
        shared = 1 + self.drift * self.rng.standard_normal()
        spread = 1 + self.noise * self.rng.standard_normal(len(alive))
        return [self.means[i] * shared * s for i, s in zip(alive, spread, strict=True)]


def test_losers_leave_after_the_first_rounds_and_the_winner_runs_on() -> None:
    samples = race(4, Track([100, 101, 150, 300]).sample, rounds=12, until_equal=False)
    assert len(samples[0]) == 12
    assert len(samples[2]) <= FIRST_ROUNDS + 2
    assert len(samples[3]) <= FIRST_ROUNDS + 1


def test_the_kept_never_leave() -> None:
    samples = race(3, Track([100, 300, 310]).sample, rounds=9, kept=(1,), until_equal=False)
    assert [len(s) == 9 for s in samples] == [True, True, False]


def test_a_race_of_equals_ends_early() -> None:
    samples = race(3, Track([100, 100.1, 300], noise=0.0005).sample, rounds=40)
    assert len(samples[0]) < 20


def test_a_kept_loser_does_not_hold_up_the_end() -> None:
    samples = race(2, Track([100, 200], noise=0.001).sample, rounds=40, kept=(1,))
    assert len(samples[1]) == FIRST_ROUNDS


def test_drift_that_a_round_shares_decides_nothing() -> None:
    samples = race(2, Track([100, 103], noise=0.001, drift=0.2).sample, rounds=12)
    assert len(samples[1]) < 12


@pytest.mark.parametrize("seed", range(20))
def test_the_fastest_of_many_is_not_lost(seed: int) -> None:
    track = Track([100, *np.linspace(102, 140, 30)])
    track.rng = np.random.default_rng(seed)
    samples = race(31, track.sample, rounds=20)
    assert int(np.argmin([np.mean(s) for s in samples])) == 0


def test_few_samples_show_a_clear_loser_and_spare_a_near_one() -> None:
    assert hopeless([110.0, 111.0, 110.5], 100.0)
    assert not hopeless([101.0, 104.0, 99.0], 100.0)
    assert not hopeless([90.0, 91.0, 90.5], 100.0)
