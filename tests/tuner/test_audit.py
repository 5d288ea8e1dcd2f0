"""The audit: low-ranked points only, the same for a seed, and a rate with its interval."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rubin_tune.search_spaces import Constraint, LaunchConfig, Parameter, Space, Unit
from rubin_tune.tuner.audit import Audit, draw, judge, sample
from rubin_tune.tuner.evaluation import Outcome

POINTS = [LaunchConfig.of(n=n) for n in range(40)]
RANKING = {1: POINTS, 64: [*POINTS[20:22], *POINTS[:20], *POINTS[22:]]}


def test_the_sample_is_of_the_worse_half_at_every_token_count() -> None:
    drawn = draw(RANKING, (), 10, seed=0)
    assert len(set(drawn)) == 10
    assert all(config.integer("n") >= 18 and config not in POINTS[20:22] for config in drawn)


def test_the_sample_is_the_same_for_a_seed_and_new() -> None:
    seen = POINTS[:30]
    assert draw(RANKING, seen, 4, seed=3) == draw(RANKING, seen, 4, seed=3)
    assert not set(draw(RANKING, seen, 40, seed=3)) & set(seen)


def test_no_sample_of_nothing() -> None:
    assert draw(RANKING, (), 0, seed=0) == []
    assert draw(RANKING, POINTS, 3, seed=0) == []


def test_half_of_the_sample_breaks_soft_constraints_only() -> None:
    axes = (Parameter(name="n", values=tuple(range(40))),)
    hard = Constraint(name="hard", reason="", on=("n",), holds=lambda p: int(p["n"]) < 30)
    soft = Constraint(
        name="soft", reason="", on=("n",), holds=lambda p: int(p["n"]) < 20, soft=True
    )
    space = Space(name="toy", parameters=axes, constraints=(hard, soft))
    assert space.doubted() == tuple(POINTS[20:30])
    drawn = sample(space, {1: space.legal()}, (), 6, seed=0)
    assert len({*drawn}) == 6
    assert [config in space.doubted() for config in drawn] == [True] * 3 + [False] * 3
    plain = replace(space, constraints=(hard,))
    assert plain.doubted() == ()
    assert len(sample(plain, {1: plain.legal()}, (), 6, seed=0)) == 6


def outcome(place: int, time_us: float | None) -> Outcome:
    return Outcome(config=POINTS[place], time_us=time_us)


def judged(*times: float | None) -> Audit:
    """Judge audited points of these times at one of two token counts, against a best of 100 us."""
    near = {POINTS[0]: outcome(0, 100.0), POINTS[1]: outcome(1, 120.0)}
    far = {POINTS[0]: outcome(0, 100.0)}
    for place, time_us in enumerate(times, start=10):
        near[POINTS[place]] = outcome(place, time_us)
        far[POINTS[place]] = outcome(place, 500.0 if time_us else None)
    audited = {(Unit.DOWN, POINTS[place]) for place in range(10, 10 + len(times))}
    return judge({Unit.DOWN: {1: near, 64: far}}, audited)


def test_a_point_that_wins_anywhere_beyond_the_tie_band_was_misranked() -> None:
    assert judged(150.0, 99.5, 98.0) == Audit(timed=3, misranked=1)


def test_a_point_that_failed_is_not_timed() -> None:
    assert judged(None, 110.0) == Audit(timed=1, misranked=0)


@pytest.mark.parametrize(
    ("timed", "misranked", "rate", "at_most"),
    [(0, 0, 0.0, 1.0), (4, 0, 0.0, 0.527), (100, 0, 0.0, 0.0295), (4, 4, 1.0, 1.0), (10, 1, 0.1, 0.394)],
)  # fmt: skip
def test_the_rate_has_an_upper_bound(
    timed: int, misranked: int, rate: float, at_most: float
) -> None:
    found = Audit(timed=timed, misranked=misranked)
    assert found.rate == pytest.approx(rate)
    assert found.at_most == pytest.approx(at_most, abs=1e-3)
