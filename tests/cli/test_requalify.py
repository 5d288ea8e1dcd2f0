"""`rubin-tune requalify`: the old best are timed again, and what moved is told."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.kernels.megamoe import MegaMoE

Run = Callable[..., Any]
LAYER = ("--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")


def recorded(run: Run, landscape: Path, *words: str) -> Any:
    return run(
        "sweep",
        "fused_moe",
        *LAYER,
        "--evaluator",
        f"recorded:{landscape}",
        "--trials",
        "24",
        *words,
    )


def rewritten(landscape: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a recording of the same points with another triton, each line changed."""
    header, *lines = gzip.decompress(landscape.read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        change(row)
    first = {**json.loads(header), "triton": "4.0.0"}
    path = landscape.with_name("again.jsonl.gz")
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, [first, *rows])).encode()))
    return path


def slower(row: dict[str, Any]) -> None:
    """A tenth slower everywhere: nothing changes its place."""
    if "t" in row:
        row["t"] = [1.1 * time for time in row["t"]]


def turned(row: dict[str, Any]) -> None:
    """Three stages, which were slightly slower, are much faster now."""
    if "t" in row and row["c"][5] == 3:
        row["t"] = [0.8 * time for time in row["t"]]


def again(run: Run, landscape: Path, *words: str) -> Any:
    result = run(
        "requalify", "fused_moe", "--target", "h200", "--evaluator", f"recorded:{landscape}",
        *words, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output + result.stderr
    return json.loads(result.stdout)


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"select count(*) from {table}").fetchone()[0])


def test_winners_that_kept_their_place_are_told_with_the_change(
    run: Run, landscape: Path, tmp_path: Path
) -> None:
    recorded(run, landscape)
    trials = count(tmp_path / "trials.sqlite", "trials")
    found = again(run, rewritten(landscape, slower))
    assert {row["tokens"] for row in found["rows"]} == {16, 1024}
    assert {row["unit"] for row in found["rows"]} == {"gate_up", "down", "layer"}
    assert {row["winner"] for row in found["rows"]} == {"kept"}
    assert all(row["change_percent"] == pytest.approx(10) for row in found["rows"])
    assert all(row["stale"] == ["triton was 3.6.0, is 4.0.0"] for row in found["rows"])
    assert found["evidence"] == "recorded"
    # Far fewer variants than the sweep's, and the old rows stay.
    assert 0 < found["variants"] < 2 * 24 / 2
    assert count(tmp_path / "trials.sqlite", "trials") > trials
    assert run("db", "check").exit_code == 0


def test_a_winner_that_changed_is_told_with_what_the_old_one_takes_now(
    run: Run, landscape: Path
) -> None:
    recorded(run, landscape)
    found = again(run, rewritten(landscape, turned), "--tokens", "16", "--top", "6")
    assert {row["tokens"] for row in found["rows"]} == {16}
    (row,) = [row for row in found["rows"] if row["unit"] == "gate_up"]
    assert row["winner"] == "changed"
    assert row["after"]["config"]["num_stages"] == 3
    assert row["after"]["time_us"] < row["old_config_us"]
    assert row["displaces"]


def test_what_was_timed_again_is_not_stale_and_is_looked_up(run: Run, landscape: Path) -> None:
    recorded(run, landscape)
    newer = rewritten(landscape, turned)
    again(run, newer)
    assert again(run, newer)["rows"] == []
    assert len(again(run, newer, "--all")["rows"]) == 6
    said = run("requalify", "fused_moe", "--target", "h200", "--evaluator", f"recorded:{newer}")
    assert "is stale: nothing was timed" in said.stdout
    found = run("lookup", "fused_moe", *LAYER, "--tokens", "16", "--json")
    assert any("triton was 4.0.0" in why for why in json.loads(found.stdout)["stale"])


