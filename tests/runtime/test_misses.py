"""Misses are written by many processes, bounded, and never raise into a server."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import document_text, problem_keys
from rubin_tune.db.testing import WINNER
from rubin_tune.runtime import MissLog, Reason, Table

KEYS = problem_keys(WINNER.problem, WINNER.silicon)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def table_path(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_text(document_text(table_document([WINNER])))
    return path


def test_only_look_ups_that_no_row_answers_are_written_once_each(
    table_path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "misses.jsonl"
    table = Table.load(table_path, misses=MissLog(log, model="qwen3-30b-a3b"))
    look = table.bind(WINNER.kernel, KEYS)
    for tokens in (4, 4096, 4096, 9000):
        look(tokens)
        table.lookup(WINNER.kernel, KEYS, tokens)
    table.lookup("unheard_of", KEYS, 7)
    found = lines(log)
    assert [(x["op"], x["tokens"], x["reason"]) for x in found] == [
        ("megamoe", 4096, "nearest"),
        ("megamoe", 9000, "nearest"),
        ("unheard_of", 7, "default"),
    ]
    assert found[0]["problem"] == KEYS
    assert found[0]["model"] == "qwen3-30b-a3b"


def test_a_borrowed_answer_is_a_miss(table_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "misses.jsonl"
    table = Table.load(table_path, misses=MissLog(log))
    table.lookup(WINNER.kernel, {**KEYS, "routing": "balanced"}, 4)
    assert [x["problem"]["routing"] for x in lines(log)] == ["balanced"]


def write_some(path: str, first: int) -> None:
    miss = MissLog(path).of("megamoe", "layer", KEYS)
    for tokens in range(first, first + 200):
        miss(tokens, Reason.NEAREST)


def test_lines_of_many_processes_are_whole(tmp_path: Path) -> None:
    log = tmp_path / "misses.jsonl"
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        list(pool.map(write_some, [str(log)] * 4, [1, 201, 401, 601]))
    assert sorted(x["tokens"] for x in lines(log)) == list(range(1, 801))


def test_the_file_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "misses.jsonl"
    written = MissLog(log, most_bytes=2000)
    miss = written.of("megamoe", "layer", KEYS)
    for tokens in range(1, 100):
        miss(tokens, Reason.NEAREST)
    assert 0 < log.stat().st_size <= 2000
    assert "full" in written.trouble
    assert len(lines(log)) > 1


@pytest.mark.parametrize("kind", ["folder", "fifo", "no folder", "nul"])
def test_a_file_that_cannot_be_written_raises_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "misses"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "no folder":
        path = tmp_path / "absent" / "misses"
    else:
        path = tmp_path / "a\0b"
    log = MissLog(path)
    log.of("megamoe", "layer", KEYS)(5, Reason.NEAREST)
    assert log.trouble


def test_a_problem_that_json_cannot_spell_raises_nothing(tmp_path: Path) -> None:
    log = MissLog(tmp_path / "misses.jsonl")
    log.of("megamoe", "layer", {"hidden": object()})(5, Reason.NEAREST)
    assert "cannot be written" in log.trouble
