"""`rubin-tune report`: text, JSON, page; what it refuses."""

from __future__ import annotations

import builtins
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import open_store

Run = Callable[..., Any]


def answer(run: Run, *words: str) -> dict[str, Any]:
    result = run(*words)
    assert result.exit_code == 0, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def sweep(run: Run, landscape: Path, *more: str) -> dict[str, Any]:
    return answer(
        run, "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--json", *more,
    )  # fmt: skip


def test_winners_are_those_of_the_sweep_with_evidence_and_intervals(
    run: Run, landscape: Path
) -> None:
    swept = sweep(run, landscape)
    found = answer(run, "report", "--json")
    assert found["schema"] == "rubin-tune.report/1"
    assert found["sweep"]["id"] == swept["sweep_id"]
    assert found["evidence"] == "recorded"
    ours = {(w["tokens"], w["unit"]): w for w in found["winners"]}
    for winner in swept["winners"]:
        row = ours.pop((winner["tokens"], winner["unit"]))
        assert row["time_us"] == winner["time_us"]
        assert row["config"] == winner["config"]
        # Of the default of the layer too: its last rounds are stored beside the winner's.
        assert (
            row["default_interval_us"][0]
            <= row["default_time_us"]
            <= row["default_interval_us"][1]
        )
    assert not ours


def test_every_trial_is_there_in_order_with_seconds(run: Run, landscape: Path) -> None:
    swept = sweep(run, landscape)
    trials = answer(run, "report", "--json")["trials"]
    timed = [t for t in trials["time_us"] if t is not None]
    assert len(timed) == swept["counts"]["evaluated"]
    assert trials["at_s"] == sorted(trials["at_s"])
    assert all(trials["own"])
    assert {why for why, t in zip(trials["why"], trials["time_us"], strict=True) if t is None} == {
        "compile_error"
    }


def test_trials_of_an_earlier_sweep_are_told_from_its_own(run: Run, landscape: Path) -> None:
    sweep(run, landscape, "--trials", "8")
    sweep(run, landscape, "--trials", "24", "--seed", "1")
    own = answer(run, "report", "--json")["trials"]["own"]
    assert any(own)
    assert not all(own)


def test_the_default_that_is_kept_is_told_from_a_faster_config(measured: Path, run: Run) -> None:
    found = answer(run, "report", "--db", str(measured), "--json")
    # times fall towards the third variant and are 4 us better than the default's
    assert {w["verdict"] for w in found["winners"]} == {"faster"}
    assert all(w["changes"] for w in found["winners"])


def test_seconds_are_split_into_compile_verify_time(measured: Path, run: Run) -> None:
    found = answer(run, "report", "--db", str(measured), "--json")
    variants = len(found["variants"])
    seconds = found["seconds"]
    assert seconds["compile_s"] == pytest.approx(variants * 1.0)
    assert seconds["verify_s"] == pytest.approx(variants * 0.5)
    assert seconds["time_s"] == pytest.approx(variants * 2 * 0.25)
    assert seconds["search_s"] == max(found["trials"]["at_s"])


def test_predictions_are_made_from_compile_reports_where_there_are(
    measured: Path, run: Run
) -> None:
    found = answer(run, "report", "--db", str(measured), "--json")
    assert found["agreement"]["predicted_from"] == "compiler facts"
    assert {(a["tokens"], a["unit"]) for a in found["agreement"]["rows"]} == {
        (t, u) for t in (16, 256) for u in ("gate_up", "down")
    }
    assert all(-1 <= a["spearman"] <= 1 and a["loss"] >= 0 for a in found["agreement"]["rows"])


def test_variants_that_no_sm_can_run_by_our_facts_have_no_prediction(
    measured: Path, run: Run
) -> None:
    with sqlite3.connect(measured) as connection:
        connection.execute(
            "UPDATE compiles SET record = replace(record, '\"registers\":97,', '\"registers\":9700,')"
        )
    found = answer(run, "report", "--db", str(measured), "--json")
    lost = {i for i, v in enumerate(found["variants"]) if v["compile"]["registers"] == 9700}
    trials = found["trials"]
    assert lost
    for variant, predicted in zip(trials["variant"], trials["predicted_us"], strict=True):
        assert predicted is None or variant not in lost
    assert any(trials["predicted_us"])


def test_refusals_are_counted_by_reason_with_an_example(measured: Path, run: Run) -> None:
    (refusal,) = answer(run, "report", "--db", str(measured), "--json")["refused"]
    assert refusal["why"] == "wrong_result"
    assert refusal["trials"] == 2 * refusal["variants"]
    assert "relative error" in refusal["detail"]


