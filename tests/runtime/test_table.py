"""Look-ups: exact, bucket, nearest, default, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.db import Winner, open_store
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import problem_keys
from rubin_tune.db.testing import WINNER
from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.runtime import Table, load

LADDER = (1, 16, 128, 1024)


def winners() -> list[Winner]:
    return [
        replace(
            WINNER,
            problem=WINNER.problem.at(t),
            config=WINNER.config.replace(block_m=16 * (i + 1)),
        )
        for i, t in enumerate(LADDER)
    ]


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.from_document(table_document(winners()))


KEYS = problem_keys(WINNER.problem, WINNER.silicon)


@pytest.mark.parametrize(("place", "tokens"), list(enumerate(LADDER)))
def test_a_token_count_of_the_table_is_exact(table: Table, place: int, tokens: int) -> None:
    choice = table.lookup(WINNER.kernel, KEYS, tokens)
    assert choice.config["block_m"] == 16 * (place + 1)
    assert choice.why.startswith("exact")


@given(tokens=st.integers(1, 1 << 20))
def test_every_token_count_has_an_answer_inside_its_bucket(table: Table, tokens: int) -> None:
    choice = table.lookup(WINNER.kernel, KEYS, tokens)
    low, high = choice.bucket
    assert low <= tokens <= high
    kind = choice.why.split()[0].rstrip(":")
    assert kind == ("exact" if tokens in LADDER else "bucket" if tokens < 1024 else "nearest")


@given(tokens=st.integers(1, 1 << 20))
def test_a_bound_look_up_answers_as_the_table_does(table: Table, tokens: int) -> None:
    assert table.bind(WINNER.kernel, KEYS)(tokens) == table.lookup(WINNER.kernel, KEYS, tokens)


def test_configs_cannot_be_changed(table: Table) -> None:
    config = table.lookup(WINNER.kernel, KEYS, 16).config
    with pytest.raises(TypeError):
        config["block_m"] = 1  # type: ignore[index]


def test_an_unknown_kernel_gives_the_default_and_says_so(table: Table) -> None:
    choice = table.lookup("unheard_of", KEYS, 16, default={"block_m": 64})
    assert dict(choice.config) == {"block_m": 64}
    assert (choice.evidence, choice.why.split()[0].rstrip(":")) == ("none", "default")


@pytest.mark.parametrize("tokens", [0, -1])
def test_no_token_is_refused(table: Table, tokens: int) -> None:
    with pytest.raises(InvalidInput):
        table.lookup(WINNER.kernel, KEYS, tokens)


def test_a_file_and_a_database_give_the_same_table(tmp_path: Path, table: Table) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table_document(winners())))
    database = tmp_path / "our.db"
    with open_store(database) as store:
        store.begin_sweep(WINNER.sweep_id, "print", {})
        store.add_winners(winners())
    assert load(path).content_hash == table.content_hash == load(database).content_hash


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema": "other/1"}', "\x00", "NaN"])
def test_what_is_no_table_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(CorruptFile, match=r"table\.json"):
        load(path)


def test_a_changed_row_is_noticed(tmp_path: Path) -> None:
    document = table_document(winners())
    path = tmp_path / "table.json"
    path.write_text(json.dumps(document).replace('"block_m": 16', '"block_m": 32', 1))
    try:
        other = load(path)
    except CorruptFile:
        return
    assert other.content_hash != Table.from_document(document).content_hash
