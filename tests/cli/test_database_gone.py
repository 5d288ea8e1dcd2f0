"""Databases that fail under a sweep: sessions cut off, the server stopped and started, the disk full."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine, event, make_url, text

from rubin_tune.cli import main
from rubin_tune.cli._result import print_result
from rubin_tune.db import Store, open_store
from rubin_tune.db.outage import Outages
from rubin_tune.errors import DatabaseGone, StorageFull
from rubin_tune.tuner import SweepRequest, SweepResult, sweep

POSTGRES = os.environ.get("RUBIN_TUNE_TEST_POSTGRES", "")
SCRIPT = Path(__file__).parents[2] / ".ci" / "postgres.sh"
needs_postgres = pytest.mark.skipif(
    not POSTGRES, reason="RUBIN_TUNE_TEST_POSTGRES names no server (see .ci/postgres.sh)"
)


class At:
    """A listener of a sweep that does something at some of its steps."""

    def __init__(self, steps: set[int], act: Callable[[], None]) -> None:
        self.steps, self.act = steps, act
        self.taken = 0
        self.heard: list[str] = []

    def stage(self, name: str, total: int) -> None:
        """Stages do not matter."""

    def step(self, note: str = "") -> None:
        self.taken += 1
        if self.taken in self.steps:
            self.act()

    def say(self, words: str) -> None:
        self.heard.append(words)


def admin(url: str, statement: str) -> None:
    """Run a statement as the server's owner, outside transactions."""
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def database() -> Iterator[str]:
    """Return the URL of an empty database on the shared server."""
    name = f"rt_{uuid4().hex[:12]}"
    admin(POSTGRES, f"CREATE DATABASE {name}")
    yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    admin(POSTGRES, f"DROP DATABASE {name} WITH (FORCE)")


class Server:
    """A server of our own, which may be stopped."""

    def __init__(self, home: Path) -> None:
        self._env = {**os.environ, "RUBIN_TUNE_POSTGRES_HOME": str(home)}
        self.url = self._do("start")

    def halt(self) -> None:
        self._do("halt")

    def resume(self) -> None:
        self._do("resume")

    def remove(self) -> None:
        self._do("stop")

    def _do(self, what: str) -> str:
        # Files, not pipes: the server keeps what it inherits open.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(
                ["bash", str(SCRIPT), what], env=self._env, stdout=out, stderr=err, check=False
            )
            out.seek(0)
            err.seek(0)
            assert done.returncode == 0, err.read()
            return out.read().strip()


@pytest.fixture
def server() -> Iterator[Server]:
    # Not under tmp_path: the server runs as another user, which may not look into it.
    made = Server(Path(tempfile.gettempdir()) / f"rubin-tune-postgres-test-{os.getpid()}")
    yield made
    made.remove()


def request(landscape: Path) -> SweepRequest:
    return SweepRequest(
        kernel="fused_moe", model="qwen3-30b-a3b", dtype="fp8", target="h200",
        evaluator=f"recorded:{landscape}", trials=16,
    )  # fmt: skip


def winners(result: SweepResult) -> list[Any]:
    return [(w.problem.tokens, w.unit, w.config, w.time_us) for w in result.winners]


def trials(database: str | Path, sweep_id: str) -> list[Any]:
    with open_store(database) as store:
        return sorted(
            (t.policy, t.unit.value, t.problem.tokens, t.config.key, t.time_us or 0.0)
            for t in store.trials_of(sweep_id)
        )


@pytest.fixture
def undisturbed(landscape: Path, tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """Return the winners and the trials of a sweep whose database stays."""
    result = sweep(request(landscape), database=tmp_path / "still.sqlite")
    return winners(result), trials(tmp_path / "still.sqlite", result.sweep_id)


@needs_postgres
def test_a_sweep_whose_sessions_are_cut_off_again_and_again_ends_with_the_same_winners(
    landscape: Path, database: str, undisturbed: tuple[list[Any], list[Any]]
) -> None:
    cut_off = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = '{make_url(database).database}'"
    )
    listener = At(set(range(1, 200, 3)), lambda: admin(POSTGRES, cut_off))
    result = sweep(request(landscape), database=database, progress=listener)
    assert result.complete
    assert (winners(result), trials(database, result.sweep_id)) == undisturbed
    assert len(result.outages_s) >= 5
    assert len(listener.heard) == len(result.outages_s)
    assert "is gone (terminating connection" in listener.heard[0]
    assert "trying again for 30 s" in listener.heard[0]


@needs_postgres
def test_a_sweep_outlasts_a_cut_in_the_middle_of_its_transactions(
    landscape: Path, database: str, undisturbed: tuple[list[Any], list[Any]]
) -> None:
    """Sessions are cut off every few milliseconds, wherever they are, from before the sweep to its end."""
    over = threading.Event()

    def cut_off() -> None:
        engine = create_engine(
            make_url(POSTGRES).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )
        statement = text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        )
        with engine.connect() as connection:
            while not over.wait(0.04):
                connection.execute(statement, {"name": make_url(database).database})
        engine.dispose()

    with open_store(database):
        """Make the tables: opening is not tried again."""
    cutter = threading.Thread(target=cut_off)
    listener = At({1}, cutter.start)
    try:
        result = sweep(request(landscape), database=database, progress=listener)
    finally:
        over.set()
        cutter.join()
    assert (winners(result), trials(database, result.sweep_id)) == undisturbed
    assert result.outages_s


