"""`sweep --plan`, `--dry-run` and `export --portfolio`: one result an entry, resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.formats.json import load

Run = Callable[..., Any]

ENTRY = """
[defaults]
kernel = "fused_moe"
model = "qwen3-30b-a3b"
dtype = "fp8"
target = "h200"
evaluator = "recorded:{landscape}"
trials = 16
[[sweep]]
tokens = [16]
[[sweep]]
tokens = [16, 1024]
seed = 1
"""


@pytest.fixture
def plan(tmp_path: Path, landscape: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(ENTRY.replace("{landscape}", str(landscape)))
    return path


def answer(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_plan_has_one_result_an_entry_and_returns_it_again(run: Run, plan: Path) -> None:
    first = answer(run("sweep", "--plan", str(plan), "--json"))
    assert first["schema"] == "rubin-tune.plan/1"
    tokens = [sorted({w["tokens"] for w in r["winners"]}) for r in first["results"]]
    assert tokens == [[16], [16, 1024]]
    assert len({r["sweep_id"] for r in first["results"]}) == 2
    again = answer(run("sweep", "--plan", str(plan), "--json"))
    assert [r["sweep_id"] for r in again["results"]] == [r["sweep_id"] for r in first["results"]]


def test_a_plan_goes_on_with_the_entry_that_was_not_finished(
    run: Run, plan: Path, tmp_path: Path
) -> None:
    whole = plan.read_text()
    plan.write_text(whole.partition("[[sweep]]\ntokens = [16, 1024]")[0])
    (first,) = answer(run("sweep", "--plan", str(plan), "--json"))["results"]
    plan.write_text(whole)
    results = answer(run("sweep", "--plan", str(plan), "--json"))["results"]
    assert results[0]["sweep_id"] == first["sweep_id"]
    assert len(results) == 2


def test_people_get_a_table_an_entry(run: Run, plan: Path) -> None:
    result = run("sweep", "--plan", str(plan))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("times are recorded") == 2


def test_an_option_beside_a_plan_is_refused(run: Run, plan: Path, tmp_path: Path) -> None:
    result = run("sweep", "--plan", str(plan), "--tokens", "4")
    assert result.exit_code == 2
    assert "write tokens into the plan" in result.stderr
    assert not (tmp_path / "trials.sqlite").exists()


def test_an_unknown_key_is_refused_with_its_line(run: Run, plan: Path, tmp_path: Path) -> None:
    plan.write_text(plan.read_text().replace("seed", "sead"))
    result = run("sweep", "--plan", str(plan))
    assert result.exit_code == 2
    assert "unknown key 'sead' in sweep 2 (line 13): did you mean seed" in result.stderr
    assert not (tmp_path / "trials.sqlite").exists()


def test_a_dry_run_of_a_plan_says_costs_and_headroom_and_writes_nothing(
    run: Run, plan: Path, tmp_path: Path
) -> None:
    before = set(tmp_path.rglob("*"))
    found = answer(run("sweep", "--plan", str(plan), "--dry-run", "--json"))
    assert found["schema"] == "rubin-tune.dry-run/1"
    assert [[row["tokens"] for row in s["headroom"]] for s in found["sweeps"]] == [
        [16],
        [16, 1024],
    ]
    assert all(row["evidence"] == "predicted" for s in found["sweeps"] for row in s["headroom"])
    assert all(
        {"space", "legal", "compiles", "expected_s", "rates"} <= s.keys() for s in found["sweeps"]
    )
    assert set(tmp_path.rglob("*")) == before


def test_a_dry_run_of_one_sweep_is_told_to_people(run: Run, tmp_path: Path) -> None:
    result = run("sweep", "megamoe", "--target", "h200", "--model", "qwen3-30b-a3b",
                 "--tokens", "16", "--dry-run")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    for words in (
        "headroom",
        "times are predicted",
        "legal of",
        "compilations at most",
        "nothing was written",
    ):
        assert words in result.stdout
    assert not (tmp_path / "trials.sqlite").exists()


EXPORT = ("export", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")


def test_export_of_a_portfolio_takes_the_sweep_that_was_held_to_it(
    run: Run, landscape: Path, tmp_path: Path
) -> None:
    sweep = (
        "sweep",
        *EXPORT[1:],
        "--evaluator",
        f"recorded:{landscape}",
        "--trials",
        "64",
        "--json",
    )
    out = ("--format", "json", "--out", str(tmp_path / "tables"), "--portfolio", "1")
    answer(run(*sweep))
    refused = run(*EXPORT, *out)
    assert refused.exit_code == 2
    assert "run rubin-tune sweep with --portfolio 1" in refused.stderr
    assert not (tmp_path / "tables").exists()
    held = answer(run(*sweep, "--portfolio", "1"))
    result = run(*EXPORT, *out)
    assert result.exit_code == 0, result.stderr
    winners = load(Path(result.stdout.strip()))
    stored = {(w["tokens"], w["unit"]): w["config"] for w in held["winners"]}
    assert {(w.problem.tokens, w.unit.value): w.config.as_dict() for w in winners} == stored
