"""Statistics, checks, merges, archives, collections and upgrades, on SQLite and PostgreSQL."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, delete, make_url, text, update

from rubin_tune.db import Evidence, Store, Trial, open_store
from rubin_tune.db.archive import Selection, archive, parse_age
from rubin_tune.db.check import check_database
from rubin_tune.db.collect import collect
from rubin_tune.db.engine import open_database, revision_of
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.light import read_winners
from rubin_tune.db.merge import merge
from rubin_tune.db.schema import REVISIONS, problems, silicons, sweeps, trials, winners
from rubin_tune.db.seeds import Seed
from rubin_tune.db.staleness import Present, in_words, reasons
from rubin_tune.db.statistics import statistics
from rubin_tune.db.testing import CONFIG, PROBLEM, SILICON, TOOLCHAIN, TRIAL, WINNER, known
from rubin_tune.db.upgrading import upgrade
from rubin_tune.errors import DatabaseRefused, InvalidInput, StorageFull
from rubin_tune.search_spaces import Unit

POSTGRES = os.environ.get("RUBIN_TUNE_TEST_POSTGRES", "")
SAMPLE = Path(__file__).with_name("samples") / "schema-0001.sql"
GEMM = replace(WINNER, unit=Unit.GATE_UP, parts=())
NEWER = replace(TOOLCHAIN, triton="4.0.0")
PRESENT = Present(sources={"megamoe": "f00d"}, toolchains={90: NEWER})


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return where an empty database is, or can be made."""
    if request.param == "sqlite":
        yield str(tmp_path / "our.db")
        return
    if not POSTGRES:
        pytest.skip("RUBIN_TUNE_TEST_POSTGRES names no server (see .ci/postgres.sh)")
    url, name = make_url(POSTGRES), f"rt_{uuid4().hex[:12]}"
    engine = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield url.set(database=name).render_as_string(hide_password=False)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def trial(number: int, **changes: object) -> Trial:
    config = CONFIG.replace(block_m=number)
    return replace(TRIAL, config=config, time_us=10.25 + number / 1e3, interval_us=None, **changes)  # type: ignore[arg-type]


def fill(target: str | Path, *rows: Trial, sweep: str = "s1") -> None:
    """Store a sweep with a winner that stands on one of its trials, and these trials."""
    with open_store(target) as store:
        store.begin_sweep(sweep, "print", {"kernel": "megamoe"})
        store.add_trials([replace(row, sweep_id=sweep) for row in (TRIAL, *rows)])
        store.add_winners([replace(GEMM, sweep_id=sweep)])
        store.finish_sweep(sweep, {})


def age(target: str | Path, sweep: str, days: int) -> None:
    then = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=days)
    with open_store(target) as store, store._writing() as connection:
        connection.execute(update(sweeps).where(sweeps.c.key == sweep).values(started_at=then))


def contents(target: str | Path) -> list[Trial]:
    with open_store(target) as store:
        return sorted(known(store), key=lambda one: one.config.key)


# Statistics


def test_statistics_count_by_kernel_silicon_toolchain_and_evidence(target: str) -> None:
    predicted = trial(32, evidence=Evidence.PREDICTED)
    fill(target, trial(17), predicted, trial(48, toolchain=NEWER))
    database = open_database(target, wait_s=1, create=False)
    found = statistics(database, revision=REVISIONS[-1])
    database.close()
    counts = {(g.toolchain, g.evidence): g.trials for g in found.groups}
    assert counts == {
        (TOOLCHAIN.key, Evidence.MEASURED): 2,
        (TOOLCHAIN.key, Evidence.PREDICTED): 1,
        (NEWER.key, Evidence.MEASURED): 1,
    }
    assert found.rows["trials"] == 4
    assert found.rows["winners"] == 1
    assert found.bytes_per_trial == found.total_bytes / 4
    (standing,) = found.standing
    assert [str(reason) for reason in standing.stale(PRESENT)] == ["triton was 3.9.0, is 4.0.0"]


# Staleness


