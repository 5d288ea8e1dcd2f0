"""What can be wrong with a database before and while it is used, each told in words."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event

import rubin_tune
from rubin_tune.db import Store, Trial, default_path, open_store
from rubin_tune.db.schema import APPLICATION_ID, REVISIONS, VERSION_TABLE, metadata
from rubin_tune.db.testing import CONFIG, TRIAL, known
from rubin_tune.errors import DatabaseBusy, DatabaseRefused, StorageFull

MIGRATIONS = Path(rubin_tune.__file__).parent / "db" / "migrations"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a database of ours with one trial lies."""
    found = tmp_path / "our.db"
    with open_store(found) as store:
        store.begin_sweep("s1", "print", {})
        store.add_trial(TRIAL)
    return found


def trial(number: int) -> Trial:
    return replace(TRIAL, config=CONFIG.replace(block_m=number))


def test_the_migrations_make_exactly_the_tables_of_the_schema(path: Path) -> None:
    with open_store(path) as store, store._reading() as connection:
        options = {"version_table": VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_trials_of_an_older_version_are_kept_without_seconds(path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("ALTER TABLE trials DROP COLUMN spent")
        for name in ("edge_tokens", "edge_evidence"):
            connection.execute(f"ALTER TABLE winners DROP COLUMN {name}")
        for name in ("trials_place", "trials_compile_id", "winners_compile_id"):
            connection.execute(f"DROP INDEX ix_{name}")
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0002'")
    connection.close()
    with open_store(path) as store:
        assert known(store) == [replace(TRIAL, spent=None)]
        store.add_trial(TRIAL, fresh=True)
        assert known(store) == [TRIAL]


def test_the_revisions_that_the_schema_names_are_those_in_the_folder() -> None:
    script = ScriptDirectory(str(MIGRATIONS))
    assert tuple(r.revision for r in reversed(list(script.walk_revisions()))) == REVISIONS


def test_opening_an_up_to_date_database_needs_no_alembic(path: Path) -> None:
    code = (
        "import sys; from rubin_tune.db import open_store; open_store(sys.argv[1]).close(); "
        "sys.exit('alembic' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], check=False)
    assert ran.returncode == 0


def test_a_database_carries_our_mark_and_waits_in_wal_mode(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with open_store(tmp_path / "empty.db") as store:
        assert store.counts()["trials"] == 0


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseRefused, match="is a folder"):
        open_store(tmp_path)


def test_a_missing_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseRefused, match="its folder does not exist"):
        open_store(tmp_path / "no" / "our.db")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_database_is_not_made_when_only_read(tmp_path: Path) -> None:
    with pytest.raises(DatabaseRefused, match="does not exist: run rubin-tune sweep first"):
        open_store(tmp_path / "our.db", create=False)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_mark_without_tables_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "theirs.db")
    connection.execute("PRAGMA application_id = 7")
    connection.close()
    with pytest.raises(DatabaseRefused, match="not one of ours"):
        open_store(tmp_path / "theirs.db")


@pytest.mark.parametrize("keep", [50, 5000])
def test_a_truncated_database_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DatabaseRefused, match="is damaged"):
        open_store(path)


def test_a_database_whose_tables_are_gone_is_refused(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE trials")
    connection.close()
    with open_store(path) as store, pytest.raises(DatabaseRefused, match="no such table"):
        known(store)


def test_a_file_that_nobody_may_write_is_refused(path: Path) -> None:
    path.chmod(0o444)
    with pytest.raises(DatabaseRefused, match="is read-only"):
        open_store(path)


def fill(store: Store) -> None:
    for number in range(1000, 2000):
        store.add_trial(trial(number))


def test_a_full_disk_loses_nothing_committed(path: Path) -> None:
    def shrink(connection: sqlite3.Connection, _: object) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 1}")

    with open_store(path) as store:
        store._database.engine.dispose()
        event.listen(store._database.engine, "connect", shrink)
        with pytest.raises(StorageFull, match="the disk is full") as caught:
            fill(store)
        assert caught.value.exit_code == 3
    with open_store(path) as store:
        kept = [t.config["block_m"] for t in known(store)]
        assert kept == [CONFIG["block_m"], *range(1000, 999 + len(kept))]
        assert 1 < len(kept) < 1000
        # Ids that were rolled back with the failed trial are not used again.
        assert store.add_trial(trial(3000))


def test_a_killed_writer_loses_and_doubles_nothing(path: Path) -> None:
    code = (
        "import sys; from dataclasses import replace\n"
        "from rubin_tune.db import open_store\n"
        "from rubin_tune.db.testing import CONFIG, TRIAL\n"
        "store = open_store(sys.argv[1])\n"
        "for n in range(100000, 900000):\n"
        "    store.add_trial(replace(TRIAL, config=CONFIG.replace(block_m=n)))\n"
        "    print(n, flush=True)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        lines = writer.stdout
        assert lines is not None
        told = [int(lines.readline()) for _ in range(50)]
        writer.kill()
        told += [int(line) for line in lines if line.endswith("\n")]
    with open_store(path) as store:
        stored = [t.config["block_m"] for t in known(store) if t.config != CONFIG]
    # The one that was being written may be there without having been told.
    assert stored[: len(told)] == told
    assert len(stored) - len(told) <= 1


def test_many_openers_make_one_database(tmp_path: Path) -> None:
    def work(number: int) -> None:
        with open_store(tmp_path / "our.db") as store:
            store.begin_sweep("s1", "print", {})
            store.add_trial(trial(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 9)))
    with open_store(tmp_path / "our.db") as store:
        assert len(known(store)) == 8


def test_a_database_that_was_locked_before_it_was_opened_is_busy(path: Path) -> None:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(DatabaseBusy, match=r"is locked .* waited 0\.2 s"):
            open_store(path, wait_s=0.2)
    finally:
        holder.close()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:hunter2@host/name",
        "postgresql+psycopg2://me:hunter2@host/name",
        "postgresql://me:hunter2@127.0.0.1:1/name",
        "postgresql://me@127.0.0.1:1/name?password=hunter2",
        "postgresql://me:hunter2@127.0.0.1:notaport/name",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///our.db?mode=ro&password=hunter2",
    ],
)
def test_a_url_that_cannot_be_opened_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(DatabaseRefused) as caught:
        open_store(url, wait_s=2)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sqlite_url_is_a_path(path: Path) -> None:
    with open_store(f"sqlite:///{path}", create=False) as store:
        assert store.url == str(path)
        assert known(store) == [TRIAL]


def test_the_users_own_database_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with open_store() as store:
        assert isinstance(store, Store)
        assert store.url == str(default_path())
    assert default_path().is_file()
