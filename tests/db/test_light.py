"""The short way from an SQLite file to a table gives what the store gives."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubin_tune.db import Evidence, Winner, open_store
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.light import READS, read_winners
from rubin_tune.db.records import Edge
from rubin_tune.db.schema import REVISIONS
from rubin_tune.db.table_file import content_hash
from rubin_tune.db.table_read import in_order
from rubin_tune.db.testing import CONFIG, REPORT, SILICON, WINNER
from rubin_tune.errors import DatabaseRefused
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import LaunchConfig, Routing, Unit

LAYER = LaunchConfig.of({f"{u}.{n}": v for u in ("gate_up", "down") for n, v in CONFIG.items})


def of_sweep(
    name: str, tokens: int, evidence: Evidence, block: int, watts: int, edge: Edge | None = None
) -> list[Winner]:
    """Return one sweep's winners at one token count: both GEMMs and the layer."""
    winner = replace(
        WINNER,
        sweep_id=name,
        problem=WINNER.problem.at(tokens),
        evidence=evidence,
        silicon=replace(SILICON, power_limit_w=watts),
        config=CONFIG.replace(block_m=block),
        edge=edge,
    )
    gemms = [
        replace(winner, unit=unit, compile=replace(REPORT, shared_bytes=1000 * (block + number)))
        for number, unit in enumerate((Unit.GATE_UP, Unit.DOWN))
    ]
    return [*gemms, replace(winner, config=LAYER, compile=None)]


def stored(path: Path, sweeps: Sequence[Sequence[Winner]]) -> Path:
    with open_store(path) as store:
        for winners in sweeps:
            store.begin_sweep(winners[0].sweep_id, "print", {})
            store.add_winners(winners)
    return path


def the_stores_table(path: Path) -> Table:
    with open_store(path) as store:
        return Table.from_document(table_document(store.winners()))


SWEEP = st.tuples(
    st.sampled_from([1, 16, 64]),
    st.sampled_from([Evidence.PREDICTED, Evidence.RECORDED, Evidence.MEASURED]),
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from([500, 700]),
    st.none()
    | st.builds(
        Edge,
        tokens=st.integers(1, 63),
        evidence=st.sampled_from([Evidence.PREDICTED, Evidence.MEASURED]),
    ),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.lists(SWEEP, min_size=1, max_size=5), sweeps_=st.integers(1, 5))
def test_both_ways_give_the_same_table(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[tuple[Any, ...]], sweeps_: int
) -> None:
    # Some of one sweep: an edge stands towards rows of its own sweep only.
    sweeps = [of_sweep(f"s{number % sweeps_}", *one) for number, one in enumerate(chosen)]
    path = stored(tmp_path_factory.mktemp("light") / "our.db", sweeps)
    document = read_winners(path)
    assert document is not None
    assert content_hash(in_order(document)) == the_stores_table(path).content_hash


def test_routings_and_capacities_are_problems_of_their_own(tmp_path: Path) -> None:
    skewed = replace(WINNER.problem, routing=Routing(kind="lognormal", skew=0.5))
    captured = replace(WINNER.problem, capacity=64)
    winners = [replace(WINNER, problem=p) for p in (WINNER.problem, skewed, captured)]
    path = stored(tmp_path / "our.db", [winners])
    table = Table.load(path)
    assert len(table.problems()) == 3
    assert table.content_hash == the_stores_table(path).content_hash


def test_an_edge_stands_only_towards_the_next_row_of_its_own_sweep(tmp_path: Path) -> None:
    edge = Edge(tokens=9, evidence=Evidence.RECORDED)
    first = of_sweep("one", 1, Evidence.MEASURED, 16, 700, edge)
    second = of_sweep("one", 16, Evidence.MEASURED, 32, 700, replace(edge, tokens=20))
    third = of_sweep("one", 64, Evidence.MEASURED, 64, 700)
    newer = of_sweep("two", 64, Evidence.MEASURED, 128, 700)
    path = stored(tmp_path / "our.db", [first + second + third, newer])
    table = Table.load(path)
    (problem,) = table.problems()
    found = table.edges("megamoe", problem, unit="gate_up")
    assert [(e.last, e.evidence) for e in found] == [(9, "recorded"), (32, "assumed")]
    assert table.content_hash == the_stores_table(path).content_hash


