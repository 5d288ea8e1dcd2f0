"""Imported rows become seeds of the right kernel and layer, in legal form; the rest is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import open_store
from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.topology import resolve_target
from rubin_tune.tuner.imports import ImportRequest, deployed, import_results
from rubin_tune.tuner.request import load_kernel

NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
ROW = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
    "num_warps": 4, "num_stages": 3,
}  # fmt: skip
OWN = LaunchConfig.of(block_m=16, block_n=64, block_k=128, group_m=1, num_warps=4, num_stages=3)


def imported(folder: Path, table: dict[str, Any], *, name: str = NAME, **options: Any) -> Any:
    path = folder / name
    path.write_text(json.dumps(table))
    request = ImportRequest(files=(path,), **options)
    (found,) = import_results(request, database=folder / "t.db")
    return found


def test_rows_become_seeds_in_our_spelling(tmp_path: Path, fp8: Problem) -> None:
    imported(tmp_path, {"1": ROW, "128": {**ROW, "BLOCK_SIZE_M": 64}})
    with open_store(tmp_path / "t.db") as store:
        near, far = store.seeds_for("fused_moe", fp8)
    assert (near.tokens, near.config["block_m"]) == (128, 64)
    assert far.config == OWN
    assert near.is_of(fp8)
    assert "vllm" in str(near)
    assert NAME in str(near)


def test_seeds_are_moved_onto_the_axes_clamped_and_merged(tmp_path: Path, fp8: Problem) -> None:
    rows = {
        "128": {**ROW, "GROUP_SIZE_M": 8, "BLOCK_SIZE_K": 256},
        "256": {**ROW, "GROUP_SIZE_M": 16},
        "512": {**ROW, "num_stages": 4},
    }
    imported(tmp_path, rows)
    gpu = resolve_target("h200")
    space = load_kernel("fused_moe").space(fp8, Unit.DOWN, gpu)
    with open_store(tmp_path / "t.db") as store:
        found = store.seeds_for("fused_moe", fp8, unit=Unit.DOWN, space=space)
    assert all(space.contains(seed.config) for seed in found)
    assert len(found) == 2
    assert found[0].config == OWN.replace(group_m=16)
    assert found[0].changed == ("group_m",)


def test_what_the_kernel_cannot_mean_is_skipped_and_counted(tmp_path: Path) -> None:
    rows = {
        "1": ROW,
        "2": {**ROW, "USE_TMA": True},
        "4": {**ROW, "BLOCK_SIZE_M": 24},
        "8": {**ROW, "BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256, "num_stages": 5},
        "16": {**ROW, "num_ctas": 1, "SPLIT_K": 4},
        "32": {**ROW, "waves_per_eu": 2},
    }
    found = imported(tmp_path, rows)
    assert [seed.tokens for seed in found.seeds] == [1, 16]
    assert sum(rows for _, rows in found.skipped) == 4
    assert any("USE_TMA" in why for why, _ in found.skipped)
    assert any("shared memory" in why for why, _ in found.skipped)


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ({"1": {**ROW, "USE_TMA": True}}, {}, "none of the 1 rows"),
        ({"1": {"BLOCK_SIZE_M": 16}}, {}, "BLOCK_SIZE_N of 1 tokens is missing"),
        ({"1": {**ROW, "num_warps": "4"}}, {}, "num_warps"),
        ({"1": ROW}, {"kernel": "megamoe"}, "--op fused_moe"),
        ({"1": ROW}, {"name": "mine.json"}, "give --model"),
        ({"1": ROW}, {"model": "qwen3-30b-a3b", "dtype": "bf16"}, "is of E=128, N=768"),
        ({"1": ROW}, {"model": "qwen3-30b-a3b", "tokens": "1,2"}, "one count"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_and_nothing_stored(
    tmp_path: Path, table: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        imported(tmp_path, table, **options)
    assert not (tmp_path / "t.db").exists()


def test_a_second_import_replaces_the_first(tmp_path: Path, fp8: Problem) -> None:
    imported(tmp_path, {"1": ROW, "2": ROW})
    imported(tmp_path, {"1": {**ROW, "num_stages": 4}})
    with open_store(tmp_path / "t.db") as store:
        (only,) = store.seeds_for("fused_moe", fp8)
    assert only.config["num_stages"] == 4


def test_one_broken_file_keeps_all_others_out(tmp_path: Path) -> None:
    good, bad = tmp_path / NAME, tmp_path / "bad.json"
    good.write_text(json.dumps({"1": ROW}))
    bad.write_text("{")
    with pytest.raises(InvalidInput, match=r"bad\.json"):
        import_results(ImportRequest(files=(good, bad)), database=tmp_path / "t.db")
    assert not (tmp_path / "t.db").exists()


def cache(keys: dict[str, list[int]]) -> dict[str, Any]:
    values = {name: options[0] for name, options in keys.items()}
    return {
        "tune_params_keys": list(keys), "tune_params": keys, "device_name": "NVIDIA H200",
        "kernel_name": "moe", "cache": {"0": {**values, "time": 0.5}},
    }  # fmt: skip


def test_a_kernel_tuner_cache_of_our_parameters_seeds_one_token_count(
    tmp_path: Path, fp8: Problem
) -> None:
    found = imported(
        tmp_path, cache({name: [value] for name, value in ROW.items()}), name="kt.json",
        model="qwen3-30b-a3b", dtype="fp8", tokens="64",
    )  # fmt: skip
    (seed,) = found.seeds
    assert (seed.config, seed.tokens, seed.time_us) == (OWN, 64, 500.0)
    assert seed.is_of(fp8)


def test_a_recorded_space_of_another_kernel_is_sent_to_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"python -m benchmarks\.search --landscape"):
        imported(tmp_path, cache({"bx": [16], "by": [1]}), name="kt.json")


def test_the_deployed_config_is_the_row_that_the_engine_would_take(
    tmp_path: Path, fp8: Problem
) -> None:
    imported(tmp_path, {"1": ROW, "96": {**ROW, "num_stages": 4}, "160": {**ROW, "num_stages": 5}})
    kernel, gpu = load_kernel("fused_moe"), resolve_target("h200")
    with open_store(tmp_path / "t.db") as store:
        seeds = store.seeds_for("fused_moe", fp8)
    at = deployed(seeds, kernel, fp8, Unit.DOWN, gpu)
    assert at.config["num_stages"] == 4
    assert "96 tokens" in at.source
    for other in (resolve_target("b200"), resolve_target("vr200")):
        assert deployed(seeds, kernel, fp8, Unit.DOWN, other).source == "default"
    elsewhere = [replace(seed, experts=64) for seed in seeds]
    assert deployed(elsewhere, kernel, fp8, Unit.DOWN, gpu).source == "default"
