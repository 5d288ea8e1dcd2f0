"""Routings: shares, sampling, and the formulas against sampling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.search_spaces import (
    Layout,
    MoEShape,
    Problem,
    Routing,
    expected_active_experts,
    expected_rows,
    load_model,
    parse_routing,
    rows_per_expert,
)

KINDS = ("balanced", "uniform", "lognormal:0.5", "zipf:0.8")
SKEWED = Routing(
    kind="recorded", counts=tuple((7 * e) % 64 + (900 if e == 3 else 0) for e in range(64))
)


def problem(routing: Routing, tokens: int, ranks: int = 1, experts: int = 64) -> Problem:
    layout = Layout() if ranks == 1 else Layout(kind="dep", ranks=ranks)
    shape = MoEShape(model="test", experts=experts, top_k=6, hidden=256, intermediate=128)
    return Problem(shape=shape, layout=layout, routing=routing, tokens=tokens)


@pytest.mark.parametrize("text", KINDS)
def test_spellings_read_back(text: str) -> None:
    routing = parse_routing(text)
    assert routing.name == text
    assert Routing.from_dict(routing.as_dict()) == routing


def test_recorded_counts_survive_json() -> None:
    assert Routing.from_dict(json.loads(json.dumps(SKEWED.as_dict()))) == SKEWED
    assert SKEWED.name.startswith("recorded:")


@pytest.mark.parametrize(
    "text",
    [
        *("", "lognormal", "lognormal:", "lognormal:x", "lognormal:nan", "lognormal:-1"),
        *("zipf:inf", "zipf:99", "uniform:1", "normal:1", "no-such-file.json", "recorded"),
    ],
)
def test_bad_spellings_are_one_sentence(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_routing(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("routing", [*map(parse_routing, KINDS), SKEWED], ids=lambda r: r.kind)
def test_shares_sum_to_one_and_are_the_same_each_time(routing: Routing) -> None:
    shares = routing.probabilities(64)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()
    assert (shares == routing.probabilities(64)).all()


def test_lognormal_half_looks_like_recorded_deepseek_v3() -> None:
    """Gini 0.28 and max/mean 3.65 over 256 experts (facts, moe-kernels 5.6)."""
    shares = np.sort(parse_routing("lognormal:0.5").probabilities(256))
    gini = 1 - 2 * np.cumsum(shares)[:-1].sum() / 256 - 1 / 256
    assert gini == pytest.approx(0.28, abs=0.02)
    assert shares.max() * 256 == pytest.approx(3.65, rel=0.15)


def test_shards_are_mixed() -> None:
    shares = parse_routing("zipf:0.8").probabilities(256).reshape(8, 32).sum(axis=1)
    assert shares.max() < 0.3


@pytest.mark.parametrize("routing", [*map(parse_routing, KINDS), SKEWED], ids=lambda r: r.kind)
@given(tokens=st.integers(1, 40), top_k=st.integers(1, 16), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_a_token_takes_distinct_experts(
    routing: Routing, tokens: int, top_k: int, seed: int
) -> None:
    chosen = routing.sample(np.random.default_rng(seed), tokens, 64, top_k)
    assert chosen.shape == (tokens, top_k)
    assert ((chosen >= 0) & (chosen < 64)).all()
    assert all(len(set(row)) == top_k for row in chosen.tolist())


@pytest.mark.parametrize("kind", ["uniform", "lognormal:2", "zipf:4"])
def test_all_experts_may_be_taken(kind: str) -> None:
    chosen = parse_routing(kind).sample(np.random.default_rng(0), 50, 8, 8)
    assert (np.sort(chosen, axis=1) == np.arange(8)).all()


@pytest.mark.parametrize("routing", [parse_routing("zipf:1.5"), SKEWED], ids=lambda r: r.kind)
def test_sampling_has_the_declared_inclusion_probabilities(routing: Routing) -> None:
    tokens = 20000
    q = routing.inclusion(64, 6)
    assert q.sum() == pytest.approx(6.0)
    assert q.max() <= 1.0
    chosen = routing.sample(np.random.default_rng(1), tokens, 64, 6)
    seen = np.bincount(chosen.ravel(), minlength=64) / tokens
    assert np.abs(seen - q).max() < 5 * np.sqrt(0.25 / tokens)


def test_an_expert_cannot_take_more_than_every_token() -> None:
    q = Routing(kind="recorded", counts=(1000, 1, 1, 2)).inclusion(4, 2)
    assert q.tolist() == pytest.approx([1.0, 0.25, 0.25, 0.5])


@pytest.mark.parametrize("routing", [*map(parse_routing, KINDS), SKEWED], ids=lambda r: r.kind)
@pytest.mark.parametrize("ranks", [1, 4, 5])
@pytest.mark.parametrize("tokens", [1, 9, 64])
def test_formulas_agree_with_sampling(routing: Routing, ranks: int, tokens: int) -> None:
    given = problem(routing, tokens, ranks)
    draws = [rows_per_expert(given, seed) for seed in range(800)]
    assert all(len(draw) == given.local_experts for draw in draws)
    for expected, seen in (
        (expected_rows(given), [int(draw.sum()) for draw in draws]),
        (expected_active_experts(given), [np.count_nonzero(draw) for draw in draws]),
    ):
        noise = 4 * float(np.std(seen)) / len(draws) ** 0.5
        assert expected == pytest.approx(float(np.mean(seen)), abs=noise + 1e-6)
        assert noise < 0.15 * expected  # the comparison says something


@pytest.mark.parametrize(
    ("model", "figures"),
    [
        ("deepseek-v3", {1: 8, 8: 57, 32: 163, 64: 222, 128: 252}),
        ("qwen3-30b-a3b", {1: 8, 8: 52, 32: 112, 64: 126, 128: 128}),
        ("deepseek-v4-pro", {1: 6, 8: 45, 32: 152, 64: 244, 128: 333}),
        ("gpt-oss-120b", {1: 4, 8: 29, 32: 82, 64: 111, 128: 126}),
    ],
)
def test_uniform_active_experts_are_the_published_figures(
    model: str, figures: dict[int, int]
) -> None:
    """Source: facts, moe-kernels 5.2."""
    shape = load_model(model)
    for tokens, active in figures.items():
        one = Problem(
            shape=shape, layout=Layout(), routing=parse_routing("uniform"), tokens=tokens
        )
        assert expected_active_experts(one) == pytest.approx(active, abs=0.6)


@pytest.mark.parametrize("tokens", [1, 7, 64, 640])
def test_balanced_differs_by_at_most_one_row(tokens: int) -> None:
    rows = rows_per_expert(problem(parse_routing("balanced"), tokens), 0)
    assert rows.max() - rows.min() <= 1
    assert rows.sum() == tokens * 6


def test_balanced_counts_are_those_of_its_sample() -> None:
    given = problem(parse_routing("balanced"), 7, ranks=4)
    chosen = given.routing.sample(np.random.default_rng(0), 7, 64, 6)
    assert (
        np.bincount(chosen.ravel(), minlength=64)[:16].tolist()
        == rows_per_expert(given, 0).tolist()
    )


def test_draws_differ_by_seed_only() -> None:
    given = problem(parse_routing("uniform"), 64)
    assert (rows_per_expert(given, 3) == rows_per_expert(given, 3)).all()
    assert (rows_per_expert(given, 3) != rows_per_expert(given, 4)).any()


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", "[3, 0, 5]"), ("b.json", '{"7": [3, 0, 5]}'), ("c.csv", "count\n3\n0\n5\n")],
)
def test_counts_are_read_from_files(tmp_path: Path, name: str, text: str) -> None:
    assert parse_routing(write(tmp_path / name, text)).counts == (3, 0, 5)


def test_one_layer_can_be_named_and_all_are_joined_by_rank(tmp_path: Path) -> None:
    path = write(tmp_path / "layers.json", '{"3": [1, 2, 9], "4": [8, 1, 1]}')
    assert parse_routing(f"{path}#4").counts == (8, 1, 1)
    assert sorted(parse_routing(path).counts) == [2, 3, 17]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "{}",
        "null",
        "[0, 0]",
        "[1, -2]",
        "[1, NaN]",
        "[1, 1.5]",
        "[1, true]",
        '[1, "2"]',
        "[[1, 2]]",
        '{"0": 3}',
        '{"0": [1, 2], "1": [1]}',
        "[" * 100_000,
        f"[{'9' * 5000}]",
        f"[{10**30}]",
        "1\nx\n",
        "\x00\x01",
    ],
)
def test_corrupt_counts_are_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_routing(write(tmp_path / "counts.json", text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_unreadable_bytes_and_missing_layers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe[1]")
    with pytest.raises(CorruptFile):
        parse_routing(str(tmp_path / "bytes.json"))
    with pytest.raises(CorruptFile, match="no layer '9'"):
        parse_routing(write(tmp_path / "layers.json", '{"3": [1, 2]}') + "#9")
    with pytest.raises(InvalidInput, match="no such file"):
        parse_routing(str(tmp_path))


def test_counts_of_another_layer_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must be 32"):
        problem(SKEWED, 4, experts=32)
    few = Routing(kind="recorded", counts=(5, 5) + (0,) * 62)
    with pytest.raises(InvalidInput, match="at least top_k = 6"):
        problem(few, 4)
