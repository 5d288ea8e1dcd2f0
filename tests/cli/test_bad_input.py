"""Bad input: one sentence, exit code 2, nothing written, no traceback."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

REFUSED = [
    (("sweep", "megamoe", "--model", "qwen3-30b-a3x"), "did you mean qwen3-30b-a3b"),
    (("sweep", "megamoe", "--target", "h20o"), "h200"),
    (("sweep", "megamoe", "--target", "sm_999"), "sm_999"),
    (("sweep", "megamoee",), "megamoe"),
    (("sweep", "megamoe", "--tokens", "0"), "0"),
    (("sweep", "megamoe", "--tokens", "-4"), "-4"),
    (("sweep", "megamoe", "--tokens", "many"), "many"),
    (("sweep", "megamoe", "--tokens", ""), "tokens"),
    (("sweep", "megamoe", "--layout", "dep1000"), "dep1000"),
    (("sweep", "megamoe", "--layout", "tp7"), "tp7"),
    (("sweep", "megamoe", "--layout", "pp2"), "pp2"),
    (("sweep", "megamoe", "--dtype", "fp8"), "fp8"),
    (("sweep", "megamoe", "--dtype", "int3"), "int3"),
    (("sweep", "megamoe", "--activations", "fp6"), "fp6"),
    (("sweep", "megamoe", "--routing", "pareto"), "pareto"),
    (("sweep", "megamoe", "--routing", "lognormal:nan"), "nan"),
    (("sweep", "megamoe", "--evaluator", "guess"), "guess"),
    (("sweep", "megamoe", "--evaluator", "recorded"), "recorded:FILE"),
    (("sweep", "megamoe", "--evaluator", "gpu", "--target", "vr200"), "gpu"),
    (("sweep", "megamoe", "--sampler", "oracle"), "oracle"),
    (("sweep", "megamoe", "--gpus", "9999"), "no such GPU"),
    (("sweep", "megamoe", "--trials", "0"), "0"),
    (("sweep", "megamoe", "--budget", "soon"), "soon"),
    (("sweep", "megamoe", "--wait-gpu", "long"), "wait-gpu is 'long'"),
    (("sweep", "megamoe", "--until", "0.5"), "0.5%"),
    (("sweep", "megamoe", "--until", "100%"), "between 0 % and 100 %"),
    (("sweep", "megamoe", "--portfolio", "0"), "portfolio is 0"),
    (("sweep", "megamoe", "--audit", "-1"), "audit is -1"),
    (("sweep", "megamoe", "--seed", "-1"), "-1"),
    (("sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--target", "h200", "--evaluator", "model"), "vllm"),
    (("inspect", "megamoe", "--set", "block_q=3"), "block_q"),
    (("inspect", "megamoe", "--set", "block_m=17"), "17"),
    (("lookup", "megamoe", "--tokens", "0"), "0"),
    (("export", "megamoe", "--format", "xml", "--out", "t"), "xml"),
    (("topology", "show", "h20o"), "h200"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(w) for w, _ in REFUSED])
def test_bad_input_is_refused_in_one_sentence(
    run: Run, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    before = set(tmp_path.rglob("*"))
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert (
        len([line for line in result.stderr.splitlines() if line.startswith("rubin-tune:")]) == 1
    )
    assert result.stdout == ""
    assert set(tmp_path.rglob("*")) - before <= {tmp_path / "cache"}


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1, 2]", "\x00\x01", '{"num_experts": -4}', '{"num_experts": "many"}', "NaN"],
)
def test_a_corrupt_config_json_is_refused(run: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    result = run("sweep", "megamoe", "--model", str(path))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "config.json" in result.stderr or "experts" in result.stderr


@pytest.mark.parametrize("content", ["", "[", "[1, -2]", '{"a": "b"}', "[NaN]", "\x00"])
def test_a_corrupt_counts_file_is_refused(run: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "counts.json"
    path.write_text(content)
    result = run("sweep", "megamoe", "--routing", str(path))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "content", [b"", b"not gzip", b"\x1f\x8b\x08broken", b'{"kind": "header"}']
)
def test_a_corrupt_landscape_is_refused(run: Run, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.jsonl.gz"
    path.write_bytes(content)
    result = run(
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{path}",
    )  # fmt: skip
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "trials.sqlite").exists()


def small_sweep(run: Run, landscape: Path, database: Path) -> Any:
    return run(
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--trials", "4", "--db", str(database),
    )  # fmt: skip


def test_a_foreign_sqlite_file_is_refused_and_left_alone(
    run: Run, landscape: Path, tmp_path: Path
) -> None:
    path = tmp_path / "foreign.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table notes (text)")
    connection.close()
    before = path.read_bytes()
    result = small_sweep(run, landscape, path)
    assert result.exit_code == 2
    assert "foreign.sqlite" in result.stderr
    assert path.read_bytes() == before


def test_a_text_file_as_database_is_refused(run: Run, landscape: Path, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear database, " * 100)
    result = small_sweep(run, landscape, path)
    assert result.exit_code == 2
    assert path.read_text().startswith("dear database")


def test_a_newer_database_is_refused(run: Run, landscape: Path, tmp_path: Path) -> None:
    path = tmp_path / "newer.sqlite"
    assert small_sweep(run, landscape, path).exit_code == 0
    with sqlite3.connect(path) as connection:
        connection.execute("update rubin_tune_version set version_num = '9999'")
    connection.close()
    result = small_sweep(run, landscape, path)
    assert result.exit_code == 2
    assert "newer" in result.stderr


def test_export_of_our_kernel_to_vllm_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("export", "megamoe", "--format", "vllm", "--out", str(tmp_path / "t"))
    assert result.exit_code == 2
    assert not (tmp_path / "t").exists()
