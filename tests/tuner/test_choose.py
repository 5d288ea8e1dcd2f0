"""Winners: ties, the default's right of way, couplings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.search_spaces import LaunchConfig, Unit
from rubin_tune.tuner.choose import best_of, couple
from rubin_tune.tuner.evaluation import Outcome
from rubin_tune.tuner.statistics import median_interval


def outcome(name: int, time_us: float | None, half: float = 0.0, group: int = 0) -> Outcome:
    interval = None if time_us is None else (time_us - half, time_us + half)
    return Outcome(
        config=LaunchConfig.of(n=name, group=group), time_us=time_us, interval_us=interval
    )


def group_of(config: LaunchConfig) -> str:
    return str(config["group"])


def test_default_wins_a_tie_inside_one_percent() -> None:
    default = outcome(0, 100.0)
    assert best_of([outcome(1, 99.2), default], default.config) == default


def test_challenger_beyond_the_band_wins() -> None:
    default = outcome(0, 100.0)
    assert best_of([outcome(1, 98.9), default], default.config) == outcome(1, 98.9)


def test_default_wins_when_the_interval_is_wider_than_the_gain() -> None:
    default = outcome(0, 100.0)
    assert best_of([outcome(1, 96.0, half=5.0), default], default.config) == default


def test_equal_challengers_are_ordered_by_config() -> None:
    first, second = outcome(1, 90.0), outcome(2, 90.0)
    assert best_of([second, first], LaunchConfig.of(n=9, group=0)) == first


def test_failed_outcomes_never_win() -> None:
    assert best_of([outcome(1, None)], LaunchConfig.of(n=0, group=0)) is None


def test_units_take_configs_of_one_coupling_with_the_smallest_sum() -> None:
    tables = {
        Unit.GATE_UP: [outcome(0, 100.0), outcome(1, 50.0, group=1)],
        Unit.DOWN: [outcome(0, 100.0), outcome(1, 90.0, group=1)],
    }
    defaults = dict.fromkeys(tables, LaunchConfig.of(n=0, group=0))
    chosen = couple(tables, defaults, group_of)[0]
    assert {u: o.config["group"] for u, o in chosen.items()} == {Unit.GATE_UP: 1, Unit.DOWN: 1}


def test_a_coupling_that_makes_one_unit_slower_than_its_default_is_passed_over() -> None:
    tables = {
        Unit.GATE_UP: [outcome(0, 100.0), outcome(1, 50.0, group=1)],
        Unit.DOWN: [outcome(0, 100.0), outcome(1, 120.0, group=1)],
    }
    defaults = dict.fromkeys(tables, LaunchConfig.of(n=0, group=0))
    chosen = couple(tables, defaults, group_of)[0]
    assert {o.time_us for o in chosen.values()} == {100.0}


def test_no_common_coupling_means_no_winner() -> None:
    tables = {Unit.GATE_UP: [outcome(0, 1.0)], Unit.DOWN: [outcome(0, 1.0, group=1)]}
    assert couple(tables, dict.fromkeys(tables, LaunchConfig.of(n=5, group=0)), group_of) == []


def test_each_kind_of_glue_is_offered_for_the_layer_to_decide() -> None:
    tables = {Unit.GATE_UP: [outcome(1, 50.0), outcome(2, 60.0)], Unit.DOWN: [outcome(3, 10.0)]}
    defaults = dict.fromkeys(tables, LaunchConfig.of(n=9, group=0))
    ways = couple(tables, defaults, group_of, lambda unit, config: str(config["n"]))
    assert [w[Unit.GATE_UP].time_us for w in ways] == [50.0, 60.0]


@given(st.lists(st.floats(1.0, 1e4), min_size=1, max_size=60))
def test_interval_lies_inside_the_samples_and_holds_their_median(samples: list[float]) -> None:
    low, high = median_interval(samples)
    ordered = sorted(samples)
    assert ordered[0] <= low <= ordered[len(samples) // 2]
    assert high <= ordered[-1]
    assert low <= high


@pytest.mark.parametrize("count", [9, 15, 30])
def test_interval_holds_the_true_median_in_95_percent_of_draws(count: int) -> None:
    import numpy as np

    rng = np.random.default_rng(7)
    held = 0
    for _ in range(2000):
        low, high = median_interval(list(rng.normal(10.0, 1.0, count)))
        held += low <= 10.0 <= high
    assert held >= 0.94 * 2000
