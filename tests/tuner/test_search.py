"""Proposals: legal, new, repeatable, fed by every result."""

from __future__ import annotations

import pytest

from rubin_tune.registry import names
from rubin_tune.search_spaces import Constraint, LaunchConfig, Parameter, Space
from rubin_tune.tuner.search import UnitSearch


def toy_space() -> Space:
    return Space(
        name="toy",
        parameters=(
            Parameter(name="a", values=(1, 2, 4, 8)),
            Parameter(name="b", values=(1, 2, 3, 4, 5)),
            Parameter(name="c", values=(False, True)),
        ),
        constraints=(
            Constraint(
                name="small", reason="too large", on=("a", "b"),
                holds=lambda p: int(p["a"]) * int(p["b"]) <= 16,
            ),
        ),
    )  # fmt: skip


def search(sampler: str, seed: int = 0) -> UnitSearch:
    space = toy_space()
    legal = space.legal()
    rankings = {1: [list(legal)], 64: [list(reversed(legal))]}
    return UnitSearch(space=space, rankings=rankings, sampler=sampler, seed=seed)


def run(found: UnitSearch, count: int) -> list[LaunchConfig]:
    proposed = found.first(4, [])
    while len(proposed) < count:
        for config in proposed[-4:]:
            found.tell(config, {1: float(config.integer("a")), 64: None})
        more = found.ask(4)
        if not more:
            break
        proposed += more
    return proposed


@pytest.mark.parametrize("sampler", names("tuner.samplers"))
def test_proposals_are_legal_and_never_repeat(sampler: str) -> None:
    proposed = run(search(sampler), 20)
    assert len(set(proposed)) == len(proposed)
    assert all(toy_space().contains(c) for c in proposed)


@pytest.mark.parametrize("sampler", names("tuner.samplers"))
def test_same_seed_gives_the_same_proposals(sampler: str) -> None:
    assert run(search(sampler, 3), 16) == run(search(sampler, 3), 16)


@pytest.mark.parametrize("sampler", names("tuner.samplers"))
def test_an_exhausted_space_ends_the_proposals(sampler: str) -> None:
    found = search(sampler)
    assert set(run(found, 1000)) == set(toy_space().legal())
    assert found.ask(3) == []


def test_first_takes_defaults_then_the_ranking_of_each_token_count_in_turns() -> None:
    found = search("random")
    legal = toy_space().legal()
    assert found.first(3, [legal[5]]) == [legal[5], legal[0], legal[-1]]


@pytest.mark.parametrize("sampler", names("tuner.samplers"))
def test_every_coupling_is_searched_in_turns(sampler: str) -> None:
    space = toy_space()
    legal = space.legal()
    found = UnitSearch(
        space=space,
        rankings={1: [legal]},
        sampler=sampler,
        coupling=lambda config: str(config["c"]),
    )
    for config in found.first(4, []):
        # one coupling looks far better: the other must be searched all the same
        found.tell(config, {1: 1.0 if config["c"] else 50.0})
    asked = found.ask(10)
    assert sum(config["c"] is True for config in asked) == 5


def test_too_many_couplings_are_searched_together() -> None:
    space = toy_space()
    found = UnitSearch(space=space, rankings={1: []}, coupling=lambda config: config.key)
    assert len(found.ask(len(space.legal()))) == len(space.legal())


def test_what_another_unit_evaluates_is_joined_where_units_share_configs() -> None:
    space = toy_space()
    shared = UnitSearch(space=space, rankings={1: []}, coupling=lambda config: config.key)
    config = shared.ask(1)[0]
    other = UnitSearch(space=space, rankings={1: []}, coupling=lambda config: config.key)
    assert other.join(config) == [config]
    assert other.join(config) == []
    assert search("random").join(config) == []
