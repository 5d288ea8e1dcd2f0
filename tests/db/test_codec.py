"""Records and their JSON: equal after a round trip, broken JSON refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.db import Rejected, Why, codec
from rubin_tune.db.testing import CONFIG, TRIAL, WINNER
from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import LaunchConfig, Layout, MoEShape, Problem, Routing

names = st.text("abcdefghij_", min_size=1, max_size=8)
values = st.one_of(st.integers(-(2**40), 2**40), st.booleans(), st.text(max_size=8))


@given(st.dictionaries(names, values, max_size=6))
def test_a_config_comes_back_equal(found: dict[str, Any]) -> None:
    config = LaunchConfig.of(found)
    assert codec.config_from_json(json.loads(codec.dumps(codec.config_to_json(config)))) == config


@given(
    experts=st.integers(1, 512),
    hidden=st.integers(1, 2**15),
    tokens=st.integers(1, 2**20),
    skew=st.floats(0.1, 2.0),
)
def test_a_problem_comes_back_equal_with_the_same_key(
    experts: int, hidden: int, tokens: int, skew: float
) -> None:
    shape = MoEShape(model="m", experts=experts, top_k=1, hidden=hidden, intermediate=128)
    problem = Problem(
        shape=shape, layout=Layout(), routing=Routing(kind="lognormal", skew=skew), tokens=tokens
    )
    back = codec.problem_from_json(json.loads(codec.dumps(codec.problem_to_json(problem))))
    assert back == problem
    assert back.key == problem.key


@pytest.mark.parametrize("time_us", [1.5, 1e-9, 1e12])
def test_a_trial_comes_back_equal(time_us: float) -> None:
    trial = replace(TRIAL, time_us=time_us)
    assert codec.trial_from_json(json.loads(codec.dumps(codec.trial_to_json(trial)))) == trial


@pytest.mark.parametrize("why", list(Why))
def test_a_rejection_comes_back_equal(why: Why) -> None:
    rejected = Rejected(config=CONFIG, why=why, detail="é \u2713 \n")
    back = codec.rejected_from_json(json.loads(codec.dumps(codec.rejected_to_json(rejected))))
    assert back == rejected


def test_a_winner_comes_back_equal() -> None:
    assert codec.winner_from_json(json.loads(codec.dumps(codec.winner_to_json(WINNER)))) == WINNER


@pytest.mark.parametrize(
    "name", sorted(set(codec.winner_to_json(WINNER)) - {"compile", "edge", "parts"})
)
def test_a_winner_that_lacks_a_part_is_refused(name: str) -> None:
    found = codec.winner_to_json(WINNER)
    del found[name]
    with pytest.raises(InvalidInput, match=name):
        codec.winner_from_json(found)


def test_a_measurement_of_an_older_version_has_unknown_clocks_and_is_written_as_it_was() -> None:
    old = {
        "samples_us": [10.0, 10.25, 10.5], "policy": "graph8/1", "launches_per_sample": 8,
        "clock_mhz": 1980,
    }  # fmt: skip
    found = codec.measurement_from_json(old)
    assert (found.clock_low_mhz, found.clock_high_mhz) == (0, 0)
    assert codec.measurement_to_json(found) == old
    now = replace(found, clock_low_mhz=1755, clock_high_mhz=1980)
    assert codec.measurement_from_json(codec.measurement_to_json(now)) == now