@pytest.mark.parametrize(
    ("present", "said"),
    [
        (Present(), ""),
        (Present(sources={"megamoe": "f00d"}, toolchains={90: TOOLCHAIN}, silicon=SILICON), ""),
        (Present(sources={"megamoe": "beef"}), "the kernel's source was f00d, is beef"),
        (Present(sources={"fused_moe": "beef"}), ""),
        (PRESENT, "triton was 3.9.0, is 4.0.0"),
        (Present(toolchains={107: NEWER}), ""),
        (Present(toolchains={90: replace(TOOLCHAIN, ptxas="13.5")}), "ptxas was 13.4, is 13.5"),
        (Present(toolchains={90: replace(TOOLCHAIN, torch="2.14")}), "torch was 2.13.0, is 2.14"),
        (
            Present(toolchains={90: replace(TOOLCHAIN, driver="600.1")}),
            "driver was 580.1, is 600.1",
        ),
        (Present(toolchains={90: replace(TOOLCHAIN, driver="", ptxas="")}), ""),
        (
            Present(toolchains={90: replace(TOOLCHAIN, fp_fusion=False)}),
            "fp_fusion was True, is False",
        ),
        (
            Present(silicon=replace(SILICON, name="h200", power_limit_w=500)),
            "power_limit_w was 700, is 500",
        ),
    ],
)
def test_a_row_says_which_part_of_its_key_is_another_now(present: Present, said: str) -> None:
    assert in_words(reasons(GEMM, present)) == said


# Checks


def test_a_database_that_a_sweep_wrote_is_sound(target: str) -> None:
    fill(target, trial(17))
    assert check_database(target)[1] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (update(problems).values(tokens=5), "problems: 1 row whose key is not their content's"),
        (update(silicons).values(sms=5), "silicons: 1 row whose key is not their content's"),
        (update(trials).values(time_us=-1.0), "trials: 2 rows whose time is no time"),
        (update(trials).values(time_us=float("inf")), "trials: 2 rows whose time is no time"),
        (update(trials).values(low_us=99.0, high_us=100.0), "trials: 2 rows whose time"),
        (update(trials).values(prediction="{"), "trials: 2 rows whose record cannot be read"),
        (update(trials).values(evidence=7), "trials: 2 rows whose evidence is none"),
        (
            update(trials).where(trials.c.config == CONFIG.key).values(config="{}}"),
            "trials: 1 row whose config cannot be read",
        ),
        (update(winners).values(default_time_us=0.0), "winners: 1 row whose default's time"),
        (delete(trials), "winners: 1 row whose trial is missing"),
    ],
)
def test_what_is_wrong_is_found(target: str, change: object, said: str) -> None:
    fill(target, trial(17))
    with open_store(target) as store, store._writing() as connection:
        connection.execute(change)  # type: ignore[call-overload]
    assert any(str(finding).startswith(said) for finding in check_database(target)[1])


