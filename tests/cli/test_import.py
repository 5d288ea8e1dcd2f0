"""`rubin-tune import`: others' tables are kept as seeds; what cannot be meant writes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
ROW = {
    "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
    "num_warps": 4, "num_stages": 3,
}  # fmt: skip


def test_an_import_says_what_it_kept_and_what_it_skipped(run: Run, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"1": ROW, "2": {**ROW, "USE_TMA": True}}))
    result = run("import", NAME)
    assert result.exit_code == 0, result.stderr
    assert "1 seeds of fused_moe from vllm; skipped 1" in result.stdout
    found = json.loads(run("import", NAME, "--json").stdout)
    assert found["schema"] == "rubin-tune.import/1"
    assert found["files"][0]["seeds"] == 1
    with sqlite3.connect(tmp_path / "trials.sqlite") as connection:
        assert connection.execute("select count(*) from seeds").fetchone() == (1,)
        assert connection.execute("select count(*) from winners").fetchone() == (0,)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"1": {"BLOCK_SIZE_M": 16}}', "\0"])
def test_a_malformed_table_is_refused_in_one_sentence(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    result = run("import", NAME)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "trials.sqlite").exists()


def test_a_sweep_times_an_imported_row_and_says_what_its_winners_gain(
    run: Run, landscape: Path, tmp_path: Path
) -> None:
    slow = {**ROW, "BLOCK_SIZE_M": 64, "BLOCK_SIZE_K": 64, "num_stages": 5}
    (tmp_path / NAME).write_text(json.dumps({"16": slow}))
    words = (
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--trials", "8", "--audit", "0", "--tokens", "16",
    )  # fmt: skip
    before = json.loads(run(*words, "--json").stdout)
    assert before["baselines"] == []
    assert run("import", NAME).exit_code == 0
    after = json.loads(run(*words, "--json", "--seed", "1").stdout)
    (row,) = after["baselines"]
    # As the recording has it: the stages of the row are no value of its grid.
    assert "num_stages moved" in row["source"]
    won = sum(w["time_us"] for w in after["winners"] if w["unit"] in ("gate_up", "down"))
    assert row["winner_us"] == pytest.approx(won)
    assert row["speedup"] == pytest.approx(row["time_us"] / won)
    assert row["speedup"] > 1.5
    again = run(*words, "--seed", "1")
    assert "over the imported table" in again.stdout
