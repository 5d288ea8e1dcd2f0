"""A locked database and a full disk: said in one sentence, nothing committed is lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SWEEP = (
    "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
)  # fmt: skip


def trials(database: Path) -> int:
    with closing(sqlite3.connect(database)) as connection:
        (count,) = connection.execute("select count(*) from trials").fetchone()
    return int(count)


def test_a_locked_database_waits_and_then_says_so(
    run: Run, landscape: Path, tmp_path: Path
) -> None:
    database = tmp_path / "locked.sqlite"
    words = (*SWEEP, "--evaluator", f"recorded:{landscape}", "--db", str(database))
    assert run(*words, "--trials", "4").exit_code == 0
    before = trials(database)
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("begin exclusive")
    started = time.monotonic()
    result = run(*words, "--trials", "8", "--db-wait", "1.5")
    waited = time.monotonic() - started
    holder.execute("rollback")
    holder.close()
    assert result.exit_code == 3
    assert waited >= 1.5
    assert "locked.sqlite" in result.stderr
    assert "Traceback" not in result.stderr
    assert trials(database) == before
    assert run(*words, "--trials", "8").exit_code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted only as root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_breaks_off_and_keeps_what_was_committed(
    run: Run, landscape: Path, small_disk: Path
) -> None:
    database = small_disk / "trials.sqlite"
    words = (
        *SWEEP,
        "--evaluator",
        f"recorded:{landscape}",
        "--db",
        str(database),
        "--trials",
        "64",
    )
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 12_000_000)
    result = run(*words)
    assert result.exit_code == 3, result.output + result.stderr
    assert "full" in result.stderr or "room" in result.stderr
    assert "Traceback" not in result.stderr
    ballast.unlink()
    kept = trials(database)
    result = run(*words, "--json")
    assert result.exit_code == 0
    assert trials(database) > kept > 0


def test_a_read_only_database_is_refused(run: Run, landscape: Path, small_disk: Path) -> None:
    database = small_disk / "trials.sqlite"
    words = (*SWEEP, "--evaluator", f"recorded:{landscape}", "--db", str(database))
    assert run(*words, "--trials", "4").exit_code == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    result = run(*words, "--trials", "8")
    assert result.exit_code == 2, result.output + result.stderr
    assert "trials.sqlite" in result.stderr
    assert "Traceback" not in result.stderr
