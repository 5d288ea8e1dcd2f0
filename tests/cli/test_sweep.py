"""`rubin-tune sweep` on a recorded landscape: winners, reuse, resume, export, look-up."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SWEEP = ("sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")


def recorded(landscape: Path, *more: str) -> tuple[str, ...]:
    return (*SWEEP, "--evaluator", f"recorded:{landscape}", *more)


def answer(result: Any) -> dict[str, Any]:
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_has_the_stable_keys(run: Run, landscape: Path) -> None:
    found = answer(run(*recorded(landscape, "--json")))
    assert found["schema"] == "rubin-tune.sweep/1"
    assert {
        "sweep_id", "database", "target", "evaluator", "evidence", "problem", "counts", "winners", "wall_s",
    } <= set(found)  # fmt: skip
    assert found["target"] == {"gpu": "h200", "arch": "sm_90"}
    assert found["evidence"] == "recorded"
    counts = {"space", "legal", "compiled", "failed", "evaluated", "reused"}
    assert counts <= set(found["counts"])
    for winner in found["winners"]:
        assert {
            "tokens", "unit", "config", "time_us", "interval_us", "default_config", "default_time_us",
            "speedup", "evidence", "compile",
        } <= set(winner)  # fmt: skip


def test_whole_recording_gives_the_optimum_and_one_config_for_both_gemms(
    run: Run, landscape: Path
) -> None:
    found = answer(run(*recorded(landscape, "--json", "--trials", "64")))
    best = {(w["tokens"], w["unit"]): w for w in found["winners"]}
    assert best[16, "gate_up"]["config"]["block_m"] == 16
    assert best[1024, "gate_up"]["config"]["block_m"] == 64
    for tokens in (16, 1024):
        assert best[tokens, "gate_up"]["config"] == best[tokens, "down"]["config"]
        assert best[tokens, "layer"]["config"] == best[tokens, "down"]["config"]
    assert best[16, "gate_up"]["time_us"] == pytest.approx(100.0)


def test_no_winner_is_slower_than_the_default(run: Run, landscape: Path) -> None:
    found = answer(run(*recorded(landscape, "--json", "--trials", "8")))
    assert found["winners"]
    layers = [w for w in found["winners"] if w["unit"] == "layer"]
    assert all(w["speedup"] >= 1.0 for w in layers)


def test_second_sweep_reuses_everything(run: Run, landscape: Path) -> None:
    first = answer(run(*recorded(landscape, "--json")))
    second = answer(run(*recorded(landscape, "--json")))
    assert second["counts"]["reused"] == first["counts"]["evaluated"] + _refused(first)
    assert second["winners"] == first["winners"]
    assert second["sweep_id"] == first["sweep_id"]


def _refused(found: dict[str, Any]) -> int:
    return len(_rows(found["database"])) - int(found["counts"]["evaluated"])


def _rows(database: str) -> list[tuple[Any, ...]]:
    path = database.removeprefix("sqlite:///")
    with sqlite3.connect(path) as connection:
        return connection.execute("select * from trials").fetchall()


def test_another_seed_reuses_the_trials_that_exist(run: Run, landscape: Path) -> None:
    answer(run(*recorded(landscape, "--json", "--trials", "64")))
    again = answer(run(*recorded(landscape, "--json", "--trials", "64", "--seed", "1")))
    assert again["counts"]["reused"] > 0.9 * again["counts"]["evaluated"]


def test_fresh_measures_again(run: Run, landscape: Path) -> None:
    answer(run(*recorded(landscape, "--json")))
    again = answer(run(*recorded(landscape, "--json", "--fresh")))
    assert again["counts"]["reused"] == 0


def test_a_budget_stops_early_and_the_next_run_goes_on(run: Run, landscape: Path) -> None:
    first = answer(run(*recorded(landscape, "--json", "--trials", "64", "--budget", "0.01s")))
    assert first["complete"] is False
    second = answer(run(*recorded(landscape, "--json", "--trials", "64")))
    assert second["complete"] is True
    assert second["counts"]["reused"] > 0


def test_exported_table_is_the_one_that_vllm_names(
    run: Run, landscape: Path, tmp_path: Path
) -> None:
    answer(run(*recorded(landscape, "--json")))
    result = run(
        "export", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--format", "vllm", "--out", "tables", "--json",
    )  # fmt: skip
    (path,) = answer(result)["files"]
    name = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    assert Path(path).name == name
    table = json.loads((tmp_path / "tables" / name).read_text())
    assert table["16"]["BLOCK_SIZE_M"] == 16


def test_lookup_answers_from_the_sweep(run: Run, landscape: Path) -> None:
    answer(run(*recorded(landscape, "--json", "--trials", "64")))
    found = answer(
        run(
            "lookup", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
            "--tokens", "1024", "--json",
        )
    )  # fmt: skip
    assert found["schema"] == "rubin-tune.lookup/1"
    assert found["config"]["block_m"] == 64
    assert found["evidence"] == "recorded"
    assert found["why"]


def test_lookup_without_a_sweep_says_that_it_is_the_default(run: Run) -> None:
    found = answer(run("lookup", "megamoe", "--tokens", "8", "--json"))
    assert "default" in found["why"]
    assert not Path("trials.sqlite").exists()


def test_table_for_people_says_the_evidence_beside_the_config(run: Run, landscape: Path) -> None:
    lines = run(*recorded(landscape, "--trials", "8")).stdout.splitlines()
    header = next(line for line in lines if "tokens" in line and "evidence" in line)
    names = [cell.strip() for cell in re.split("[┃│]", header)]
    row = next(line for line in lines if " gate_up " in line)
    cells = [cell.strip() for cell in re.split("[┃│]", row)]
    assert cells[names.index("evidence")] == "recorded"
    assert "block_m=" in cells[names.index("config")]


def test_lookup_spells_a_layer_unit_by_unit(run: Run) -> None:
    lines = run("lookup", "megamoe", "--tokens", "8").stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["down", "gate_up", "none"]
    assert "swap_ab=true" in lines[1]


@pytest.mark.end_to_end
@pytest.mark.parametrize("delay_s", [1.5, 2.0, 2.5, 3.0])
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_sweep_loses_no_committed_trial_and_doubles_none(
    tmp_path: Path, landscape: Path, delay_s: float, ending: signal.Signals
) -> None:
    database = tmp_path / "killed.sqlite"
    command = [
        sys.executable, "-m", "rubin_tune", *recorded(landscape, "--json", "--trials", "64"),
        "--db", str(database),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(delay_s)
    process.send_signal(ending)
    process.communicate()
    # Before our code runs, Python itself answers SIGINT, with -2 or 1.
    assert process.returncode in {0, 130, 1, -ending}
    before = _keys(database) if database.exists() else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = _keys(database)
    assert set(before) <= set(after)
    assert len(after) == len(set(after))
    assert json.loads(done.stdout)["complete"] is True


def _keys(database: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(database) as connection:
        tables = connection.execute(
            "select name from sqlite_master where name = 'trials'"
        ).fetchall()
        if not tables:
            return []
        columns = "unit, config, problem_id, policy, silicon_id, toolchain_id, source_hash"
        return connection.execute(f"select {columns} from trials").fetchall()


def test_a_portfolio_holds_the_winners_to_few_configs_and_is_stored(
    run: Run, landscape: Path
) -> None:
    words = recorded(landscape, "--json", "--trials", "64", "--portfolio", "1")
    found = answer(run(*words))
    portfolio = found["portfolio"]
    assert portfolio["cap"] == 1
    held = {u: [json.dumps(c) for c in configs] for u, configs in portfolio["configs"].items()}
    assert {unit: len(configs) for unit, configs in held.items()} == {"gate_up": 1, "down": 1}
    for winner in found["winners"]:
        outside = winner["tokens"] in portfolio["outside"]
        if winner["unit"] in held and not outside:
            assert json.dumps(winner["config"]) in held[winner["unit"]]
        assert winner["speedup"] >= 1.0
    free = answer(run(*recorded(landscape, "--json", "--trials", "64")))
    assert free["portfolio"] is None
    best = {(w["tokens"], w["unit"]): w["time_us"] for w in free["winners"]}
    for row in portfolio["losses"]:
        own = sum(w["time_us"] for w in found["winners"]
                  if w["tokens"] == row["tokens"] and w["unit"] in held)  # fmt: skip
        bound = sum(time for (tokens, unit), time in best.items()
                    if tokens == row["tokens"] and unit in held)  # fmt: skip
        assert row["loss"] == pytest.approx(own / bound - 1.0)
    again = answer(run(*words))
    assert again["portfolio"] == portfolio
    assert again["sweep_id"] == found["sweep_id"]


def test_a_portfolio_without_a_number_has_at_most_six(run: Run, landscape: Path) -> None:
    result = run(*recorded(landscape, "--portfolio", "--trials", "64"))
    assert result.exit_code == 0, result.stderr
    assert "portfolio: 2 of gate_up, 2 of down" in result.stdout


def test_a_threshold_ends_the_search_before_its_trials(run: Run, landscape: Path) -> None:
    found = answer(run(*recorded(landscape, "--json", "--trials", "64", "--until", "50%")))
    assert found["complete"] is True
    assert found["counts"]["evaluated"] < 64 * 2 * 2
    assert {(w["tokens"], w["unit"]) for w in found["winners"]} == {
        (tokens, unit) for tokens in (16, 1024) for unit in ("gate_up", "down", "layer")
    }


def test_the_audit_says_how_often_the_ranking_was_wrong(run: Run, landscape: Path) -> None:
    found = answer(run(*recorded(landscape, "--json", "--trials", "24", "--audit", "4")))
    audit = found["audit"]
    assert audit["timed"] == 8
    assert 0 <= audit["rate"] <= audit["at_most"] <= 1
    none = answer(run(*recorded(landscape, "--json", "--trials", "24", "--audit", "0")))
    assert none["audit"]["timed"] == 0


@pytest.mark.end_to_end
def test_sigterm_ends_a_sweep_with_143_and_keeps_what_was_committed(
    tmp_path: Path, landscape: Path
) -> None:
    database = tmp_path / "ended.sqlite"
    command = [
        sys.executable, "-m", "rubin_tune", *recorded(landscape, "--json", "--trials", "64"),
        "--db", str(database),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (database.exists() and _keys(database)) and time.monotonic() < until:
        time.sleep(0.02)
    process.terminate()
    _, said = process.communicate()
    assert process.returncode in {143, 0}
    assert "Traceback" not in said
    before = _keys(database)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(before) <= set(_keys(database))
    assert json.loads(done.stdout)["complete"] is True
