"""`export`: what it would write, and what it changes over the table that an engine ships."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
PROBLEM = ("fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")
NAME = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"


@pytest.fixture
def swept(run: Run, landscape: Path) -> Run:
    """Run `export` of a sweep over the recorded landscape."""
    swept = run("sweep", *PROBLEM, "--evaluator", f"recorded:{landscape}", "--trials", "12")
    assert swept.exit_code == 0, swept.stderr
    return lambda *words: run("export", *PROBLEM, *words)


@pytest.mark.parametrize("name", ["vllm", "json", "csv", "python", "optuna"])
def test_a_dry_run_names_the_files_and_writes_nothing(
    swept: Run, tmp_path: Path, name: str
) -> None:
    would = swept("--format", name, "--out", "t", "--dry-run")
    assert would.exit_code == 0, would.stderr
    assert not (tmp_path / "t").exists()
    done = swept("--format", name, "--out", "t")
    assert would.stdout == "".join(f"would write {line}\n" for line in done.stdout.splitlines())


def test_a_dry_run_refuses_what_an_export_refuses(swept: Run) -> None:
    words = ("--format", "sglang", "--out", "t")
    refused, real = swept(*words, "--dry-run"), swept(*words)
    assert refused.exit_code == real.exit_code == 2
    assert refused.stderr == real.stderr


def test_changes_over_another_table_are_told_row_by_row(swept: Run, tmp_path: Path) -> None:
    swept("--format", "vllm", "--out", "shipped")
    words = ("--format", "vllm", "--out", "new", "--against")
    assert swept(*words, "shipped").stdout.endswith("0 rows differ from shipped\n")
    table = json.loads((tmp_path / "shipped" / NAME).read_text())
    table["16"]["num_warps"] = 2
    del table["64"]
    (tmp_path / "shipped" / NAME).write_text(json.dumps(table))
    told = swept(*words, "shipped", "--dry-run", "--json")
    changes = json.loads(told.stdout)["changes"]
    assert [change["tokens"] for change in changes] == [16, 64]
    assert changes[0]["theirs"]["num_warps"] == 2
    assert changes[1]["theirs"] is None
    lines = swept(*words, f"shipped/{NAME}").stdout.splitlines()
    assert f"{NAME}, 64 tokens: no row -> " in lines[2]
    assert lines[-1].startswith("2 rows differ")


@pytest.mark.parametrize(
    ("name", "against", "words"),
    [
        ("vllm", ".", "nothing to compare with"),
        ("vllm", "trials.sqlite", "trials.sqlite"),
        ("csv", ".", "not read"),
        ("optuna", ".", "these are trials"),
        ("json", "trials.sqlite", "no rows by token count"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    swept: Run, tmp_path: Path, name: str, against: str, words: str
) -> None:
    refused = swept("--format", name, "--out", "new", "--against", against)
    assert refused.exit_code == 2
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "new").exists()
