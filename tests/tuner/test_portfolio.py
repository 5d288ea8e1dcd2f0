"""The smallest set: proven against every subset, coupled, capped, never slower than the default."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubin_tune.search_spaces import LaunchConfig, Unit
from rubin_tune.tuner.portfolio import Column, Portfolio, choose

UNITS = (Unit.GATE_UP, Unit.DOWN)


def config(name: int) -> LaunchConfig:
    return LaunchConfig.of(n=name, group=name % 2)


def free(_: LaunchConfig) -> str:
    return ""


def group_of(found: LaunchConfig) -> str:
    return str(found["group"])


Coupling = Callable[[LaunchConfig], str]


def pairs(
    times: Mapping[Unit, Mapping[LaunchConfig, float]], coupling: Coupling
) -> list[tuple[float, dict[Unit, LaunchConfig]]]:
    """Return every way to launch both units, fastest first."""
    found = [
        (times[UNITS[0]][a] + times[UNITS[1]][b], {UNITS[0]: a, UNITS[1]: b})
        for a, b in itertools.product(times[UNITS[0]], times[UNITS[1]])
        if coupling(a) == coupling(b)
    ]
    return sorted(found, key=lambda pair: pair[0])


def ladder_of(rows: list[list[list[float]]], coupling: Coupling) -> dict[int, Column]:
    """Make a ladder of times [tokens][unit][config]; the default is the slowest pair."""
    found = {}
    for place, row in enumerate(rows):
        times = {u: {config(n): t for n, t in enumerate(row[i])} for i, u in enumerate(UNITS)}
        ways = pairs(times, coupling)
        found[2**place] = Column(times_us=times, winner=ways[0][1], default=ways[-1][1])
    return found


def covers(
    ladder: Mapping[int, Column], sets: Mapping[Unit, set[LaunchConfig]], coupling: Coupling
) -> bool:
    """Say whether some allowed pair of a set is within 1 % everywhere."""
    for column in ladder.values():
        fits = [
            total
            for total, pair in pairs(column.times_us, coupling)
            if all(pair[u] in sets[u] for u in UNITS)
            and all(column.times_us[u][pair[u]] <= column.limit_us(u) for u in UNITS)
        ]
        if not fits or min(fits) > 1.01 * column.reference_us * (1 + 1e-9):
            return False
    return True


def smallest(ladder: Mapping[int, Column], count: int, coupling: Coupling) -> int:
    """Return the size of the smallest covering set, by trying all."""
    subsets = [
        set(chosen)
        for size in range(1, count + 1)
        for chosen in itertools.combinations([config(n) for n in range(count)], size)
    ]
    return min(
        len(a) + len(b)
        for a in subsets
        for b in subsets
        if covers(ladder, {UNITS[0]: a, UNITS[1]: b}, coupling)
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("coupling", [free, group_of])
def test_no_smaller_set_covers_the_ladder(seed: int, coupling: Coupling) -> None:
    rng = np.random.default_rng(seed)
    rows = (100 * (1 + 0.02 * rng.random((4, 2, 5)))).tolist()
    ladder = ladder_of(rows, coupling)
    found = choose(ladder, coupling)
    assert found.proven
    assert found.worst_loss <= 0.01 + 1e-6
    sets = {unit: set(found.of(unit)) for unit in UNITS}
    assert covers(ladder, sets, coupling)
    assert sum(map(len, sets.values())) == smallest(ladder, 5, coupling)


def test_one_config_that_is_nearly_best_everywhere_is_enough() -> None:
    rows = [[[100.0, 100.5], [50.0]], [[101.0, 100.5], [50.0]]]
    found = choose(ladder_of(rows, free), free)
    assert [len(configs) for _, configs in found.configs] == [1, 1]
    assert found.worst_loss <= 0.01


def test_of_equally_small_sets_the_faster_is_taken() -> None:
    rows = [[[100.0, 100.9, 100.2], [50.0]], [[120.0, 100.0, 100.3], [50.0]]]
    found = choose(ladder_of(rows, free), free)
    assert found.of(Unit.GATE_UP) == (config(2),)


def test_a_cap_too_small_gives_the_set_of_least_loss_and_says_the_losses() -> None:
    rows = [[[100.0, 130.0, 109.0], [50.0]], [[130.0, 100.0, 109.0], [50.0]]]
    found = choose(ladder_of(rows, free), free, cap=1)
    assert found.of(Unit.GATE_UP) == (config(2),)
    assert [round(loss, 3) for _, loss in found.losses] == [0.06, 0.06]


def test_units_are_launched_with_configs_of_one_coupling() -> None:
    rows = [[[100.0, 100.5], [50.0, 50.2]], [[100.0, 100.5], [55.0, 50.0]]]
    found = choose(ladder_of(rows, group_of), group_of)
    assert {c["group"] for _, configs in found.configs for c in configs} == {1}


def test_no_unit_becomes_slower_than_its_default() -> None:
    times = {
        Unit.GATE_UP: {config(0): 100.0, config(1): 100.9},
        Unit.DOWN: {config(0): 50.0},
    }
    picks = {Unit.GATE_UP: config(0), Unit.DOWN: config(0)}
    first = Column(times_us=times, winner=picks, default=picks)
    second = Column(
        times_us={**times, Unit.GATE_UP: {config(0): 200.0, config(1): 100.0}},
        winner={**picks, Unit.GATE_UP: config(1)},
        default=picks,
    )
    found = choose({1: first, 2: second}, free)
    assert found.of(Unit.GATE_UP) == (config(0), config(1))
    assert found.worst_loss == pytest.approx(0.0)


def test_a_portfolio_comes_back_from_json() -> None:
    found = choose(ladder_of([[[100.0, 90.0], [50.0]]], free), free)
    assert Portfolio.from_json(json.loads(json.dumps(found.as_json()))) == found


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.lists(st.lists(st.floats(50, 150), min_size=3, max_size=3), min_size=2, max_size=2),
        min_size=1, max_size=5,
    ),
    st.integers(1, 3),
)  # fmt: skip
def test_any_ladder_has_a_set_of_at_most_the_cap(rows: list[list[list[float]]], cap: int) -> None:
    ladder = ladder_of(rows, group_of)
    found = choose(ladder, group_of, cap=cap)
    assert all(len(configs) <= cap for _, configs in found.configs)
    assert [tokens for tokens, _ in found.losses] == list(ladder)
    for tokens, loss in found.losses:
        slowest = sum(ladder[tokens].limit_us(unit) for unit in UNITS)
        assert loss <= slowest / ladder[tokens].reference_us - 1 + 1e-9


def test_where_the_set_is_slower_the_default_stands_outside_it() -> None:
    picks = [{u: config(n if u is Unit.GATE_UP else 9) for u in UNITS} for n in range(2)]
    down = {config(9): 50.0}
    first = Column(
        times_us={Unit.GATE_UP: {config(0): 100.0, config(1): 300.0}, Unit.DOWN: down},
        winner=picks[0], default=picks[0],
    )  # fmt: skip
    second = Column(
        times_us={Unit.GATE_UP: {config(0): 300.0, config(1): 100.0}, Unit.DOWN: down},
        winner=picks[1], default=picks[1],
    )  # fmt: skip
    found = choose({1: first, 2: second}, free, cap=1)
    assert len(found.outside) == 1
    assert found.worst_loss == pytest.approx(0.0)
