"""`rubin-tune db`: each command, and what it refuses in one sentence without writing."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.engine import open_database

Run = Callable[..., Any]
SAMPLE = Path(__file__).parents[1] / "db" / "samples" / "schema-0001.sql"
SWEEP = ("sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")


@pytest.fixture
def swept(run: Run, landscape: Path) -> Run:
    """Sweep into the default database, and return the runner."""
    result = run(*SWEEP, "--evaluator", f"recorded:{landscape}", "--trials", "12")
    assert result.exit_code == 0, result.stderr
    return run


def as_json(run: Run, *words: str, code: int = 0) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == code, result.output + result.stderr
    return json.loads(result.stdout)


def rows(path: Path, table: str = "trials") -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"select count(*) from {table}").fetchone()[0])


def test_stats_count_and_say_what_is_stale_and_why(swept: Run, tmp_path: Path) -> None:
    found = as_json(swept, "db", "stats")
    (group,) = found["trials"]
    assert group["trials"] == found["rows"]["trials"] == rows(tmp_path / "trials.sqlite")
    assert (group["kernel"], group["evidence"]) == ("fused_moe", "recorded")
    assert found["bytes_per_trial"] == found["bytes"] / group["trials"]
    (winners,) = found["winners"]
    assert any(why.startswith("triton was 3.6.0, is ") for why in winners["stale"])
    said = swept("db", "stats").stdout
    assert "triton was 3.6.0, is" in said
    assert "winners are stale: rubin-tune requalify" in said


def test_lookup_and_export_say_that_a_row_is_stale(swept: Run, tmp_path: Path) -> None:
    layer = SWEEP[2:]
    found = as_json(swept, "lookup", "fused_moe", *layer, "--tokens", "16")
    assert any("triton was 3.6.0" in why for why in found["stale"])
    assert (
        "stale (triton was 3.6.0" in swept("lookup", "fused_moe", *layer, "--tokens", "16").stdout
    )
    words = ("export", "fused_moe", *layer, "--format", "json", "--out", str(tmp_path / "t"))
    assert "rows are stale (triton was 3.6.0" in swept(*words).stderr


def test_a_sound_database_passes_and_a_broken_one_exits_with_1(swept: Run, tmp_path: Path) -> None:
    assert as_json(swept, "db", "check")["findings"] == []
    with closing(sqlite3.connect(tmp_path / "trials.sqlite")) as connection:
        connection.execute("update trials set time_us = -1 where time_us is not null and id = 1")
        connection.commit()
    (finding,) = as_json(swept, "db", "check", code=1)["findings"]
    assert (finding["table"], finding["rows"], finding["examples"]) == ("trials", 1, [1])
    assert "no time that a launch can take (ids 1)" in swept("db", "check").stdout


def test_a_merge_is_told_by_table_and_the_second_adds_nothing(swept: Run, tmp_path: Path) -> None:
    words = ("db", "merge", str(tmp_path / "trials.sqlite"), "--db", str(tmp_path / "new.db"))
    first = as_json(swept, *words)["tables"]
    assert first["trials"]["written"] == rows(tmp_path / "new.db") > 0
    assert all(one["written"] == 0 for one in as_json(swept, *words)["tables"].values())
    assert "is merged into" in swept(*words).stdout


def test_an_archive_keeps_what_winners_stand_on(swept: Run, tmp_path: Path) -> None:
    before = rows(tmp_path / "trials.sqlite")
    words = ("db", "archive", str(tmp_path / "old.db"), "--kernel", "fused_moe", "--vacuum")
    done = as_json(swept, *words)
    assert rows(tmp_path / "old.db") == done["trials"] == before
    assert rows(tmp_path / "trials.sqlite") == done["kept"] > 0
    assert as_json(swept, "db", "check")["findings"] == []
    assert swept("db", "check", "--db", str(tmp_path / "old.db")).exit_code == 0


def test_gc_says_first_and_then_removes(swept: Run, tmp_path: Path) -> None:
    before = rows(tmp_path / "trials.sqlite")
    (said,) = as_json(swept, "db", "gc", "--dry-run", "--keep", "0")["groups"]
    assert rows(tmp_path / "trials.sqlite") == before
    (done,) = as_json(swept, "db", "gc", "--keep", "0")["groups"]
    assert said["removed"] == done["removed"] == before - rows(tmp_path / "trials.sqlite") > 0
    assert any(why.startswith("triton was 3.6.0") for why in done["reasons"])
    assert as_json(swept, "db", "check")["findings"] == []
    assert "stale trials removed" in swept("db", "gc").stdout


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    """Return a database of schema 0001."""
    path = tmp_path / "oldest.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SAMPLE.read_text())
    return path


def test_an_upgrade_hints_at_a_copy_makes_it_and_says_from_what_to_what(
    run: Run, oldest: Path, tmp_path: Path
) -> None:
    said = run("db", "upgrade", "--db", str(oldest), "--dry-run").stdout
    assert "would go from 0001 to" in said
    assert "make a copy first (--backup FILE)" in said
    copy = tmp_path / "before.db"
    found = as_json(run, "db", "upgrade", "--db", str(oldest), "--backup", str(copy))
    assert (found["before"], found["backup"]) == ("0001", str(copy))
    assert "has the newest tables" in run("db", "upgrade", "--db", str(oldest)).stdout
    assert run("db", "check", "--db", str(oldest)).exit_code == 0


# What is refused


COMMANDS = [
    ("db", "stats", "--db"),
    ("db", "check", "--db"),
    ("db", "gc", "--db"),
    ("db", "upgrade", "--db"),
    ("db", "archive", "out.db", "--older-than", "1d", "--db"),
    ("db", "merge"),
    ("requalify", "megamoe", "--db"),
]


def refused(result: Any, code: int = 2) -> str:
    assert result.exit_code == code, result.output + result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def make(kind: str, path: Path) -> None:
    """Make something that is no database of ours, or none that can be used."""
    if kind == "text":
        path.write_text("dear database, " * 100)
        return
    with closing(sqlite3.connect(path)) as connection:
        if kind == "foreign":
            connection.execute("create table notes (text)")
            return
        connection.executescript(SAMPLE.read_text())
        if kind == "newer":
            connection.execute("update rubin_tune_version set version_num = '9999'")
        connection.commit()
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:5000])
    if kind == "read-only":
        path.chmod(0o444)


KINDS = {
    "missing": "does not exist",
    "text": "no SQLite file",
    "foreign": "not one of ours",
    "newer": "newer rubin-tune",
    "truncated": "damaged",
    "read-only": "read-only",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "words", COMMANDS, ids=lambda words: words[1] if words[0] == "db" else words[0]
)
def test_no_command_takes_what_is_no_database(
    run: Run, tmp_path: Path, words: tuple[str, ...], kind: str
) -> None:
    path = tmp_path / "given.db"
    if kind != "missing":
        make(kind, path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    said = refused(run(*words, str(path)))
    assert KINDS[kind] in said
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "words", COMMANDS, ids=lambda words: words[1] if words[0] == "db" else words[0]
)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@127.0.0.1:1/name",
        "postgresql://me@127.0.0.1:1/name?password=hunter2",
        "mysql://me:hunter2@host/name",
        "postgresql://me:hunter2@127.0.0.1:notaport/name",
    ],
)
def test_no_command_prints_or_stores_a_password(
    run: Run, tmp_path: Path, words: tuple[str, ...], url: str
) -> None:
    assert "hunter2" not in refused(run(*words, url))
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert not any(b"hunter2" in p.read_bytes() for p in files)


def test_a_database_is_not_merged_with_or_archived_into_itself(swept: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "trials.sqlite")
    assert "merged into itself" in refused(swept("db", "merge", path))
    assert "archived into itself" in refused(swept("db", "archive", path, "--older-than", "1d"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("archive", "o.db"), "names no trials"),
        (("archive", "o.db", "--older-than", "soon"), "'soon'"),
        (("archive", "o.db", "--kernel", "nix"), "'fused_moe'"),
        (("archive", "o.db", "--silicon", "nix"), "'nix'"),
        (("archive", "sqlite:///o.db", "--older-than", "1d"), "must be a path"),
        (("archive", "no/o.db", "--kernel", "fused_moe"), "folder does not exist"),
        (("archive", "letter.txt", "--kernel", "fused_moe"), "no SQLite file"),
        (("merge", "trials.sqlite", "--db", "letter.txt"), "no SQLite file"),
        (("upgrade", "--backup", "letter.txt", "--db", "oldest.db"), "exists already"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_meant_is_refused(
    swept: Run, oldest: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "letter.txt").write_text("dear database")
    held = rows(tmp_path / "trials.sqlite")
    assert said in refused(swept("db", *words))
    assert not (tmp_path / "o.db").exists()
    assert (tmp_path / "letter.txt").read_text() == "dear database"
    assert rows(tmp_path / "trials.sqlite") == held


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted only as root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_under_the_archive_removes_nothing(
    swept: Run, tmp_path: Path, small_disk: Path
) -> None:
    before = rows(tmp_path / "trials.sqlite")
    words = ("db", "archive", str(small_disk / "old.db"), "--kernel", "fused_moe")
    assert "full" in refused(swept(*words), code=3)
    assert rows(tmp_path / "trials.sqlite") == before
    assert list(small_disk.iterdir()) == []


def test_a_reader_is_not_kept_out_by_an_open_database(swept: Run, tmp_path: Path) -> None:
    database = open_database(tmp_path / "trials.sqlite", wait_s=1, create=False)
    with database.writing():
        assert swept("db", "stats").exit_code == 0
    database.close()