def test_no_time_lies_above_the_roof(run: Run, landscape: Path) -> None:
    sweep(run, landscape)
    found = answer(run, "report", "--json")
    roofs, floors = found["roofs"], found["floors"]
    for floor in floors:
        rate = floor["flops"] / floor["floor_us"] * 1e6
        ceiling = min(
            roofs["flops_per_s"], floor["flops"] / floor["min_bytes"] * roofs["bytes_per_s"]
        )
        assert rate == pytest.approx(ceiling)


def test_command_repeats_the_sweep(run: Run, landscape: Path) -> None:
    swept = sweep(run, landscape, "--trials", "8")
    command = answer(run, "report", "--json")["reproduce"]["command"].split()
    assert command[0] == "rubin-tune"
    again = answer(run, *command[1:], "--json")
    assert again["sweep_id"] == swept["sweep_id"]


def test_text_says_summary_winners_and_how_to_repeat(measured: Path, run: Run) -> None:
    result = run("report", "--db", str(measured))
    assert result.exit_code == 0, result.stderr
    assert "as fast as with the defaults (measured" in result.stdout
    assert "Times are measured: timed by us on that GPU." in result.stdout
    assert "to repeat: rubin-tune sweep megamoe --model qwen3-30b-a3b" in result.stdout
    assert "wrong result" in result.stdout


def test_the_beginning_of_an_id_is_enough_if_it_means_one(run: Run, tmp_path: Path) -> None:
    database = tmp_path / "two.sqlite"
    with open_store(database) as store:
        for name in ("abc1", "abd2"):
            store.begin_sweep(name, name, {})
    result = run("report", "ab", "--db", str(database))
    assert result.exit_code == 2
    assert "means 2" in result.stderr
    assert "abc1" in result.stderr
    result = run("report", "abc", "--db", str(database))
    assert result.exit_code == 2
    assert "holds no trial" in result.stderr


def test_page_stands_alone_and_escapes_what_it_quotes(
    measured: Path, run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    result = run("report", "--db", str(measured), "--html", str(page))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(page)
    text = page.read_text(encoding="utf-8")
    assert len(text.encode()) < 6_000_000
    assert "<b>0.4</b>" not in text
    assert "&lt;b&gt;0.4&lt;/b&gt;" in text
    head = text[: text.index("<script>")]
    assert "http://" not in head
    assert "https://" not in head


def test_a_page_of_too_many_trials_keeps_the_fastest_and_says_so(
    measured: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("plotly")
    from rubin_tune.cli import _report_page

    whole = answer(run, "report", "--db", str(measured), "--json")
    monkeypatch.setattr(_report_page, "MOST_TRIALS", 12)
    page = tmp_path / "page.html"
    assert run("report", "--db", str(measured), "--html", str(page)).exit_code == 0
    text = page.read_text(encoding="utf-8")
    left_out = len(whole["trials"]["tokens"]) - 12
    assert f"The 12 fastest trials are drawn; {left_out} slower ones" in text
    start = text.index('id="report-data">') + len('id="report-data">')
    data = json.loads(text[start : text.index("</script>", start)])
    drawn = [t for t in data["trials"]["time_us"] if t is not None]
    timed = sorted(t for t in whole["trials"]["time_us"] if t is not None)
    assert min(drawn) == timed[0]
    assert len(drawn) == len(data["trials"]["tokens"]) == 12
    assert max(data["trials"]["variant"]) == len(data["variants"]) - 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "nosuch"), "unknown sweep 'nosuch'"),
        (("report", ""), "unknown sweep ''"),
        (("report", "--html", "no/such/folder/r.html"), "does not exist"),
        (("report", "--html", "."), "is a folder"),
        (("report", "--html", "mine.html"), "is no report of rubin-tune"),
        (("report", "--db", "nosuch.sqlite"), "does not exist"),
        (("report", "--db", "empty.sqlite"), "holds no sweep"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)
def test_bad_input_is_refused_in_one_sentence(
    measured: Path, run: Run, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    open_store(tmp_path / "empty.sqlite").close()
    words = words if "--db" in words else (*words, "--db", str(measured))
    before = set(tmp_path.rglob("*"))
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert set(tmp_path.rglob("*")) - before <= {tmp_path / "cache"}
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


def test_an_older_report_is_replaced(measured: Path, run: Run, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "page.html"
    for _ in range(2):
        assert run("report", "--db", str(measured), "--html", str(page)).exit_code == 0
    assert [p.name for p in tmp_path.glob("*page*")] == ["page.html"]


def test_without_plotly_the_page_says_what_to_install(
    measured: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name.startswith("plotly"):
            raise ImportError("No module named 'plotly'", name="plotly")
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    result = run("report", "--db", str(measured), "--html", str(tmp_path / "p.html"))
    assert result.exit_code == 2
    assert "pip install 'rubin-tune[report]'" in result.stderr
    assert not (tmp_path / "p.html").exists()
