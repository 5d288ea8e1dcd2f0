"""Look-ups: exact, bucket, nearest, default, and why."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.db import Evidence, Winner, open_store
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import document_text, problem_keys
from rubin_tune.db.testing import WINNER
from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.runtime import Table, load
from rubin_tune.runtime.table import CODE_KEYS
from rubin_tune.search_spaces import Routing, Unit

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
    path.write_text(document_text(document).replace('"block_m":[16', '"block_m":[32', 1))
    with pytest.raises(CorruptFile, match="content_hash"):
        load(path)


def test_keys_that_are_left_out_match_anything(table: Table) -> None:
    few = {"weights": "bf16", "arch": 90}
    assert table.lookup(WINNER.kernel, few, 16).why.startswith("exact")


def test_two_problems_that_both_match_are_not_chosen_from() -> None:
    skewed = replace(WINNER.problem, routing=Routing(kind="lognormal", skew=0.5))
    both = Table.from_document(table_document([WINNER, replace(WINNER, problem=skewed)]))
    few = {name: value for name, value in KEYS.items() if name != "routing"}
    with pytest.raises(InvalidInput, match=r"2 problems of 'megamoe' match.* routing"):
        both.lookup(WINNER.kernel, few, 4)
    assert both.lookup(WINNER.kernel, KEYS, 4).why.startswith("exact")


def test_another_routing_borrows_the_nearest_and_says_so(table: Table) -> None:
    choice = table.lookup(WINNER.kernel, {**KEYS, "routing": "lognormal:0.5"}, 16)
    assert choice.config["block_m"] == 32
    assert choice.why.startswith("nearest: tuned for routing uniform instead of lognormal:0.5")


@pytest.mark.parametrize("key", CODE_KEYS)
def test_a_config_is_never_borrowed_for_other_code(table: Table, key: str) -> None:
    default = {"block_m": 7}
    choice = table.lookup(WINNER.kernel, {**KEYS, key: "other"}, 16, default=default)
    assert (choice.config, choice.evidence) == (default, "none")
    assert choice.why.startswith("default")


def test_units_are_looked_up_apart() -> None:
    down = replace(WINNER, unit=Unit.DOWN, config=WINNER.config.replace(block_m=256))
    table = Table.from_document(table_document([WINNER, down]))
    assert table.lookup(WINNER.kernel, KEYS, 4, unit="down").config["block_m"] == 256
    # Without a word the whole layer is meant.
    assert table.lookup(WINNER.kernel, KEYS, 4).config["block_m"] == 64


def test_stronger_evidence_stays_where_two_winners_meet() -> None:
    weaker = replace(WINNER, evidence=Evidence.PREDICTED, config=WINNER.config.replace(block_m=1))
    for order in ([WINNER, weaker], [weaker, WINNER]):
        table = Table.from_document(table_document(order))
        assert table.lookup(WINNER.kernel, KEYS, 4).evidence == "measured"


def test_the_hash_is_of_the_content(table: Table) -> None:
    same = Table.from_document(table_document(list(reversed(winners()))))
    other = Table.from_document(table_document(winners()[1:]))
    assert table.content_hash == same.content_hash != other.content_hash


def test_a_look_up_needs_neither_torch_nor_sql_nor_numpy() -> None:
    heavy = ("torch", "triton", "sqlalchemy", "alembic", "optuna", "numpy", "networkx")
    code = f"import sys, rubin_tune.runtime; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