def test_a_database_of_an_older_revision_has_assumed_edges(tmp_path: Path) -> None:
    path = stored(tmp_path / "our.db", [[WINNER]])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE winners DROP COLUMN edge_tokens")
        connection.execute("UPDATE rubin_tune_version SET version_num = '0004'")
    before = path.read_bytes()
    assert len(Table.load(path).problems()) == 1
    assert path.read_bytes() == before


def test_a_layer_that_is_written_otherwise_is_read_whole(tmp_path: Path) -> None:
    odd = [
        LAYER,
        LaunchConfig.of({"down.a": 1, "x": 2, "gate_up.b": 3}),
        LaunchConfig.of({"down.a": ",down.b", "gate_up.b": 'say ,"gate_up.c'}),
        LaunchConfig.of({"down.a": 1}),
        LaunchConfig.of({}),
    ]
    winners = [
        replace(WINNER, config=config, problem=WINNER.problem.at(tokens))
        for tokens, config in enumerate(odd, start=1)
    ]
    path = stored(tmp_path / "our.db", [winners])
    table = Table.load(path)
    assert table.content_hash == the_stores_table(path).content_hash
    look = table.bind(WINNER.kernel, table.problems()[0], unit=WINNER.unit.value)
    assert [dict(look(tokens).config) for tokens in range(1, 6)] == [c.as_dict() for c in odd]


def test_the_statements_are_for_the_newest_revision() -> None:
    assert READS[-1] == REVISIONS[-1]


def test_an_unknown_revision_is_left_to_the_store(tmp_path: Path) -> None:
    path = stored(tmp_path / "our.db", [[WINNER]])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE rubin_tune_version SET version_num = '9999'")
    assert read_winners(path) is None
    with pytest.raises(DatabaseRefused, match="newer"):
        Table.load(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE winners SET config = '{\"block_m\": '",
        "UPDATE winners SET config = '{\"block_m\": 1.5}'",
        "UPDATE winners SET config = '[]'",
        "UPDATE winners SET time_us = -1",
        "UPDATE winners SET time_us = 9e999",
        "UPDATE winners SET evidence = 17",
        "UPDATE winners SET kernel = '../../etc/passwd'",
        "UPDATE problems SET record = '{}'",
        "UPDATE problems SET tokens = -5",
        "UPDATE compiles SET record = '{}'",
    ],
)
def test_a_damaged_record_is_refused_in_one_sentence(tmp_path: Path, damage: str) -> None:
    path = stored(tmp_path / "our.db", [[WINNER]])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    with pytest.raises(DatabaseRefused, match=r"our\.db.*holds a") as caught:
        Table.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("edge", ["'soon', 3", "-4, 3", "4, 17", "9e999, 3"])
def test_a_damaged_edge_is_refused_in_one_sentence(tmp_path: Path, edge: str) -> None:
    winners = [replace(WINNER, problem=WINNER.problem.at(tokens)) for tokens in (1, 16)]
    path = stored(tmp_path / "our.db", [winners])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE winners SET (edge_tokens, edge_evidence) = ({edge})")
    with pytest.raises(DatabaseRefused, match=r"our\.db.*holds a"):
        Table.load(path)


def test_a_truncated_database_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path / "our.db", [[WINNER]])
    path.write_bytes(path.read_bytes()[: 4096 * 3])
    with pytest.raises(DatabaseRefused, match=r"our\.db"):
        Table.load(path)


def test_reading_writes_nothing_and_needs_no_sqlalchemy(tmp_path: Path) -> None:
    path = stored(tmp_path / "our.db", [[WINNER]])
    before = path.read_bytes()
    code = (
        "import sys; from rubin_tune.runtime import Table; table = Table.load(sys.argv[1]);"
        "print(len(table.problems()), 'sqlalchemy' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["1", "False"]
    assert path.read_bytes() == before
