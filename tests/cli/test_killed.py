"""kill -9 of a whole sweep at 50 seeded moments: no trial is lost, and it goes on to the same winners."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Store
from rubin_tune.tuner import SweepRequest, sweep

MOMENTS = 50
# Modules are imported once; every sweep is a process group of its own, forked from here. stdin: a JSON list of
# arguments and the seconds after which the group is killed (0 = never); stdout: seconds it ran, exit code.
SERVER = """
import json, os, signal, sys, time
from rubin_tune.cli import main
import rubin_tune.tuner, rubin_tune.db, alembic.command, alembic.config, optuna
import sqlalchemy.dialects.sqlite, sklearn.ensemble
from rubin_tune.registry import load
for folder, name in ("kernels", "fused_moe"), ("tuner.samplers", "lfbo"), ("tuner.evaluators", "recorded"):
    load(folder, name)
for line in sys.stdin:
    words, out, seconds = json.loads(line)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        main(words, standalone_mode=True)
    done, status = (0, 0)
    while not done:
        if seconds and time.monotonic() - began >= seconds:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(child, signal.SIGKILL)
            done, status = os.waitpid(child, 0)
            break
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.001)
    print(json.dumps([time.monotonic() - began, os.waitstatus_to_exitcode(status)]), flush=True)
"""


class Sweeps:
    """Sweeps of one landscape in processes that can be killed."""

    def __init__(self, landscape: Path, folder: Path) -> None:
        self.landscape, self.folder = landscape, folder
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        )

    def run(self, database: Path, kill_after_s: float = 0.0) -> tuple[float, int, str]:
        """Return the seconds it ran, its exit code and what it printed."""
        out = self.folder / "out"
        words = [
            "-q", "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
            "--evaluator", f"recorded:{self.landscape}", "--trials", "12", "--json", "--db", str(database),
        ]  # fmt: skip
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps([words, str(out), kill_after_s]) + "\n")
        self.server.stdin.flush()
        seconds, code = json.loads(self.server.stdout.readline())
        return seconds, code, out.read_text() if out.exists() else ""


@pytest.fixture
def sweeps(landscape: Path, tmp_path: Path) -> Iterator[Sweeps]:
    made = Sweeps(landscape, tmp_path)
    yield made
    made.server.communicate()


def committed(database: Path) -> list[tuple[Any, ...]]:
    """Return the keys and times of the trials that a killed sweep left."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("select 1 from sqlite_master where name = 'trials'").fetchall()
        columns = "unit, config, problem_id, policy, silicon_id, toolchain_id, source_hash"
        return connection.execute(f"select {columns} from trials").fetchall() if found else []


def winners(printed: str) -> list[tuple[Any, ...]]:
    return [
        (w["tokens"], w["unit"], json.dumps(w["config"], sort_keys=True), w["time_us"])
        for w in json.loads(printed)["winners"]
    ]


def test_a_sweep_killed_between_its_choice_and_its_end_does_not_learn_from_its_own_winners(
    landscape: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit("kill -9")

    request = SweepRequest(
        kernel="fused_moe", model="qwen3-30b-a3b", dtype="fp8", target="h200",
        evaluator=f"recorded:{landscape}", trials=12,
    )  # fmt: skip
    expected = sweep(request, database=tmp_path / "whole.sqlite")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "finish_sweep", killed)
        with pytest.raises(SystemExit):
            sweep(request, database=tmp_path / "killed.sqlite")
    resumed = sweep(request, database=tmp_path / "killed.sqlite")
    assert [(w.unit, w.config, w.time_us) for w in resumed.winners] == [
        (w.unit, w.config, w.time_us) for w in expected.winners
    ]
    assert resumed.counts.legal == expected.counts.legal
    assert resumed.counts.evaluated == expected.counts.evaluated


@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_a_sweep_killed_at_50_moments_keeps_every_trial_once_and_finds_the_same_winners(
    sweeps: Sweeps, tmp_path: Path
) -> None:
    _, code, printed = sweeps.run(tmp_path / "whole.sqlite")
    assert code == 0
    expected = winners(printed)
    assert expected
    # The first run reads files that later ones find in memory.
    whole_s, code, printed = sweeps.run(tmp_path / "again.sqlite")
    assert code == 0
    assert winners(printed) == expected
    drawn = random.Random(5)
    killed = interrupted_later = 0
    for number in range(MOMENTS):
        database = tmp_path / f"{number}.sqlite"
        _, code, _ = sweeps.run(database, kill_after_s=whole_s * drawn.uniform(0.05, 1.0))
        killed += code == -signal.SIGKILL
        before = committed(database)
        interrupted_later += len(before) > 0
        _, code, printed = sweeps.run(database)
        assert code == 0
        after = committed(database)
        assert set(before) <= set(after)
        assert len(after) == len(set(after))
        assert winners(printed) == expected
        database.unlink()
    # The moments must have met sweeps under way, not only beginnings and ends.
    assert killed >= MOMENTS // 2
    assert interrupted_later >= MOMENTS // 4
