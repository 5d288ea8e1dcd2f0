"""What any space can do, shown on a small one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rubin_tune.errors import InvalidConfig
from rubin_tune.search_spaces import Constraint, LaunchConfig, Parameter, Space


def clamp(config: LaunchConfig) -> LaunchConfig:
    return config.replace(c=4) if config.integer("c") > 4 else config


def make() -> Space:
    return Space(
        name="test",
        parameters=(
            Parameter(name="a", values=(1, 2, 4, 8)),
            Parameter(name="b", values=(False, True)),
            Parameter(name="c", values=(2, 3, 4, 5)),
            Parameter(name="d", values=("x", "y", "z")),
        ),
        constraints=(
            Constraint(
                name="small a with b",
                reason="b needs a of at most 4",
                on=("a", "b"),
                holds=lambda p: not p["b"] or int(p["a"]) <= 4,
            ),
            Constraint(name="no z", reason="z is gone", on=("d",), holds=lambda p: p["d"] != "z"),
            Constraint(
                name="sum",
                reason="a must be at least c",
                on=("c", "a"),
                holds=lambda p: int(p["a"]) >= min(int(p["c"]), 4),
            ),
        ),
        canonical=clamp,
        seeds=(
            LaunchConfig.of(a=8, b=False, c=5, d="x"),
            LaunchConfig.of(a=1, b=True, c=2, d="z"),
        ),
    )


SPACE = make()
GRID = [
    LaunchConfig.of(a=a, b=b, c=c, d=d)
    for a, b, c, d in itertools.product((1, 2, 4, 8), (False, True), (2, 3, 4, 5), ("x", "y", "z"))
]
GOOD = LaunchConfig.of(a=8, b=False, c=4, d="x")


def test_legal_points_are_those_that_brute_force_finds() -> None:
    obeying = [c for c in GRID if all(rule.holds(c) for rule in SPACE.constraints)]
    assert list(SPACE.legal()) == [c for c in obeying if clamp(c) == c]
    assert set(SPACE.legal()) == {clamp(c) for c in obeying}
    assert SPACE.duplicates == len(obeying) - len(SPACE.legal()) > 0
    assert SPACE.size == len(GRID)


def test_removed_points_are_counted_in_order() -> None:
    alive, counts = GRID, []
    for rule in SPACE.constraints:
        kept = [c for c in alive if rule.holds(c)]
        counts.append(len(alive) - len(kept))
        alive = kept
    assert [count for _, count in SPACE.removed()] == counts
    assert all(counts)


def test_contains_is_membership_in_the_legal_points() -> None:
    legal = set(SPACE.legal())
    assert all(SPACE.contains(c) == (c in legal) for c in GRID)


@pytest.mark.parametrize(
    "config",
    [
        LaunchConfig.of(a=8, b=False, c=4),
        LaunchConfig.of(a=8, b=False, c=4, d="x", e=1),
        GOOD.replace(a=3),
        GOOD.replace(b=0),
        GOOD.replace(a=True),
        GOOD.replace(d="X"),
    ],
)
def test_points_off_the_axes_say_so(config: LaunchConfig) -> None:
    broken = SPACE.why_not(config)
    assert broken is not None
    assert broken.name == "axes"
    assert not SPACE.contains(config)


def test_why_not_names_the_first_broken_rule() -> None:
    broken = SPACE.why_not(LaunchConfig.of(a=8, b=True, c=2, d="z"))
    assert broken is SPACE.constraints[0]
    assert SPACE.why_not(GOOD) is None


def test_seeds_are_canonical_and_illegal_ones_are_dropped() -> None:
    assert SPACE.seeds == (GOOD,)


def test_neighbours_differ_in_one_parameter_and_are_legal() -> None:
    for config in SPACE.legal():
        for other in SPACE.neighbours(config):
            assert SPACE.contains(other)
            assert sum(config[name] != other[name] for name in config) == 1


def test_neighbours_step_over_illegal_values() -> None:
    # From a = 1 with c = 2 nothing lies below; a = 2 is above.
    low = LaunchConfig.of(a=2, b=False, c=2, d="x")
    assert {c["a"] for c in SPACE.neighbours(low)} == {2, 4}
    # b = True forbids a = 8, so a = 4 has no neighbour above.
    high = LaunchConfig.of(a=4, b=True, c=2, d="x")
    assert {c["a"] for c in SPACE.neighbours(high)} == {4, 2}


def test_encoding_separates_points_within_the_unit_cube() -> None:
    rows = np.array([SPACE.encode(c) for c in SPACE.legal()])
    assert len(np.unique(rows, axis=0)) == len(SPACE.legal())
    assert rows.min() >= 0
    assert rows.max() <= 1
    assert SPACE.encode(GOOD.replace(a=2))[0] == pytest.approx(1 / 3)  # by its logarithm


def test_settings_are_read_over_a_base() -> None:
    assert SPACE.parse(["a=4", "B=TRUE", " d = y "], GOOD) == LaunchConfig.of(
        a=4, b=True, c=4, d="y"
    )
    assert SPACE.parse(["c=5"], GOOD) == GOOD  # canonical
    assert SPACE.parse([], GOOD) == GOOD


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["a"], "must be NAME=VALUE"),
        (["aa=1"], "no parameter 'aa': did you mean a"),
        (["a=3"], "must be one of 1, 2, 4, 8"),
        (["a=0x4"], "must be one of 1, 2, 4, 8"),
        (["b=1"], "must be one of false, true"),
        (["a=2", "a=4"], "set twice"),
        (["d=z"], "breaks 'no z': z is gone"),
    ],
)
def test_bad_settings_are_one_sentence(settings: list[str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words) as caught:
        SPACE.parse(settings, GOOD)
    assert "\n" not in str(caught.value)


def test_a_rule_on_an_unknown_parameter_is_refused() -> None:
    rule = Constraint(name="bad", reason="", on=("e",), holds=lambda _: True)
    with pytest.raises(InvalidConfig, match="constraint 'bad'"):
        Space(name="t", parameters=(Parameter(name="a", values=(1,)),), constraints=(rule,))


@pytest.mark.parametrize("values", [(), (1, 1)])
def test_axes_without_distinct_values_are_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(InvalidConfig, match="must be distinct"):
        Parameter(name="a", values=values)


def test_configs_are_equal_whatever_the_order_and_spell_themselves() -> None:
    assert LaunchConfig.of(d="x", c=4, b=False, a=8) == GOOD
    assert str(GOOD) == "a=8 b=false c=4 d=x"
    assert GOOD.key == '{"a":8,"b":false,"c":4,"d":"x"}'
    with pytest.raises(InvalidConfig, match="twice"):
        LaunchConfig((("a", 1), ("a", 2)))
