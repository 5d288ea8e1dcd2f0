"""Layouts: what is legal, what is refused, what is chosen by default."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import (
    Layout,
    MoEShape,
    default_layout,
    load_model,
    model_names,
    parse_layout,
)
from rubin_tune.topology import load_gpu

VR200 = load_gpu("vr200")


@pytest.mark.parametrize("text", ["single", "dep8", "ep2", "tp4"])
def test_names_read_back(text: str) -> None:
    assert parse_layout(text, load_model("deepseek-v3"), VR200).name == text


def test_one_rank_is_single_whatever_it_is_called() -> None:
    shape = load_model("deepseek-v3")
    assert {parse_layout(t, shape, VR200) for t in ("dep1", "ep1", "tp1")} == {Layout()}


def test_uneven_shards_round_up() -> None:
    layout = parse_layout("ep72", load_model("deepseek-v4.1-flash"), VR200)
    assert layout.local_experts(384) == 6


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dep", "must be auto, single, depN"),
        ("dep0", "must be auto, single, depN"),
        ("dep-2", "must be auto, single, depN"),
        ("pp4", "must be auto, single, depN"),
        ("", "must be auto, single, depN"),
        ("dep385", "at most 384 ranks"),
        ("ep999999", "at most 384 ranks"),
        ("tp5", "possible: tp2, tp4, tp8"),
        ("tp16", "parts of 144"),
    ],
)
def test_impossible_layouts_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        parse_layout(text, load_model("deepseek-v4.1-flash"), VR200)
    assert "\n" not in str(caught.value)


def test_experts_stay_whole_and_widths_are_cut_only_by_tp() -> None:
    tp, dep = Layout(kind="tp", ranks=4), Layout(kind="dep", ranks=4)
    assert (tp.local_experts(384), tp.local_intermediate(2304)) == (384, 576)
    assert (dep.local_experts(384), dep.local_intermediate(2304)) == (96, 2304)
    assert (tp.expert_ranks, tp.width_shards, dep.expert_ranks, dep.width_shards) == (1, 4, 4, 1)


@pytest.mark.parametrize(("kind", "ranks"), [("single", 2), ("dep", 1), ("tp", 0), ("pp", 2)])
def test_records_refuse_what_is_no_layout(kind: str, ranks: int) -> None:
    with pytest.raises(InvalidInput):
        Layout(kind=kind, ranks=ranks)


@pytest.mark.parametrize("model", model_names())
def test_default_is_the_smallest_that_leaves_two_fifths_of_the_memory(model: str) -> None:
    shape = load_model(model)
    budget = 0.6 * VR200.memory_bytes
    layout = default_layout(shape, VR200)
    held = shape.layers * shape.weight_bytes(layout.local_experts(shape.experts))
    assert held <= budget
    if layout.ranks > 1:
        assert 2 * held > budget
    assert parse_layout("auto", shape, VR200) == layout


def test_default_of_the_flagship_on_rubin() -> None:
    # 40 layers x 384 experts x 3 x 5120 x 2304 x 0.53125 B = 289 GB; half of it is under 173 GB.
    assert default_layout(load_model("deepseek-v4.1-flash"), VR200).name == "dep2"


def test_a_model_that_fits_nowhere_is_refused() -> None:
    shape = MoEShape(
        model="huge", experts=2, top_k=1, hidden=1 << 17, intermediate=1 << 17, layers=9
    )
    with pytest.raises(InvalidInput, match="name a layout"):
        default_layout(shape, VR200)


@given(st.integers(1, 1024), st.integers(2, 256))
def test_shards_hold_every_expert_with_none_over(experts: int, ranks: int) -> None:
    local = Layout(kind="ep", ranks=ranks).local_experts(experts)
    assert (local - 1) * ranks < experts <= local * ranks
