"""Edges of buckets: where the times of two neighbouring winners cross, read from four trials."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.db import Evidence, Trial, Winner, open_store
from rubin_tune.db.landscape import read_landscape
from rubin_tune.db.testing import CONFIG, TRIAL, WINNER
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import LaunchConfig, Unit
from rubin_tune.tuner import SweepRequest, sweep
from rubin_tune.tuner.edges import crossing, pinned

SMALL, LARGE = CONFIG.replace(block_m=16), CONFIG.replace(block_m=128)
LANDSCAPES = Path(__file__).parents[2] / "../shared/data/landscapes"


def trial(config: LaunchConfig, tokens: int, time_us: float, unit: Unit = Unit.GATE_UP) -> Trial:
    return replace(
        TRIAL, config=config, problem=TRIAL.problem.at(tokens), time_us=time_us, unit=unit,
        rejected=None, evidence=Evidence.MEASURED,
    )  # fmt: skip


def winner(config: LaunchConfig, tokens: int, unit: Unit = Unit.GATE_UP) -> Winner:
    return replace(
        WINNER, config=config, problem=WINNER.problem.at(tokens), unit=unit, parts=(), edge=None
    )


PAIR = (winner(SMALL, 16), winner(LARGE, 1024))
TIMES = [
    trial(SMALL, 16, 10.0), trial(LARGE, 16, 20.0), trial(SMALL, 1024, 80.0), trial(LARGE, 1024, 40.0),
]  # fmt: skip


def edge_of(trials: Iterable[Trial], finals: Iterable[Trial] = ()) -> tuple[int, str] | None:
    first, second = pinned(PAIR, trials, finals)
    assert second.edge is None
    if first.edge is None:
        return None
    return first.edge.tokens, first.edge.evidence.word


@given(
    at=st.floats(17, 1023),
    rise=st.floats(0.1, 2),
    steeper=st.floats(0.01, 2),
    base=st.floats(1, 99),
)
def test_times_that_are_powers_cross_where_they_are_equal(
    at: float, rise: float, steeper: float, base: float
) -> None:
    def small(tokens: float) -> float:
        return base * (tokens / at) ** (rise + steeper)

    def large(tokens: float) -> float:
        return base * (tokens / at) ** rise

    found = edge_of(
        [trial(c, t, f(t)) for c, f in ((SMALL, small), (LARGE, large)) for t in (16, 1024)]
    )
    assert found is not None
    last = found[0]
    # Either side of a crossing on a count may be right: rounding decides.
    assert small(last) <= large(last) * (1 + 1e-9)
    assert small(last + 1) >= large(last + 1) * (1 - 1e-9)


def test_an_edge_carries_the_weakest_evidence_of_its_four_times() -> None:
    assert edge_of(TIMES) == (128, "measured")
    weak = replace(TIMES[1], evidence=Evidence.RECORDED)
    assert edge_of([TIMES[0], weak, *TIMES[2:]]) == (128, "recorded")


@pytest.mark.parametrize("missing", range(4))
def test_without_one_of_the_four_times_there_is_no_edge(missing: int) -> None:
    assert edge_of([t for number, t in enumerate(TIMES) if number != missing]) is None


def test_times_of_two_protocols_are_not_compared() -> None:
    # The final's clock was slower: its time of the winner says nothing beside another's first time.
    assert edge_of(TIMES, [replace(TIMES[0], time_us=19.0)]) == (128, "measured")
    both = [replace(TIMES[0], time_us=10.0), replace(TIMES[1], time_us=40.0)]
    assert edge_of(TIMES, both) == (256, "measured")


@pytest.mark.parametrize(
    ("lead", "lag", "last"),
    [
        (-1.0, 1.0, 128),
        (0.3, 1.0, 16),  # The default, which won a tie at 16, is slower there already.
        (-1.0, -0.3, 1023),
        (0.0, 0.0, 128),
        (-1e-9, 1.0, 16),
        (-1.0, 1e-9, 1023),
    ],
)
def test_a_crossing_lies_between_its_counts(lead: float, lag: float, last: int) -> None:
    assert crossing(16, 1024, lead=lead, lag=lag) == last


@given(
    low=st.integers(1, 9999),
    apart=st.integers(1, 9999),
    lead=st.floats(-9, 9),
    lag=st.floats(-9, 9),
)
def test_any_crossing_leaves_both_their_own_count(
    low: int, apart: int, lead: float, lag: float
) -> None:
    assert low <= crossing(low, low + apart, lead=lead, lag=lag) < low + apart


def test_one_config_has_no_edge_towards_itself() -> None:
    first, _ = pinned([winner(SMALL, 16), winner(SMALL, 1024)], TIMES, ())
    assert first.edge is None


def test_a_layers_time_is_that_of_its_gemms() -> None:
    def layer(config: LaunchConfig, tokens: int) -> Winner:
        parts = (("gate_up", config), ("down", config))
        whole = LaunchConfig.of({f"{u}.{n}": v for u, _ in parts for n, v in config.items})
        return replace(winner(whole, tokens, Unit.LAYER), parts=parts)

    down = [replace(one, unit=Unit.DOWN, time_us=(one.time_us or 0) * 3) for one in TIMES]
    rows = [layer(SMALL, 16), layer(LARGE, 1024)]
    first, _ = pinned(rows, TIMES + down, ())
    assert first.edge is not None
    assert first.edge.tokens == 128
    first, _ = pinned(rows, TIMES + down[1:], ())
    assert first.edge is None


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_edges_of_the_recorded_landscapes_lose_less_than_geometric_means(
    dtype: str, tmp_path: Path
) -> None:
    """Tune every other recorded count; at those between, compare both rules with the better winner."""
    path = LANDSCAPES / f"h200-vllm-fused-moe-qwen3-30b-a3b-{dtype}.jsonl.gz"
    if not path.is_file():
        pytest.skip("no recorded landscape")
    rows = [row for row in read_landscape(path).rows if row.samples_us]
    times = {
        (r.unit.value, r.tokens, r.config): sorted(r.samples_us)[len(r.samples_us) // 2]
        for r in rows
    }
    counts = sorted({row.tokens for row in rows})
    lost = {"edge": 0.0, "middle": 0.0}
    for below, held_out, above in zip(counts, counts[1:], counts[2:], strict=False):
        database = tmp_path / f"{held_out}.db"
        result = sweep(
            SweepRequest(
                kernel="fused_moe", model="qwen3-30b-a3b", target="h200", audit=0, trials=10_000,
                dtype=None if dtype == "bf16" else dtype, tokens=f"{below},{above}",
                evaluator=f"recorded:{path}",
            ),
            database=database,
        )  # fmt: skip
        layers = {w.problem.tokens: w for w in result.winners if w.unit is Unit.LAYER}
        own = {
            tokens: sum(times[unit, held_out, config] for unit, config in layer.parts)
            for tokens, layer in layers.items()
        }
        edge = layers[below].edge
        assert edge is not None
        assert edge.evidence is Evidence.RECORDED
        chosen = {"edge": edge.tokens, "middle": math.isqrt(below * above)}
        for rule, last in chosen.items():
            lost[rule] += own[below if held_out <= last else above] / min(own.values()) - 1
        table = Table.load(database)
        (problem,) = table.problems("fused_moe")
        found = table.lookup("fused_moe", problem, held_out)
        assert found.config == layers[below if held_out <= edge.tokens else above].config.as_dict()
        with open_store(database) as store:
            assert set(store.winners()) == set(result.winners)
    assert lost["edge"] < lost["middle"] / 3
    # The sentence in docs/lookup.md.
    assert lost["edge"] / 2 <= 0.09
    assert lost["middle"] / 2 >= 0.29
