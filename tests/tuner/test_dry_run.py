"""A dry run: costs from stored rates or stated assumptions, predicted headroom, nothing written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rubin_tune.db import Evidence, open_store
from rubin_tune.db.testing import REPORT, TRIAL
from rubin_tune.search_spaces import Unit
from rubin_tune.tuner import SweepRequest, resolve
from rubin_tune.tuner.dry_run import ASSUMED_COMPILE_S, Estimate, estimate, summary
from rubin_tune.tuner.imports import ImportRequest, import_results

ASKED = SweepRequest(model="qwen3-30b-a3b", dtype="fp8", target="h200", tokens="16,1024", audit=0)
NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
# A row that no one would choose: a config that was tuned for one token, at 4096.
BAD = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 64,
    "num_warps": 8, "num_stages": 2,
}  # fmt: skip


def estimated(*requests: SweepRequest, database: Path) -> Sequence[Estimate]:
    return estimate(requests, database=database, jobs=1)


def test_costs_are_counted_and_assumptions_stated(tmp_path: Path) -> None:
    (found,) = estimated(ASKED, database=tmp_path / "t.db")
    assert found.variants == found.compiles == 2 * 64
    assert 0 < found.legal < found.space
    assert found.seconds == pytest.approx(found.compiles * ASSUMED_COMPILE_S)
    assert "assumed" in found.rates
    assert list(tmp_path.iterdir()) == []


def test_a_budget_bounds_the_minutes(tmp_path: Path) -> None:
    asked = SweepRequest(target="h200", model="qwen3-30b-a3b", tokens="16", budget_s=7.0)
    (found,) = estimated(asked, database=tmp_path / "t.db")
    assert found.seconds == 7.0


def test_sweeps_of_the_same_code_count_its_compilations_once(tmp_path: Path) -> None:
    other = SweepRequest(
        model="qwen3-30b-a3b", dtype="fp8", target="h200", tokens="64", routing="balanced",
        trials=80, audit=0,
    )  # fmt: skip
    far = SweepRequest(model="qwen3-30b-a3b", dtype="bf16", target="h200", tokens="64", audit=0)
    found = estimated(ASKED, other, far, database=tmp_path / "t.db")
    assert [one.compiles for one in found] == [128, 32, 128]
    assert "288 compilations" in summary(found)


def test_headroom_is_predicted_against_the_default(tmp_path: Path) -> None:
    (found,) = estimated(ASKED, database=tmp_path / "t.db")
    assert [row.tokens for row in found.headroom] == [16, 1024]
    for row in found.headroom:
        assert row.deployed == "default"
        assert row.share is not None
        assert row.share >= 0
    written = json.dumps(found.as_json(), allow_nan=False)
    assert '"evidence": "predicted"' in written


def test_headroom_is_over_the_imported_table_where_the_engine_reads_one(tmp_path: Path) -> None:
    landscape = SweepRequest(
        kernel="fused_moe", model="qwen3-30b-a3b", dtype="fp8", target="h200", tokens="16,1024",
        evaluator=f"recorded:{_landscape(tmp_path)}",
    )  # fmt: skip
    (tmp_path / NAME).write_text(json.dumps({"4096": BAD}))
    database = tmp_path / "t.db"
    (before,) = estimated(landscape, database=database)
    import_results(ImportRequest(files=(tmp_path / NAME,)), database=database)
    raw = database.read_bytes()
    (after,) = estimated(landscape, database=database)
    assert database.read_bytes() == raw
    for old, new in zip(before.headroom, after.headroom, strict=True):
        assert old.deployed == "default"
        assert "4096 tokens" in new.deployed
        assert new.deployed_us is not None
        assert old.deployed_us is not None
        assert new.deployed_us > old.deployed_us
    assert after.worth_it
    assert after.compiles == 0


def _landscape(folder: Path) -> Path:
    names = (
        "BLOCK_SIZE_M",
        "BLOCK_SIZE_N",
        "BLOCK_SIZE_K",
        "GROUP_SIZE_M",
        "num_warps",
        "num_stages",
    )
    grid = dict(zip(names, ([16, 64], [64], [128], [1], [4], [3]), strict=True))
    header = {
        "kind": "header", "shape": "qwen3-30b-a3b", "E": 128, "H": 2048, "I": 768, "topk": 8,
        "global_E": 128, "dtype": "fp8", "gpu": "NVIDIA H200", "triton": "3.6.0", "torch": "2.11.0",
        "grid": grid, "Ms": [16, 1024],
    }  # fmt: skip
    rows = [
        {"g": g, "M": m, "c": [block, 64, 128, 1, 4, 3], "t": [10.0]}
        for g in (1, 2)
        for m in (16, 1024)
        for block in (16, 64)
    ]
    path = folder / "landscape.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in (header, *rows)))
    return path


def test_stored_compilations_give_the_rate(tmp_path: Path) -> None:
    resolved = resolve(ASKED)
    with open_store(tmp_path / "t.db") as store:
        store.begin_sweep("s1", "print", {})
        store.add_trial(TRIAL)
    assert resolved.setting.gpu.arch == REPORT.target
    (found,) = estimated(ASKED, database=tmp_path / "t.db")
    assert "stored reports" in found.rates
    assert found.seconds == pytest.approx(128 * REPORT.compile_s)


def test_trials_that_are_stored_are_not_paid_again(tmp_path: Path) -> None:
    from dataclasses import replace

    from rubin_tune.db.silicon import silicon_of
    from rubin_tune.tuner import cost_model

    setting = resolve(ASKED).setting
    kept = replace(
        TRIAL, kernel="megamoe", source_hash=setting.kernel.source_hash(), unit=Unit.DOWN,
        problem=setting.problems[0], silicon=silicon_of(setting.gpu),
        policy=f"cost-model/{cost_model.VERSION}", evidence=Evidence.PREDICTED,
    )  # fmt: skip
    with open_store(tmp_path / "t.db") as store:
        store.begin_sweep("s1", "print", {})
        store.add_trial(kept)
    (found,) = estimated(ASKED, database=tmp_path / "t.db")
    assert found.known == 1
