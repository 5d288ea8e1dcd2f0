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
from rubin_tune.db.records import Edge
from rubin_tune.db.table_file import document_text, problem_keys
from rubin_tune.db.testing import REPORT, WINNER
from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.runtime import Table, load
from rubin_tune.runtime.table import CODE_KEYS
from rubin_tune.search_spaces import Routing, Unit
from rubin_tune.topology import load_gpu

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


EDGED = [
    replace(
        winner,
        edge=Edge(tokens=last, evidence=evidence),
    )
    for winner, last, evidence in zip(
        winners(),
        (2, 100, 128, 0),
        (Evidence.MEASURED, Evidence.RECORDED, Evidence.PREDICTED, Evidence.MEASURED),
        strict=True,
    )
]


@pytest.mark.parametrize(
    ("tokens", "place"), [(2, 0), (3, 1), (100, 1), (101, 2), (128, 2), (129, 3), (5000, 3)]
)
def test_buckets_end_where_times_cross(tokens: int, place: int) -> None:
    table = Table.from_document(table_document(EDGED))
    choice = table.lookup(WINNER.kernel, KEYS, tokens)
    assert choice.config["block_m"] == 16 * (place + 1)


def test_a_choice_says_what_its_edges_stand_on() -> None:
    table = Table.from_document(table_document(EDGED[:2] + winners()[2:]))
    said = {t: table.lookup(WINNER.kernel, KEYS, t).edges for t in (1, 50, 128, 600, 1 << 20)}
    assert said == {
        1: ("", "measured"),
        50: ("measured", "recorded"),
        128: ("recorded", "assumed"),
        600: ("assumed", ""),
        1 << 20: ("", ""),
    }
    assert "lower edge measured, upper edge recorded" in table.lookup(WINNER.kernel, KEYS, 50).why
    edges = table.edges(WINNER.kernel, KEYS)
    assert [(e.below, e.last, e.above) for e in edges] == [
        (1, 2, 16),
        (16, 100, 128),
        (128, 362, 1024),
    ]


def test_one_config_on_both_sides_needs_no_measurement() -> None:
    same = [replace(winner, config=WINNER.config) for winner in winners()]
    table = Table.from_document(table_document(same))
    assert {edge.evidence for edge in table.edges(WINNER.kernel, KEYS)} == {"same"}


def test_an_edge_towards_a_row_that_cannot_run_is_assumed() -> None:
    big = replace(REPORT, shared_bytes=10**9)
    gpu = load_gpu("h200")
    rows = [EDGED[0], replace(EDGED[1], compile=big), *EDGED[2:]]
    table = Table.from_document(table_document(rows), gpu=gpu)
    edges = table.edges(WINNER.kernel, KEYS)
    assert [(e.below, e.above, e.evidence) for e in edges] == [
        (1, 128, "assumed"), (128, 1024, "predicted"),
    ]  # fmt: skip


def test_a_row_of_another_sweep_leaves_its_edge_assumed() -> None:
    rows = [EDGED[0], replace(EDGED[1], sweep_id="another")]
    table = Table.from_document(table_document(rows))
    assert [edge.evidence for edge in table.edges(WINNER.kernel, KEYS)] == ["assumed"]


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