@needs_postgres
def test_a_server_that_is_stopped_and_started_loses_no_trial(
    landscape: Path, server: Server, undisturbed: tuple[list[Any], list[Any]]
) -> None:
    starters = [threading.Timer(2.0, server.resume)]

    def halt() -> None:
        server.halt()
        starters[0].start()

    listener = At({20}, halt)
    result = sweep(request(landscape), database=server.url, progress=listener)
    starters[0].join()
    assert (winners(result), trials(server.url, result.sweep_id)) == undisturbed
    assert len(result.outages_s) == 1
    assert 2.0 < result.outages_s[0] < 30.0
    assert len(listener.heard) == 1


@needs_postgres
def test_a_server_that_stays_away_ends_the_sweep_with_one_sentence_and_it_goes_on_later(
    landscape: Path, server: Server, undisturbed: tuple[list[Any], list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    listener = At({20}, server.halt)
    monkeypatch.setattr("rubin_tune.cli._sweep.TerminalProgress", lambda quiet: _Context(listener))
    words = [
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--trials", "16", "--db", server.url, "--json",
    ]  # fmt: skip
    broken = CliRunner().invoke(main, [*words, "--db-wait", "1"])
    assert broken.exit_code == 3
    (sentence,) = broken.stderr.splitlines()
    assert "is gone" in sentence
    assert "what was committed is kept: run the same command again" in sentence
    assert "in 1 s" in sentence
    server.resume()
    listener.steps = set()
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["counts"]["reused"] > 0
    assert [(w["tokens"], w["unit"], w["time_us"]) for w in found["winners"]] == [
        (tokens, unit.value, time_us) for tokens, unit, _, time_us in undisturbed[0]
    ]


@needs_postgres
def test_an_interrupt_while_the_server_is_away_is_not_kept_waiting(
    landscape: Path, server: Server
) -> None:
    def interrupt() -> None:
        server.halt()
        raise KeyboardInterrupt

    listener = At({20}, interrupt)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sweep(request(landscape), database=server.url, wait_s=300.0, progress=listener)
    assert time.monotonic() - began < 100.0
    assert "is gone" in listener.heard[-1]


class _Context:
    """Progress as a context manager, as the command line uses it."""

    def __init__(self, listener: At) -> None:
        self.listener = listener

    def __enter__(self) -> At:
        return self.listener

    def __exit__(self, *_: object) -> None:
        """Nothing to stop."""


def gone_for(times: int) -> Callable[[], str]:
    left = iter(range(times))

    def transaction() -> str:
        if next(left, None) is not None:
            raise DatabaseGone("database 'x' is gone (connection refused); run it again")
        return "done"

    return transaction


def test_a_disk_that_is_full_ends_the_sweep_in_words_and_it_goes_on_when_there_is_room(
    landscape: Path, tmp_path: Path, undisturbed: tuple[list[Any], list[Any]]
) -> None:
    database = tmp_path / "full.sqlite"

    def full(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are, then

    def fill() -> None:
        event.listen(Engine, "connect", full)
        for store in stores:
            store._database.engine.dispose()

    stores: list[Store] = []
    opened = Store.__init__

    def remembered(self: Store, database: Any) -> None:
        opened(self, database)
        stores.append(self)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "__init__", remembered)
            with pytest.raises(StorageFull, match="what was committed is kept") as caught:
                sweep(request(landscape), database=database, progress=At({12}, fill))
    finally:
        event.remove(Engine, "connect", full)
    assert caught.value.exit_code == 3
    result = sweep(request(landscape), database=database)
    assert result.counts.reused > 0
    assert winners(result) == undisturbed[0]


def test_outages_and_refusals_are_printed(
    landscape: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = sweep(request(landscape), database=tmp_path / "trials.sqlite")
    print_result(replace(result, outages_s=(2.25, 4.0), refused={"crash": 3, "hang": 1}))
    said = capsys.readouterr()
    assert "refused variants: 3 crash, 1 hang" in said.out
    assert "the database was gone 2 times, for 6.2 s in all" in said.err


def test_pauses_grow_and_the_outage_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    said: list[str] = []
    monkeypatch.setattr("rubin_tune.db.outage.time.sleep", pauses.append)
    outages = Outages(wait_s=30.0, says=said.append)
    assert outages.through(gone_for(12)) == "done"
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.1
    assert pauses[-1] == 5.0
    assert said == ["database 'x' is gone (connection refused): trying again for 30 s"]
    assert len(outages.seconds) == 1


def test_who_interrupts_the_waiting_waits_for_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rubin_tune.db.outage.time.sleep", interrupted)
    outages = Outages(wait_s=30.0)
    with pytest.raises(KeyboardInterrupt):
        outages.through(gone_for(100))
    with pytest.raises(DatabaseGone, match="in 0 s"):
        outages.through(gone_for(100))
