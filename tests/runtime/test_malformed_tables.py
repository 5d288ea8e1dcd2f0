"""Malformed tables: one clear sentence each; nothing is executed, nothing is written."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubin_tune.db.formats.json import JsonFormat, table_document
from rubin_tune.db.table_file import BODY, document_text
from rubin_tune.db.table_read import read_document
from rubin_tune.db.testing import CONFIG, REPORT, WINNER
from rubin_tune.errors import CorruptFile, DatabaseRefused, InvalidInput
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import LaunchConfig, Unit

LAYER = LaunchConfig.of({f"{u}.{n}": v for u in ("gate_up", "down") for n, v in CONFIG.items})
WINNERS = [
    replace(WINNER, problem=WINNER.problem.at(tokens), unit=unit, config=config, compile=report)
    for tokens in (1, 16, 128)
    for unit, config, report in (
        (Unit.GATE_UP, CONFIG, REPORT),
        (Unit.DOWN, CONFIG.replace(block_m=16), REPORT),
        (Unit.LAYER, LAYER, None),
    )
]
DOCUMENT = table_document(WINNERS)
WHOLE = document_text(DOCUMENT).encode()


def refused(path: Path, content: bytes) -> str:
    """Return the one sentence with which a file is refused; it stays as it was."""
    path.write_bytes(content)
    before = {p: p.stat().st_mtime_ns for p in path.parent.rglob("*")}
    with pytest.raises((CorruptFile, DatabaseRefused)) as caught:
        Table.load(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    assert path.read_bytes() == content
    assert {p: p.stat().st_mtime_ns for p in path.parent.rglob("*")} == before
    return str(caught.value)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(WHOLE)
    assert len(Table.load(path).problems()) == 1


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    assert "not JSON" in refused(tmp_path / "table.pkl", pickle.dumps(Trap(trap)))
    assert not trap.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"{}", b"null", b"1", b'"text"', b"\x00", b"NaN", b"\xff\xfe\x00",
        b"SQLite format 3\x00", b"SQLite format 3\x00" + bytes(4096),
        gzip.compress(WHOLE), b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000,
        b'{"schema": "rubin-tune.table/1", "tables": []}',
        b'{"schema": "rubin-tune.table/4"}',
        b'{"schema": "rubin-tune.table/3"}',
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path / "table.json", content)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(length=st.integers(0, len(WHOLE) - 3))
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    refused(tmp_path / "table.json", WHOLE[:length])


def test_an_export_cut_in_its_records_is_refused(tmp_path: Path) -> None:
    (path,) = JsonFormat().export(WINNERS, tmp_path / "out")
    content = path.read_bytes()
    for length in range(content.index(b'"records": ') + 20, len(content) - 2, 997):
        refused(tmp_path / "table.json", content[:length])


def test_damaged_records_are_noticed_by_who_reads_them(tmp_path: Path) -> None:
    (path,) = JsonFormat().export(WINNERS, tmp_path)
    assert JsonFormat().load(path) == sorted(
        WINNERS, key=lambda w: (w.unit.value, w.problem.tokens)
    )
    path.write_bytes(path.read_bytes().replace(b'"graph8/1"', b'"graph9/1"', 1))
    with pytest.raises(CorruptFile, match="records do not match"):
        read_document(path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(
    tmp_path: Path, place: int, byte: int
) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])
    try:
        table = Table.load(path)
    except CorruptFile as error:
        said = str(error)
    else:
        said = "the same table"
        table.assert_same(Table.from_document(DOCUMENT).content_hash)
    assert "\n" not in said


def with_hash_of_its_own(document: dict[str, Any]) -> bytes:
    """Return a file whose hash fits, as a forger would write it."""
    return json.dumps({k: v for k, v in document.items() if k != "content_hash"}).encode()


def put(value: object, *places: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for place in places[:-1]:
            target = target[place]
        target[places[-1]] = value

    return change


HUGE = 10**30
CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "negative tokens": put(-1, "rows", "tokens", 0),
    "no tokens": put(0, "rows", "tokens", 0),
    "huge tokens": put(HUGE, "rows", "tokens", 0),
    "tokens as text": put("16", "rows", "tokens", 0),
    "tokens as a fraction": put(16.5, "rows", "tokens", 0),
    "tokens true": put(True, "rows", "tokens", 0),
    "tokens null": put(None, "rows", "tokens", 0),
    "tokens twice": put(16, "rows", "tokens", 0),
    "tokens no list": put({}, "rows", "tokens"),
    "a row short": put([1, 16], "rows", "tokens"),
    "negative time": put(-1.0, "rows", "time_us", 0),
    "time as text": put("fast", "rows", "time_us", 0),
    "time huge": put(HUGE**20, "rows", "time_us", 0),
    "config past the end": put(99, "rows", "config", 0),
    "config before the start": put(-1, "rows", "config", 0),
    "needs past the end": put(99, "rows", "needs", 0),
    "unknown evidence": put("x" * 9, "rows", "evidence"),
    "evidence a list": put(["m"] * 9, "rows", "evidence"),
    "negative shared memory": put(-5, "needs", "shared_bytes", 0),
    "shared memory as text": put("much", "needs", "shared_bytes", 0),
    "needs without threads": lambda document: document["needs"].pop("threads"),
    "needs of unlike length": lambda document: document["needs"]["threads"].append(1),
    "a config value null": put(None, "configs", 0, "values", "block_m", 0),
    "a config value a list": put([1], "configs", 0, "values", "block_m", 0),
    "a config value a fraction": put(1.0, "configs", 0, "values", "block_m", 0),
    "a config value huge": put(HUGE, "configs", 0, "values", "block_m", 0),
    "a config's count wrong": put(1, "configs", 0, "count"),
    "a config's count huge": put(HUGE, "configs", 0, "count"),
    "configs without values": lambda document: document["configs"][0].pop("values"),
    "a part past the end": put(7, "configs", 1, "parts", "down", 0),
    "a part that is itself": put(2, "configs", 1, "parts", "down", 0),
    "a parameter with a path": lambda document: document["configs"][0]["values"].update(
        {"../x": [1, 1]}
    ),
    "an op with a path": put("../../etc/passwd", "groups", 0, "op"),
    "an op with a null": put("a\0b", "groups", 0, "op"),
    "an op hidden": put(".hidden", "groups", 0, "op"),
    "a unit with a path": put("/tmp/x", "groups", 0, "unit"),
    "an op of another type": put(["megamoe"], "groups", 0, "op"),
    "an unhashable unit": put({}, "groups", 0, "unit"),
    "a long op": put("x" * 1000, "groups", 0, "op"),
    "a group of no problem": put(5, "groups", 0, "problem"),
    "a group of no rows": put(0, "groups", 0, "rows"),
    "a group with too many rows": put(10**9, "groups", 0, "rows"),
    "rows of no group": lambda document: document["groups"].pop(),
    "two groups alike": put("layer", "groups", 0, "unit"),
    "a problem that is a list": put([], "problems", 0),
    "a nested problem": put({"hidden": {"a": 1}}, "problems", 0),
    "a problem's key with a path": put({"a/b": 1}, "problems", 0),
    "a problem's text too long": put("x" * 10**6, "problems", 0, "layout"),
    "a problem with too many keys": put({f"k{i}": i for i in range(10**6)}, "problems", 0),
    "a problem's integer too large": put(HUGE, "problems", 0, "hidden"),
    "a million problems": put([{}] * 10**6, "problems"),
    "an unknown hash": put("00" * 32, "content_hash"),
    "a hash of another type": put(7, "content_hash"),
    **{f"no {name}": (lambda n: lambda document: document.pop(n))(name) for name in BODY},
    **{f"{name} null": put(None, name) for name in BODY},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_table_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    document.pop("content_hash", None)
    CHANGES[name](document)
    if name == "a million problems":
        # Problems that no group has are no mistake; they are dropped, and the table stays small.
        table = Table.from_document(document)
        assert len(table.problems()) == 1
        return
    refused(tmp_path / "table.json", json.dumps(document).encode())
    with pytest.raises(InvalidInput, match="no table of winners"):
        Table.from_document(document)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("place", ["rows", "problems"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, number: str, place: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    target = document["rows"]["time_us"] if place == "rows" else document["problems"][0]
    target[0 if place == "rows" else "routed_scaling_factor"] = 12345.5
    text = json.dumps(document).replace("12345.5", number)
    refused(tmp_path / "table.json", text.encode())


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in (".", "absent", "fifo", "a\0b", "x" * 5000):
        with pytest.raises(CorruptFile):
            Table.load(tmp_path / name)
    with pytest.raises(CorruptFile, match="regular file"):
        Table.load("/dev/zero")


@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_any_order_is_the_same_table(draw: Any) -> None:
    shuffled = copy.deepcopy(DOCUMENT)
    rows, groups = shuffled["rows"], shuffled["groups"]
    ends = [sum(g["rows"] for g in groups[:i]) for i in range(len(groups) + 1)]
    numbers = []
    order = draw.sample(range(len(groups)), len(groups))
    for group in order:
        own = list(range(ends[group], ends[group + 1]))
        draw.shuffle(own)
        numbers += own
    shuffled["groups"] = [groups[i] for i in order]
    for name, column in rows.items():
        moved = [column[i] for i in numbers]
        rows[name] = "".join(moved) if type(column) is str else moved
    for kind in shuffled["configs"]:
        if "values" in kind:
            names = draw.sample(list(kind["values"]), len(kind["values"]))
            kind["values"] = {n: kind["values"][n] for n in names}
    table, whole = Table.from_document(shuffled), Table.from_document(DOCUMENT)
    assert table.content_hash == whole.content_hash
    table.assert_same(whole.content_hash)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(BODY), deep=st.lists(st.integers(0, 9), max_size=4), value=json_values)
def test_whatever_stands_anywhere_is_refused_or_answers(
    name: str, deep: list[int], value: Any
) -> None:
    document = copy.deepcopy(DOCUMENT)
    target, place = document, name
    for step in deep:
        inner = target[place]
        if not isinstance(inner, dict | list) or not inner:
            break
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        target, place = inner, keys[step % len(keys)]
    target[place] = value
    try:
        table = Table.from_document(document)
    except InvalidInput as error:
        said = str(error)
    else:
        said = table.content_hash
        answer_everywhere(table)
    assert said
    assert "\n" not in said


def answer_everywhere(table: Table) -> None:
    for problem in table.problems():
        for op, unit in (("megamoe", "layer"), ("megamoe", "down")):
            assert table.lookup(op, problem, 20, unit=unit).why
            assert table.lookup(op, {**problem, "local_experts": 3}, 20, unit=unit).why
