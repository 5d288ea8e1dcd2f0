"""When a search may stop: never too early, surely in the end, by the rule that is written down."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.search_spaces import Unit
from rubin_tune.tuner.budget import (
    LEAST_VARIANTS,
    Budget,
    Enough,
    progress_note,
    spell_seconds,
)

UNIT = Unit.DOWN


def stopped_at(times: list[float], until: float | None, step: int = 8) -> int | None:
    """Return after how many variants the rule says stop, None = never."""
    rule = Enough(until=until)
    for place, time_us in enumerate(times, start=1):
        rule.note(UNIT, {1: time_us})
        if place % step == 0 and rule.reached(step):
            return place
    return None


def test_without_a_threshold_nothing_stops() -> None:
    assert stopped_at([100.0] * 500, None) is None


@given(st.lists(st.floats(10, 1e4), min_size=LEAST_VARIANTS - 1, max_size=LEAST_VARIANTS - 1))
def test_nothing_stops_before_the_least_number_of_variants(times: list[float]) -> None:
    assert stopped_at(times, 0.9, step=1) is None


def test_a_search_that_still_gains_goes_on() -> None:
    gaining = [1000.0 * 0.99**n for n in range(400)]
    assert stopped_at(gaining, 0.01) is None


def test_a_search_that_found_nothing_for_long_stops() -> None:
    rng = np.random.default_rng(1)
    times = (100 * (1 + rng.random(4000) ** 0.5)).tolist()
    place = stopped_at(times, 0.005)
    assert place is not None
    best = min(times[:place])
    assert best / min(times) < 1.2


def test_a_smaller_threshold_stops_no_earlier() -> None:
    rng = np.random.default_rng(2)
    times = (100 * (1 + rng.random(3000))).tolist()
    places = [stopped_at(times, until) or len(times) for until in (0.02, 0.005, 0.001)]
    assert places == sorted(places)


def test_one_table_that_still_gains_keeps_all_going() -> None:
    rule = Enough(until=0.01)
    for n in range(200):
        rule.note(UNIT, {1: 100.0, 64: 1000.0 * 0.98**n})
    assert not rule.reached(8)


def test_a_unit_that_was_not_tried_keeps_the_search_going() -> None:
    rule = Enough(until=0.01, units=(Unit.GATE_UP, Unit.DOWN))
    for n in range(60):
        rule.note(Unit.GATE_UP, {1: 100.0 + 0.001 * n})
    assert not rule.reached(8)
    for n in range(LEAST_VARIANTS):
        assert not rule.reached(8)
        rule.note(Unit.DOWN, {1: 100.0 + 0.001 * n})
    assert rule.reached(8)


def test_failures_are_not_gains() -> None:
    rule = Enough(until=0.01)
    for n in range(60):
        rule.note(UNIT, {1: 100.0 + 0.001 * n if n < 30 else None})
    assert rule.reached(8)


def test_the_expected_gain_is_half_a_chance_of_a_spacing() -> None:
    rule = Enough(until=0.01)
    for time_us in (100.0, 101.0, 102.0, 103.0, 104.0, 200.0, 200.0, 200.0):
        rule.note(UNIT, {1: time_us})
    assert rule.expected_gain(8) == pytest.approx(0.5 * 0.01)


def test_a_budget_is_spent_when_its_seconds_are_over() -> None:
    now = time.monotonic()
    assert Budget(seconds=1.0, started=now - 2.0).spent
    assert not Budget(seconds=60.0, started=now).spent
    assert not Budget(seconds=None, started=now - 1e6).spent
    assert Budget(seconds=None, started=now).left == ""
    assert "1 min" in Budget(seconds=90.0, started=now).left


@pytest.mark.parametrize(
    ("seconds", "said"), [(42.4, "42 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")]
)
def test_durations_are_spelled_for_people(seconds: float, said: str) -> None:
    assert spell_seconds(seconds) == said


def test_progress_says_best_evidence_and_what_remains() -> None:
    said = progress_note(
        UNIT, {1: 5.0, 64: 12.34}, "measured", 40, 96, "2 min 0 s of the budget left"
    )
    assert said == (
        "best down at 64 tokens: 12.3 us (measured); 40 of 96 variants; 2 min 0 s of the budget left"
    )
    assert progress_note(UNIT, {}, "measured", 1, 96, "") == "1 of 96 variants"
