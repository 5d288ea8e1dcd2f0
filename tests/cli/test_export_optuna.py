"""`rubin-tune export --format optuna`: studies that Optuna opens, best first, refusals as failures."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from rubin_tune.db import open_store

Run = Callable[..., Any]
PROBLEM = ("--model", "qwen3-30b-a3b", "--target", "h200")


@pytest.fixture
def storage(run: Run, measured: Path, tmp_path: Path) -> str:
    out = tmp_path / "new" / "study.db"
    result = run(
        "export", "megamoe", "--format", "optuna", "--out", str(out), "--sweep", "feed",
        "--db", str(measured), *PROBLEM,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(out)
    assert [p.name for p in out.parent.iterdir()] == ["study.db"]
    return f"sqlite:///{out}"


def test_there_is_a_study_for_each_unit_and_token_count(storage: str) -> None:
    studies = [
        optuna.load_study(study_name=name, storage=storage)
        for name in optuna.get_all_study_names(storage)
    ]
    places = {(s.user_attrs["unit"], s.user_attrs["tokens"]) for s in studies}
    assert places == {(u, t) for u in ("gate_up", "down") for t in (16, 256)}
    assert {s.direction for s in studies} == {optuna.study.StudyDirection.MINIMIZE}


def test_trials_come_back_with_config_time_order_and_evidence(
    storage: str, measured: Path
) -> None:
    name = next(n for n in optuna.get_all_study_names(storage) if "gate_up at 16 tokens" in n)
    study = optuna.load_study(study_name=name, storage=storage)
    with open_store(measured) as store:
        (note,) = store.sweep_notes()
        rows = [
            t for t in store.trials_of(note.sweep_id)
            if (t.unit.value, t.problem.tokens) == ("gate_up", 16)
        ]  # fmt: skip
    assert len(study.trials) == len(rows)
    for told, row in zip(study.trials, rows, strict=True):
        assert told.params.items() <= row.config.as_dict().items()
        assert told.user_attrs["evidence"] == "measured"
        assert row.spent is not None
        assert told.datetime_complete == note.started_at + timedelta(seconds=row.spent.at_s)
        if row.rejected is None:
            assert (told.state, told.value) == (TrialState.COMPLETE, row.time_us)
        else:
            assert told.state is TrialState.FAIL
            assert told.user_attrs["refused"].startswith("wrong_result: ")
    assert study.best_value == min(r.time_us for r in rows if r.time_us)


def test_a_sampler_goes_on_from_the_study(storage: str) -> None:
    study = optuna.load_study(study_name=optuna.get_all_study_names(storage)[0], storage=storage)
    before = len(study.trials)
    distributions = study.trials[0].distributions
    trial = study.ask(distributions)
    study.tell(trial, 1.0)
    assert len(study.trials) == before + 1
    assert study.best_value == 1.0


def test_a_study_database_is_replaced_whole(
    run: Run, storage: str, measured: Path, tmp_path: Path
) -> None:
    names = optuna.get_all_study_names(storage)
    result = run(
        "export", "megamoe", "--format", "optuna", "--out", "new/study.db", "--sweep", "feed",
        "--db", str(measured), *PROBLEM,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert optuna.get_all_study_names(storage) == names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--out", "measured.sqlite", "--sweep", "feed"), "is no Optuna database"),
        (("--out", "letter.db", "--sweep", "feed"), "is no Optuna database"),
        (("--out", "letter.db/study.db", "--sweep", "feed"), "cannot be written"),
        (("--out", "s.db", "--sweep", "nosuch"), "unknown sweep 'nosuch'"),
        (("--out", "s.db", "--sweep", "feed", "--device-name", "X"), "writes trials"),
        (("--out", "s.db", "--dtype", "mxfp4"), "mxfp4"),
        (("--out", "s.db", "--layout", "ep4"), "no sweep of megamoe"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else None,
)
def test_bad_input_is_refused_in_one_sentence(
    run: Run, measured: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    letter = tmp_path / "letter.db"
    letter.write_text("dear study, " * 1000)
    result = run(
        "export", "megamoe", "--format", "optuna", *words, "--db", str(measured), *PROBLEM
    )
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert letter.read_text().startswith("dear study")
    assert not (tmp_path / "s.db").exists()
    with sqlite3.connect(measured) as connection:
        assert connection.execute("select count(*) from winners").fetchone() == (6,)
