"""`rubin-tune compare`: two sweeps side by side, evidence never mixed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Sweeps = Callable[..., Path]


@pytest.fixture
def recorded(run: Run, landscape: Path, tmp_path: Path) -> Path:
    path = tmp_path / "recorded.sqlite"
    result = run(
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--trials", "12", "--db", str(path),
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return path


def answer(run: Run, *words: str) -> dict[str, Any]:
    result = run("compare", *words, "--json")
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_sweep_ties_with_itself(run: Run, measured: Path) -> None:
    found = answer(run, "feed", "feed0001", "--db", str(measured))
    assert found["schema"] == "rubin-tune.compare/1"
    assert found["differences"] == []
    assert {(r["ratio"], r["verdict"], r["changes"]) for r in found["rows"]} == {(1.0, "tie", "")}
    assert "2 are ties" in found["summary"]


@pytest.mark.parametrize(
    ("slower", "verdict"), [(1.2, "A faster"), (0.8, "B faster"), (1.005, "tie")]
)
def test_a_difference_counts_beyond_the_tie_band(
    run: Run, measured: Path, tmp_path: Path, sweeps: Sweeps, slower: float, verdict: str
) -> None:
    other = sweeps(tmp_path / "other.sqlite", sweep_id="beef0002", slower=slower)
    found = answer(run, str(measured), str(other))
    assert {r["verdict"] for r in found["rows"]} == {verdict}
    assert all(r["ratio"] == pytest.approx(slower) for r in found["rows"])
    assert all(r["a"]["interval_us"] for r in found["rows"])


def test_a_database_and_one_of_its_sweeps_can_be_named(
    run: Run, measured: Path, tmp_path: Path, sweeps: Sweeps
) -> None:
    sweeps(measured, sweep_id="beef0002", slower=2.0)
    found = answer(run, f"{measured}#feed", str(measured))
    assert (found["a"]["sweep_id"], found["b"]["sweep_id"]) == ("feed0001", "beef0002")


def test_changed_parameters_are_named(
    run: Run, measured: Path, tmp_path: Path, sweeps: Sweeps
) -> None:
    # Only the default and its first neighbour: another winner.
    other = sweeps(tmp_path / "other.sqlite", sweep_id="beef0002", count=2)
    found = answer(run, str(measured), str(other))
    for row in found["rows"]:
        assert row["a"]["config"] != row["b"]["config"]
        for change in row["changes"].split():
            name, _, value = change.partition("=")
            assert str(row["b"]["config"][name]).lower() == value


def test_times_of_different_evidence_are_not_judged(
    run: Run, recorded: Path, measured: Path
) -> None:
    found = answer(run, str(measured), str(recorded))
    assert {r["verdict"] for r in found["rows"]} == {"not judged: measured against recorded"}
    assert "not judged" in found["summary"]
    differing = {d["what"] for d in found["differences"]}
    assert {"kernel", "weights", "toolchain", "policy", "evidence"} <= differing
    assert {o["tokens"] for o in found["only_b"]} == {1024}


def test_text_says_what_differs_and_both_evidences(
    run: Run, recorded: Path, measured: Path
) -> None:
    result = run("compare", str(measured), str(recorded))
    assert result.exit_code == 0, result.stderr
    for words in ("They differ in", "measured", "recorded", "only B has", "B / A"):
        assert words in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch", "feed0001"), "unknown sweep 'nosuch'"),
        (("feed0001", "nosuch.sqlite#x"), "does not exist"),
        (("feed0001", "#feed0001"), "unknown sweep '#feed0001'"),
        (("feed0001", "1024.sqlite"), "share no token count"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)
def test_bad_input_is_refused_in_one_sentence(
    run: Run, landscape: Path, measured: Path, words: tuple[str, ...], said: str
) -> None:
    made = run(
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--trials", "4", "--tokens", "1024",
        "--db", "1024.sqlite",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    result = run("compare", *words, "--db", str(measured))
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_one_argument_is_not_enough(run: Run) -> None:
    assert run("compare", "a").exit_code == 2