def test_a_pointer_at_nothing_is_found(tmp_path: Path) -> None:
    path = tmp_path / "our.db"
    fill(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM sweeps")
        connection.commit()
    said = [str(finding) for finding in check_database(path)[1]]
    assert "trials: 1 row whose sweep_id points at nothing (ids 1)" in said
    assert "winners: 1 row whose sweep_id points at nothing (ids 1)" in said


# Merging


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Return another team's database: a row that we have too, and one that we have not."""
    path = tmp_path / "other.db"
    fill(path, trial(32), sweep="s2")
    with open_store(path) as store:
        store.put_portfolio("s2", {"configs": {}})
        store.put_seeds([SEED])
    return path


SEED = Seed(
    kernel="megamoe",
    source="vllm",
    file="E=8.json",
    triton="",
    device="NVIDIA H200",
    experts=8,
    intermediate=128,
    weights="bf16",
    tokens=4,
    unit="",
    config=CONFIG,
    time_us=None,
)


def test_a_merge_adds_what_is_missing_and_nothing_the_second_time(
    target: str, other: Path
) -> None:
    fill(target, trial(17))
    before = other.read_bytes()
    done = merge(other, target)
    assert {name: copied.written for name, copied in done.tables.items()} == {
        "sweeps": 1,
        "trials": 1,
        "winners": 1,
        "portfolios": 1,
        "seeds": 1,
    }
    assert [t.config["block_m"] for t in contents(target)] == [17, 32, CONFIG["block_m"]]
    again = merge(other, target)
    assert sum(copied.written for copied in again.tables.values()) == 0
    assert other.read_bytes() == before
    assert check_database(target)[1] == []
    with open_store(target) as store:
        assert store.portfolio("s2") == {"configs": {}}
        assert store.seeds_for("megamoe", PROBLEM) == [SEED]
        assert len(store.winners()) == 1


def test_a_merge_into_a_new_database_is_a_copy(target: str, other: Path) -> None:
    merge(other, target)
    assert contents(target) == contents(other)
    with open_store(target) as ours, open_store(other) as theirs:
        assert ours.winners() == theirs.winners()


def test_a_merge_goes_back_from_a_server_to_a_file(
    target: str, other: Path, tmp_path: Path
) -> None:
    merge(other, target)
    merge(target, tmp_path / "third.db")
    assert contents(tmp_path / "third.db") == contents(other)


def test_a_stronger_row_of_the_other_displaces_ours_and_a_weaker_does_not(
    target: str, tmp_path: Path
) -> None:
    predicted = trial(17, evidence=Evidence.PREDICTED)
    fill(target, predicted, trial(32))
    fill(tmp_path / "o.db", trial(17), trial(32, evidence=Evidence.PREDICTED), sweep="s2")
    assert merge(tmp_path / "o.db", target).tables["trials"].written == 1
    assert all(one.evidence is Evidence.MEASURED for one in contents(target))


def test_an_older_winner_that_is_merged_later_does_not_stand(target: str, tmp_path: Path) -> None:
    path = tmp_path / "o.db"
    fill(target)
    fill(path, sweep="s2")
    age(path, "s2", days=3)
    merge(path, target)
    with open_store(target) as store:
        assert [winner.sweep_id for winner in store.winners()] == ["s1"]


def test_a_look_up_without_the_store_stands_by_the_same_winner(tmp_path: Path) -> None:
    fill(tmp_path / "our.db")
    with open_store(tmp_path / "o.db") as store:
        store.begin_sweep("s2", "print", {})
        store.add_winners([replace(GEMM, sweep_id="s2", config=CONFIG.replace(block_m=128))])
    age(tmp_path / "o.db", "s2", days=3)
    merge(tmp_path / "o.db", tmp_path / "our.db")
    with open_store(tmp_path / "our.db") as store:
        assert store.winners() == [GEMM]
        assert read_winners(tmp_path / "our.db") == table_document(store.winners())


def test_a_database_is_not_merged_with_itself(target: str) -> None:
    fill(target)
    with pytest.raises(DatabaseRefused, match="cannot be merged into itself"):
        merge(target, target)


def test_another_name_of_the_same_file_is_the_same(tmp_path: Path) -> None:
    fill(tmp_path / "our.db")
    (tmp_path / "link.db").symlink_to("our.db")
    with pytest.raises(DatabaseRefused, match="cannot be merged into itself"):
        merge(tmp_path / "link.db", f"sqlite:///{tmp_path / 'our.db'}")


def test_broken_rows_are_not_merged(target: str, other: Path) -> None:
    fill(target)
    with open_store(other) as store, store._writing() as connection:
        connection.execute(update(problems).values(tokens=5))
    before = contents(target)
    with pytest.raises(DatabaseRefused, match="holds broken rows: problems: 1 row"):
        merge(other, target)
    assert contents(target) == before


def test_a_merge_that_finds_no_room_writes_nothing(tmp_path: Path, other: Path) -> None:
    target = tmp_path / "our.db"
    fill(target)
    fill(other, *(trial(number) for number in range(1000, 3000)), sweep="s3")
    from sqlalchemy import event

    from rubin_tune.db.merge import _merge

    receiver = open_database(target, wait_s=1, create=False)
    receiver.engine.dispose()

    def shrink(connection: sqlite3.Connection, _: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")

    event.listen(receiver.engine, "connect", shrink)
    source = open_database(other, wait_s=1, create=False)
    with pytest.raises(StorageFull):
        _merge(source, receiver)
    source.close()
    receiver.close()
    assert contents(target) == [TRIAL]


# Archives


def test_old_trials_move_and_those_that_winners_stand_on_stay(target: str, tmp_path: Path) -> None:
    fill(target, trial(17), trial(32))
    fill(target, replace(trial(48), policy="graph8/2"), sweep="s2")
    age(target, "s1", days=100)
    whole = contents(target)
    done = archive(target, tmp_path / "old.db", Selection(before=parse_age("90d")))
    assert (done.trials, done.removed, done.kept, done.winners) == (3, 2, 1, 1)
    assert contents(tmp_path / "old.db") == whole
    assert contents(target) == [TRIAL]
    assert check_database(target)[1] == []
    with open_store(target) as store:
        assert store.counts()["trials"] == 2
        assert len(store.winners()) == 1


def test_with_winners_a_silicon_leaves_whole_and_comes_back_by_a_merge(
    target: str, tmp_path: Path
) -> None:
    fill(target, trial(17))
    before = contents(target)
    selection = Selection(silicon="NVIDIA H200", with_winners=True)
    done = archive(target, tmp_path / "old.db", selection, vacuum=True)
    assert (done.removed, done.removed_winners, done.kept) == (2, 1, 0)
    with open_store(target) as store:
        counts = store.counts()
        assert not any(counts[name] for name in ("trials", "winners", "sweeps", "problems"))
    assert not list(tmp_path.glob("old.db-*"))
    merge(tmp_path / "old.db", target)
    assert contents(target) == before


def test_an_archive_is_added_to(target: str, tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    fill(target, trial(17))
    age(target, "s1", days=100)
    archive(target, path, Selection(before=parse_age("90d")))
    fill(target, trial(32), sweep="s2")
    archive(target, path, Selection(kernel="megamoe", with_winners=True))
    assert {t.config["block_m"] for t in contents(path)} == {17, 32, CONFIG["block_m"]}


def test_nothing_is_removed_when_the_archive_is_not_what_was_copied(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rubin_tune.db import archive as module

    fill(target, trial(17))
    before = contents(target)
    copy = module._copy

    def spoil(*arguments: object) -> tuple[int, int]:
        done = copy(*arguments)  # type: ignore[arg-type]
        with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
            connection.execute("UPDATE trials SET time_us = time_us + 1 WHERE id = 1")
            connection.commit()
        return done

    monkeypatch.setattr(module, "_copy", spoil)
    with pytest.raises(DatabaseRefused, match=r"does not hold trials .* nothing was removed"):
        archive(target, tmp_path / "old.db", Selection(kernel="megamoe"))
    assert contents(target) == before
    assert not (tmp_path / "old.db").exists()


def test_an_archive_of_nothing_is_refused_or_not_made(target: str, tmp_path: Path) -> None:
    fill(target)
    path = tmp_path / "old.db"
    with pytest.raises(InvalidInput, match="kernel 'nix' has no trials"):
        archive(target, path, Selection(kernel="nix"))
    with pytest.raises(InvalidInput, match="silicon 'h20o' has no trials"):
        archive(target, path, Selection(silicon="h20o"))
    assert archive(target, path, Selection(before=parse_age("1d"))).trials == 0
    assert not path.exists()
    with pytest.raises(InvalidInput, match="names no trials"):
        Selection()


@pytest.mark.parametrize("words", ["", "90", "-1d", "90y", "9" * 30 + "d"])
def test_an_age_that_is_none_is_refused(words: str) -> None:
    with pytest.raises(InvalidInput, match="must be a duration such as"):
        parse_age(words)


# Collecting


def test_stale_trials_go_but_for_winners_and_the_fastest(target: str) -> None:
    fill(target, *(trial(number) for number in range(16, 26)), trial(48, toolchain=NEWER))
    (group,) = collect(target, PRESENT, keep=3, dry_run=True)
    assert (group.trials, group.removed, group.why) == (11, 6, "triton was 3.9.0, is 4.0.0")
    assert len(contents(target)) == 11
    (group,) = collect(target, PRESENT, keep=3)
    assert group.removed == 6
    assert [t.config["block_m"] for t in contents(target)] == [16, 17, 18, 19, CONFIG["block_m"]]
    assert check_database(target)[1] == []
    with open_store(target) as store:
        assert store.counts()["trials"] == 6
    assert collect(target, PRESENT, keep=0)[0].removed == 3


def test_nothing_is_collected_where_nothing_is_stale(target: str) -> None:
    fill(target, trial(17))
    assert collect(target, Present(toolchains={90: TOOLCHAIN})) == []
    assert len(contents(target)) == 2


# Upgrades


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    """Return a database of schema 0001 as version 0.1.0's first commit wrote it."""
    path = tmp_path / "oldest.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SAMPLE.read_text())
    return path


def test_a_database_of_the_first_schema_is_upgraded_with_its_content(
    oldest: Path, tmp_path: Path
) -> None:
    assert upgrade(oldest, dry_run=True).before == revision_of(oldest, wait_s=1) == "0001"
    done = upgrade(oldest, backup=tmp_path / "before.db")
    assert (done.before, done.after) == ("0001", REVISIONS[-1])
    assert revision_of(tmp_path / "before.db", wait_s=1) == "0001"
    assert upgrade(oldest).before == REVISIONS[-1]
    first, second = contents(oldest)[::-1]
    assert first == replace(TRIAL, spent=None)
    assert second.rejected is not None
    assert second.rejected.detail == "no registers left"
    with open_store(oldest) as store:
        assert store.winners() == [WINNER]
        assert store.sweep_counts("s1") == {"evaluated": 1}
    assert check_database(oldest)[1] == []


def test_an_older_database_is_not_changed_by_a_merge_from_it(oldest: Path, target: str) -> None:
    before = oldest.read_bytes()
    with pytest.raises(DatabaseRefused, match=r"has tables 0001, .*: run rubin-tune db upgrade"):
        merge(oldest, target)
    assert oldest.read_bytes() == before


def test_a_backup_is_never_written_over(oldest: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    with pytest.raises(DatabaseRefused, match="exists already"):
        upgrade(oldest, backup=tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    assert revision_of(oldest, wait_s=1) == "0001"


# Many at once


def test_many_trials_at_once_follow_the_rules_of_one(target: str) -> None:
    weaker = trial(17, evidence=Evidence.PREDICTED)
    with open_store(target) as store:
        store.begin_sweep("s1", "print", {})
        assert store.add_trials([]) == 0
        assert store.add_trials([trial(17), trial(32), trial(17), weaker]) == 2
        assert store.add_trials([weaker, trial(48)]) == 1
        assert store.add_trials([trial(17, error=0.5), trial(32)], fresh=True) == 2
        found = known(store)
    assert [one.error for one in found if one.config["block_m"] == 17] == [0.5]


def write(target: str, worker: int, count: int) -> None:
    """Insert rows of one's own and rows that every worker has, in batches of several sizes."""
    with open_store(target) as store:
        store.begin_sweep(f"w{worker}", "print", {})
        mine = [_row(worker, number) for number in range(count)]
        shared = [_row(99, number, f"w{worker}") for number in range(100)]
        if worker % 2:
            shared.reverse()
        for start in range(0, count, 50):
            store.add_trials(mine[start : start + 50])
            store.add_trials(shared[start // 50 :: 10])
        _one_by_one(store, shared[:20])


def _one_by_one(store: Store, rows: list[Trial]) -> None:
    for row in rows:
        store.add_trial(row)


def _row(worker: int, number: int, sweep: str = "") -> Trial:
    return replace(
        TRIAL,
        sweep_id=sweep or f"w{worker}",
        problem=PROBLEM.at(1 + number % 7),
        config=CONFIG.replace(block_m=1000 * worker + number // 7, num_warps=1 + number % 7),
        compile=None if TRIAL.compile is None else replace(TRIAL.compile, registers=number % 200),
    )


@pytest.mark.skipif(not POSTGRES, reason="RUBIN_TUNE_TEST_POSTGRES names no server")
@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_eight_processes_lose_and_double_nothing(target: str) -> None:
    count = 20_000 // 8
    open_store(target).close()
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=write, args=(target, n, count)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 8
    expected = {
        (row.problem.key, row.config.key)
        for row in (
            *(_row(n, number) for n in range(8) for number in range(count)),
            *(_row(99, number) for number in range(100)),
        )
    }
    with open_store(target) as store:
        found = [(key, config) for key, _, config in _done(store)]
        assert store.counts()["trials"] == len(expected) == 20_100
    assert set(found) == expected
    assert check_database(target)[1] == []


def _done(store: Store) -> frozenset[tuple[str, Unit, str]]:
    return store.done_keys(
        kernel="megamoe",
        source_hash="f00d",
        silicon=SILICON,
        toolchain=TOOLCHAIN,
        policy="graph8/1",
    )