def test_a_sweep_is_not_answered_by_what_was_timed_again(run: Run, landscape: Path) -> None:
    recorded(run, landscape)
    newer = rewritten(landscape, slower)
    again(run, newer)
    result = recorded(run, newer, "--json")
    assert json.loads(result.stdout)["counts"]["evaluated"] > 0


def test_people_are_told_in_a_table(run: Run, landscape: Path) -> None:
    recorded(run, landscape)
    newer = rewritten(landscape, slower)
    result = run("requalify", "fused_moe", "--target", "h200", "--evaluator", f"recorded:{newer}")
    assert result.exit_code == 0
    for said in ("+10.0%", "kept", "recorded -> recorded", "6 winners kept, 0 changed, 0 lost"):
        assert said in result.stdout


def test_the_kernels_source_makes_winners_of_the_model_stale(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--model", "qwen3-30b-a3b", "--target", "vr200")
    swept = run("sweep", "megamoe", *words, "--tokens", "16", "--trials", "2", "--audit", "0")
    assert swept.exit_code == 0, swept.stderr
    fresh = run("requalify", "megamoe", "--target", "vr200")
    assert "is stale: nothing was timed" in fresh.stdout
    monkeypatch.setattr(MegaMoE, "source_hash", lambda self: "beef" * 4)
    result = run("requalify", "megamoe", "--target", "vr200", "--top", "1", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["evidence"] == "predicted"
    assert all("is beefbeefbeefbeef" in row["stale"][0] for row in found["rows"])
    assert {row["winner"] for row in found["rows"]} == {"kept"}
    assert all(row["change_percent"] == pytest.approx(0) for row in found["rows"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "h200"), "give the recording of the new toolchain"),
        (("--target", "vr200"), "no winners of fused_moe on vr200"),
        (("--target", "h200", "--model", "nix"), "no winners of fused_moe for 'nix'"),
        (("--target", "h200", "--tokens", "3"), "no winners of fused_moe at 3 tokens"),
        (("--target", "h200", "--tokens", "x"), "'x'"),
        (("--target", "h200", "--top", "0"), "top is 0"),
        (("--target", "h200", "--evaluator", "gpu"), "not in this machine"),
        (("--target", "h200", "--evaluator", "recorded"), "recorded:FILE"),
        (("--target", "h20o"), "h200"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_timed_here_is_refused(
    run: Run,
    landscape: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    recorded(run, landscape)
    # As if vLLM were installed: what is missing is the GPU.
    monkeypatch.setattr("rubin_tune.kernels.fused_moe.find_spec", lambda name: object())
    before = (
        count(tmp_path / "trials.sqlite", "trials"),
        count(tmp_path / "trials.sqlite", "sweeps"),
    )
    result = run("requalify", "fused_moe", *words)
    assert result.exit_code == 2, result.output + result.stderr
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    after = (
        count(tmp_path / "trials.sqlite", "trials"),
        count(tmp_path / "trials.sqlite", "sweeps"),
    )
    assert after == before


def test_measured_winners_are_not_replaced_by_predictions(
    run: Run, landscape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(run, landscape)
    with closing(sqlite3.connect(tmp_path / "trials.sqlite")) as connection:
        connection.execute("update winners set evidence = 3")
        connection.commit()
    monkeypatch.setattr("rubin_tune.kernels.fused_moe.find_spec", lambda name: object())
    result = run("requalify", "fused_moe", "--target", "h200")
    assert result.exit_code == 2
    assert "run requalify on a machine with h200" in result.stderr
    newer = rewritten(landscape, turned)
    words = ("requalify", "fused_moe", "--target", "h200", "--evaluator", f"recorded:{newer}")
    said = run(*words)
    assert "measured -> recorded" in said.stdout
    assert "displaces none: the old winners stand" in said.stderr
    found = run("lookup", "fused_moe", *LAYER, "--tokens", "16", "--json")
    assert json.loads(found.stdout)["evidence"] == "measured"
