"""A watched table follows its source, and survives a broken one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rubin_tune.db import Winner, open_store
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import document_text
from rubin_tune.db.testing import WINNER
from rubin_tune.runtime import TableWatcher

OTHER = replace(WINNER, config=WINNER.config.replace(block_m=16))


def write(path: Path, winners: Sequence[Winner]) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(document_text(table_document(winners)))
    draft.replace(path)


def test_a_new_file_gives_a_new_table_and_the_old_one_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(path, [WINNER])
    watcher = TableWatcher(path)
    first = watcher.table
    assert watcher.reload() is first
    write(path, [OTHER])
    second = watcher.reload()
    assert second is watcher.table
    assert second is not first
    assert watcher.version == 2
    problem = first.problems()[0]
    assert first.lookup(WINNER.kernel, problem, 4).config["block_m"] == 64
    assert second.lookup(WINNER.kernel, problem, 4).config["block_m"] == 16


def test_the_same_content_written_again_is_the_same_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(path, [WINNER])
    watcher = TableWatcher(path)
    first = watcher.table
    write(path, [WINNER])
    assert watcher.reload() is first
    assert watcher.version == 1


def test_a_broken_or_missing_file_keeps_the_table_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(path, [WINNER])
    watcher = TableWatcher(path)
    first = watcher.table
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert watcher.reload() is first
    assert "table.json" in watcher.trouble
    path.unlink()
    assert watcher.reload() is first
    assert watcher.trouble
    write(path, [OTHER])
    assert watcher.reload() is not first
    assert watcher.trouble == ""


def test_a_database_is_followed_too(tmp_path: Path) -> None:
    path = tmp_path / "our.db"
    with open_store(path) as store:
        store.begin_sweep("s1", "print", {})
        store.add_winners([WINNER])
        watcher = TableWatcher(path)
        store.begin_sweep("s2", "print", {})
        store.add_winners([replace(OTHER, sweep_id="s2")])
        assert watcher.reload().lookup(WINNER.kernel, {}, 4).config["block_m"] == 16
        assert watcher.version == 2


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write(path, [WINNER])
    watcher = TableWatcher(path)
    times = path.stat()
    data = path.read_bytes()
    # Same size, time and inode: only reading it would tell that it is broken.
    with path.open("r+b") as stream:
        stream.write(b"x" * len(data))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    watcher.reload()
    assert watcher.trouble == ""
