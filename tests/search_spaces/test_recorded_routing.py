"""Recorded routing: engines' dumps, what is refused, fitting and resampling."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.search_spaces import (
    RecordedRouting,
    Routing,
    _routing_dumps,
    parse_routing,
    read_recorded_routing,
)

torch = pytest.importorskip("torch")

COUNTS = [[3, 0, 5, 9], [1, 8, 2, 0]]
# [tokens, layers, top_k] of a model with 4 experts
ROUTED = [[[0, 2], [1, 3]], [[2, 3], [1, 0]], [[2, -1], [1, 2]]]
ROUTED_COUNTS = [[1, 0, 3, 1], [1, 3, 1, 1]]


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CorruptFile) as caught:
        read_recorded_routing(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def saved(path: Path, value: object) -> Path:
    torch.save(value, path)
    return path


def written(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_counts_are_read_from_npz(tmp_path: Path) -> None:
    found = read_recorded_routing(npz(tmp_path / "c.npz", counts=COUNTS, other=["x"]))
    assert found.counts.tolist() == COUNTS
    assert (found.layers, found.experts, found.top_k) == (("0", "1"), 4, 0)


def test_passes_are_added_up(tmp_path: Path) -> None:
    found = read_recorded_routing(npz(tmp_path / "c.npz", logical_count=[COUNTS, COUNTS]))
    assert found.counts.tolist() == (2 * np.array(COUNTS)).tolist()


def test_one_layer_may_be_a_plain_row(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.array(COUNTS[0]))
    assert read_recorded_routing(tmp_path / "c.npy").counts.tolist() == [COUNTS[0]]


def test_sglang_stat_dumps_are_read(tmp_path: Path) -> None:
    dump = {
        "rank": 0,
        "logical_count": torch.tensor([COUNTS, COUNTS], dtype=torch.int32),
        "average_utilization_rate_over_window": None,
    }
    found = read_recorded_routing(saved(tmp_path / "expert_distribution_recorder_1.pt", dump))
    assert found.counts.tolist() == (2 * np.array(COUNTS)).tolist()


def test_sglang_per_pass_dumps_give_replicas_to_their_logical_expert(tmp_path: Path) -> None:
    record = {
        "forward_pass_id": 1,
        "rank": 0,
        "global_physical_count": torch.tensor([[5, 1, 2, 7], [0, 3, 0, 4]]),
    }
    dump = {
        "records": [record, record],
        "last_physical_to_logical_map": torch.tensor([[0, 1, 2, 0], [2, 1, 0, 1]]),
    }
    found = read_recorded_routing(saved(tmp_path / "d.pt", dump))
    assert found.counts.tolist() == [[24, 2, 4], [0, 14, 0]]


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("routed_experts", ROUTED),
        ("topk_ids_of_layer", np.moveaxis(np.array(ROUTED), 1, 0).tolist()),
    ],
)
def test_ids_are_counted_by_layer_and_expert(tmp_path: Path, name: str, array: Any) -> None:
    found = read_recorded_routing(npz(tmp_path / "ids.npz", **{name: np.array(array, np.int16)}))
    assert found.counts.tolist() == ROUTED_COUNTS
    assert found.top_k == 2


def test_ids_of_one_layer_are_counted(tmp_path: Path) -> None:
    found = read_recorded_routing(npz(tmp_path / "ids.npz", topk_ids=[[0, 1], [1, 5]]), 8)
    assert found.counts.tolist() == [[1, 2, 0, 0, 0, 1, 0, 0]]


def test_an_answer_of_vllm_holds_prompt_and_generated_tokens(tmp_path: Path) -> None:
    answer = {
        "id": "cmpl-1",
        "prompt_routed_experts": ROUTED[:1],
        "choices": [{"text": "", "routed_experts": ROUTED[1:]}, {"routed_experts": None}],
    }
    found = read_recorded_routing(written(tmp_path / "answer.json", answer))
    assert found.counts.tolist() == ROUTED_COUNTS


def test_layers_by_name_are_read_from_json(tmp_path: Path) -> None:
    rows = {"3": COUNTS[0], "61": COUNTS[1]}
    found = read_recorded_routing(written(tmp_path / "c.json", rows))
    assert found.layers == ("3", "61")
    assert found.layer("61").counts.tolist() == [COUNTS[1]]
    with pytest.raises(InvalidInput, match=r"no layer '4' .* \(layers: 3, 61\)"):
        found.layer("4")


# What is refused.


class Evil:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_torch_file_that_could_run_code_is_refused_and_does_not(tmp_path: Path) -> None:
    path = saved(tmp_path / "evil.pt", {"logical_count": Evil(tmp_path / "made")})
    assert "which could run code" in refusal(path)
    (tmp_path / "evil2.pt").write_bytes(pickle.dumps(Evil(tmp_path / "made")))
    refusal(tmp_path / "evil2.pt")
    assert not (tmp_path / "made").exists()


def test_pickled_arrays_are_refused_and_not_run(tmp_path: Path) -> None:
    evil = np.empty(1, dtype=object)
    evil[0] = Evil(tmp_path / "made")
    np.save(tmp_path / "evil.npy", evil, allow_pickle=True)
    refusal(tmp_path / "evil.npy")
    refusal(npz(tmp_path / "evil.npz", counts=evil))
    assert not (tmp_path / "made").exists()


def test_a_zip_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big.npz"
    np.savez_compressed(path, counts=np.zeros(1 << 20, dtype=np.int64))
    monkeypatch.setattr(_routing_dumps, "MOST_ARRAY_BYTES", 1 << 20)
    assert "unpacks to" in refusal(path)


@pytest.mark.parametrize("name", ["c.npz", "c.npy", "c.pt"])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_files_are_routing_or_one_sentence(
    tmp_path: Path, name: str, place: float, byte: int, cut: bool
) -> None:
    path = tmp_path / name
    if name == "c.npz":
        npz(path, counts=COUNTS)
    elif name == "c.npy":
        np.save(path, np.array(COUNTS))
    else:
        saved(path, {"logical_count": torch.tensor(COUNTS)})
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    content[at] = byte
    path.write_bytes(content[:at] if cut else content)
    try:
        read_recorded_routing(path)
    except CorruptFile:
        refusal(path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "must hold whole numbers"),
        ({}, "nothing"),
        (3, "neither an object nor a list"),
        ({"a": 1}, "it has 'a'"),
        ({"counts": [[1, -1]]}, "values from -1"),
        ({"counts": [[1, 1.5]]}, "must hold whole numbers"),
        ({"counts": [[1, 2], [3]]}, "'counts'"),
        ({"counts": "many"}, "'counts'"),
        ({"counts": [[0, 0]]}, "no expert has a route"),
        ({"counts": 7}, "has shape ()"),
        ({"a": [1, 2], "b": [1]}, "different numbers of experts"),
        ({"routed_experts": [[1, 2]]}, "has shape (1, 2)"),
        ({"routed_experts": [[[1, -2]]]}, "values from -2"),
        ({"routed_experts": [[[1, 99999]]]}, "ids up to 99999"),
        ({"topk_ids": [[1, 2]], "routed_experts": [[[1, 2]], [[1, 3]]], "x": 1}, ""),
        ({"records": []}, "has no pass"),
        ({"records": [{}]}, "has no 'global_physical_count'"),
        ({"records": [{"global_physical_count": [[1, 2]]}]}, "last_physical_to_logical_map"),
    ],
)
def test_json_without_routing_is_one_sentence(tmp_path: Path, value: object, words: str) -> None:
    path = written(tmp_path / "c.json", value)
    if not words:  # one layer by two names: both count
        assert read_recorded_routing(path).counts.tolist() == [[0, 3, 2, 1]]
        return
    assert words in refusal(path)


def test_dumps_of_other_layers_or_top_k_are_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "ids.npz", topk_ids=[[0, 1]], routed_experts=ROUTED)
    assert "different layers or top_k" in refusal(path)


def test_another_number_of_experts_is_refused(tmp_path: Path) -> None:
    assert "it has 4 experts, not 8" in refusal(npz(tmp_path / "c.npz", counts=COUNTS), experts=8)
    path = npz(tmp_path / "ids.npz", topk_ids=[[0, 9]])
    assert "id 9 occurs, and there are 8 experts" in refusal(path, experts=8)
    assert read_recorded_routing(path, experts=12).experts == 12


@pytest.mark.parametrize("name", ["c.npz", "c.npy", "c.pt", "c.json"])
@pytest.mark.parametrize("content", [b"", b"rubbish", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x02."])
def test_broken_files_are_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refusal(tmp_path / name)


def test_no_such_file_and_other_suffixes_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_recorded_routing(tmp_path / "none.npz")
    (tmp_path / "c.csv").write_text("1")
    with pytest.raises(InvalidInput, match=r"must end in \.npz"):
        read_recorded_routing(tmp_path / "c.csv")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ("counts", "routed_experts", "topk_ids", "records", "choices", "0")
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_routing_or_one_sentence(tmp_path: Path, value: object) -> None:
    path = written(tmp_path / "any.json", value)
    try:
        found = read_recorded_routing(path)
    except CorruptFile:
        refusal(path)
        return
    assert found.counts.any()
    assert (found.counts >= 0).all()


# Routings from it.


@pytest.mark.parametrize("form", ["npz", "pt", "json"])
def test_the_command_lines_routing_reads_dumps(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"c.{form}"
    {"npz": lambda: npz(path, counts=COUNTS),
     "pt": lambda: saved(path, {"logical_count": torch.tensor(COUNTS)}),
     "json": lambda: written(path, {"counts": COUNTS})}[form]()  # fmt: skip
    assert parse_routing(f"{path}#1").counts == tuple(COUNTS[1])
    assert parse_routing(str(path)) == read_recorded_routing(path).as_routing()


def test_layers_are_joined_as_in_a_counts_file(tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", {"0": COUNTS[0], "1": COUNTS[1]})
    assert read_recorded_routing(path).as_routing() == parse_routing(str(path))


def recorded(counts: NDArray[np.int64], top_k: int = 0) -> RecordedRouting:
    table = np.atleast_2d(counts)
    return RecordedRouting(
        source="test", layers=tuple(map(str, range(len(table)))), counts=table, top_k=top_k
    )


def drawn(routing: Routing, tokens: int, top_k: int, layers: int = 4) -> RecordedRouting:
    rng = np.random.default_rng(3)
    rows = [
        np.bincount(routing.sample(rng, tokens, 128, top_k).ravel(), minlength=128)
        for _ in range(layers)
    ]
    return recorded(np.array(rows), top_k)


@pytest.mark.parametrize("tokens", [300, 20_000])
@pytest.mark.parametrize("text", ["lognormal:0.3", "lognormal:0.8", "zipf:0.4", "zipf:0.8"])
def test_a_fit_finds_the_routing_that_counts_were_drawn_from(text: str, tokens: int) -> None:
    routing = parse_routing(text)
    fit = drawn(routing, tokens, 6).fit()
    assert fit.routing.kind == routing.kind or fit.distance < 2 * fit.sampling_distance
    same = drawn(routing, tokens, 6).fit(routing.kind)
    assert same.routing.skew == pytest.approx(routing.skew, rel=0.12, abs=0.02)
    assert same.distance < 2.5 * same.sampling_distance


def test_few_uniform_routes_are_not_taken_for_skew() -> None:
    # 14 routes an expert: the raw spread alone would be read as sigma 0.26.
    fit = drawn(Routing(kind="uniform"), 300, 6).fit("lognormal")
    assert fit.routing.skew < 0.08


def test_a_fit_without_top_k_is_of_the_shares_themselves() -> None:
    shares = Routing(kind="zipf", skew=1.2).probabilities(64)
    counts = np.random.default_rng(0).multinomial(200_000, shares)
    assert recorded(counts).fit("zipf").routing.skew == pytest.approx(1.2, rel=0.03)


def test_layers_without_routes_do_not_count() -> None:
    # Dense layers stand with zeros in SGLang's dumps.
    one = drawn(parse_routing("lognormal:0.5"), 5_000, 6, layers=1)
    padded = recorded(np.vstack([np.zeros_like(one.counts), one.counts]), 6)
    assert padded.fit("lognormal").routing == one.fit("lognormal").routing


def test_a_kind_that_is_not_fitted_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be one of lognormal, zipf"):
        recorded(np.array([1, 2])).fit("uniform")


def test_resampling_keeps_shares_and_is_repeatable() -> None:
    whole = recorded(np.array([0, 100, 300, 600]))
    one = whole.resampled(100_000, seed=1)
    assert one == whole.resampled(100_000, seed=1)
    assert one != whole.resampled(100_000, seed=2)
    assert sum(one.counts) == 100_000
    assert np.array(one.counts) / 100_000 == pytest.approx([0, 0.1, 0.3, 0.6], abs=0.01)


@pytest.mark.parametrize("routes", [0, -1, 1 << 53])
def test_resampling_no_routes_is_refused(routes: int) -> None:
    with pytest.raises(InvalidInput, match="routes is"):
        recorded(np.array([1, 2])).resampled(routes, seed=1)


@pytest.mark.parametrize("counts", [[[0, 0]], [[-1, 2]]])
def test_counts_of_no_routing_are_refused(counts: list[list[int]]) -> None:
    with pytest.raises(InvalidInput, match="negative or all zero"):
        recorded(np.array(counts))
