"""`explain`: the row, what lost, what was refused, how old it is, what an engine asks for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
LAYER = ("--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")


@pytest.fixture
def swept(run: Run, landscape: Path) -> Run:
    """A command line whose database holds a recorded sweep of 16 and 1024 tokens."""
    result = run("sweep", "fused_moe", *LAYER, "--evaluator", f"recorded:{landscape}")
    assert result.exit_code == 0, result.output
    return run


def explained(run: Run, *words: str) -> dict[str, Any]:
    result = run("explain", "fused_moe", *LAYER, *words, "--json")
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_row_and_what_lost_to_it_are_told(swept: Run) -> None:
    found = explained(swept, "--tokens", "16", "--unit", "gate_up")
    assert found["schema"] == "rubin-tune.explain/1"
    assert found["choice"]["reason"] == "exact"
    assert found["choice"]["config"] == found["row"]["config"]
    assert found["row"]["evidence"] == "recorded"
    lost = found["alternatives"]
    assert len(lost) >= 5
    for one in lost:
        assert one["config"] != found["row"]["config"]
        assert one["evidence"] == "recorded"
        assert one["interval_us"][0] <= one["time_us"] <= one["interval_us"][1]
        wanted = one["time_us"] / found["row"]["time_us"] - 1
        assert one["lost_by"] == pytest.approx(wanted, abs=1e-3)
        if "tie band" in one["verdict"] and "more" in one["verdict"]:
            assert one["lost_by"] > 0
    times = [one["time_us"] for one in lost if not one["is_default"]]
    assert times == sorted(times)


def test_what_was_refused_is_counted_by_reason(swept: Run) -> None:
    found = explained(swept, "--tokens", "16", "--unit", "gate_up")
    (refused,) = found["refused"]
    assert refused["why"] == "compile_error"
    assert refused["count"] == 1
    assert refused["meaning"] == "did not compile"
    assert refused["example"]["block_m"] == 16


def test_a_layer_is_explained_by_its_gemms(swept: Run) -> None:
    found = explained(swept, "--tokens", "16")
    assert {one["unit"] for one in found["alternatives"]} == {"gate_up", "down"}
    assert set(found["tried"]) == {"gate_up", "down"}


def test_a_bucket_is_explained_by_the_row_it_is_from(swept: Run) -> None:
    found = explained(swept, "--tokens", "100")
    assert found["choice"]["reason"] == "bucket"
    assert found["row"]["tokens"] == 16


def test_another_toolchain_and_source_are_told(swept: Run, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "trials.sqlite")) as connection, connection:
        connection.execute("update winners set source_hash = 'old'")
        connection.execute("update trials set source_hash = 'old'")
        connection.execute(
            'update toolchains set record = replace(record, \'"triton":"3\', \'"triton":"2\')'
        )
    found = explained(swept, "--tokens", "16")
    assert any(line.startswith("triton was 2.") for line in found["stale"])
    assert any("source was old" in line for line in found["stale"])


def test_each_rank_of_vllm_is_told_its_file_and_key(swept: Run) -> None:
    words = ("--tokens", "20", "--engine", "vllm", "--device-name", "NVIDIA H200")
    (file,) = explained(swept, *words)["files"]
    assert file["file"] == (
        "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    )
    # Nearest by difference: 16 and 24 are as near, and vLLM takes the first.
    assert file["key"] == "16"
    assert "winner" in file["what"]
    assert file["ranks"] == [0]


def test_the_named_file_and_key_are_those_of_the_export(swept: Run, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    named = ("--device-name", "NVIDIA H200")
    exported = swept("export", "fused_moe", *LAYER, "--format", "vllm", "--out", str(out), *named)
    assert exported.exit_code == 0, exported.output
    for tokens in (1, 20, 700, 5000):
        words = ("--tokens", str(tokens), "--engine", "vllm", *named)
        (file,) = explained(swept, *words)["files"]
        table = json.loads((out / file["file"]).read_text())
        counts = [int(key) for key in table if key != "triton_version"]
        assert file["key"] == str(min(counts, key=lambda count: abs(count - tokens)))


def test_ranks_with_unlike_experts_ask_for_unlike_files(swept: Run) -> None:
    words = (
        "--tokens",
        "16",
        "--layout",
        "dep3",
        "--engine",
        "vllm",
        "--device-name",
        "NVIDIA H200",
    )
    found = explained(swept, *words)
    assert [(f["experts"], f["ranks"]) for f in found["files"]] == [(43, [0, 1]), (42, [2])]
    assert [f["file"].split(",")[0] for f in found["files"]] == ["E=43", "E=42"]


def test_without_a_database_the_default_is_explained(run: Run, tmp_path: Path) -> None:
    found = explained(run, "--tokens", "16")
    assert found["row"] is None
    assert found["choice"]["reason"] == "default"
    assert not (tmp_path / "trials.sqlite").exists()


def test_people_are_told_in_sentences(swept: Run) -> None:
    result = swept("explain", "fused_moe", *LAYER, "--tokens", "16")
    assert result.exit_code == 0
    for said in ("exact: recorded at 16 tokens", "what lost", "what was refused", "stale:"):
        assert said in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--engine", "json"), "no engine's table"),
        (("--engine", "vlm"), "vllm"),
        (("--engine", "vllm"), "--device-name"),
    ],
)
def test_an_engine_that_cannot_be_told_of_is_refused(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    result = run("explain", "fused_moe", *LAYER, "--tokens", "16", *words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_an_engine_does_not_read_tables_of_our_kernel(run: Run) -> None:
    result = run("explain", "megamoe", "--tokens", "16", "--engine", "vllm")
    assert result.exit_code == 2
    assert "megamoe" in result.stderr


def test_misses_become_a_sweep(run: Run, landscape: Path, tmp_path: Path) -> None:
    from rubin_tune.db.silicon import silicon_of
    from rubin_tune.db.table_file import problem_keys
    from rubin_tune.runtime import MissLog, Reason
    from rubin_tune.topology import load_gpu
    from rubin_tune.tuner import SweepRequest
    from rubin_tune.tuner.request import resolve_problem

    gpu, path = load_gpu("h200"), tmp_path / "misses.jsonl"
    asked = SweepRequest(
        kernel="fused_moe", model="qwen3-30b-a3b", dtype="fp8", target="h200", routing="uniform"
    )
    keys = problem_keys(resolve_problem(asked, gpu), silicon_of(gpu))
    MissLog(path).of("fused_moe", "layer", keys)(16, Reason.DEFAULT)
    words = ("sweep", "fused_moe", "--evaluator", f"recorded:{landscape}", "--trials", "8")
    result = run(*words, "--from-misses", str(path), "--json")
    assert result.exit_code == 0, result.output + result.stderr
    (swept,) = json.loads(result.stdout)["results"]
    assert {w["tokens"] for w in swept["winners"]} == {16}
    refused = run(*words, "--from-misses", str(path), "--tokens", "4")
    assert refused.exit_code == 2
    assert "--tokens" in refused.stderr
    absent = run(*words, "--from-misses", str(tmp_path / "absent"))
    assert absent.exit_code == 2
    assert "no such file" in absent.stderr
