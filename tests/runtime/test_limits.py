"""Rows that the GPU cannot run are left out at load, and the next best answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rubin_tune.db import CompileReport, Winner
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import problem_keys
from rubin_tune.db.testing import CONFIG, REPORT, WINNER
from rubin_tune.runtime import Limits, Reason, Table
from rubin_tune.search_spaces import Unit
from rubin_tune.topology import load_gpu

KEYS = problem_keys(WINNER.problem, WINNER.silicon)
H200 = load_gpu("h200")


def winner(tokens: int, report: CompileReport | None = REPORT, **config: Any) -> Winner:
    changed = CONFIG.replace(group_m=tokens, **config)
    return replace(WINNER, problem=WINNER.problem.at(tokens), config=changed, compile=report)


def table_of(*winners: Winner) -> Table:
    return Table.from_document(table_document(winners), gpu=H200)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shared_bytes": 300_000}, "300000 B of shared memory: h200 has 232448"),
        ({"threads": 2048}, "2048 threads"),
        ({"registers": 255, "threads": 512}, "512 threads of 255 registers"),
        ({"tmem_columns": 512}, "512 tensor-memory columns"),
    ],
)
def test_a_row_over_a_limit_gives_way_to_its_neighbour(change: dict[str, int], said: str) -> None:
    table = table_of(winner(1), winner(16, replace(REPORT, **change)), winner(128))
    (warning,) = table.warnings
    assert "the row of 16 tokens is left out" in warning
    assert said in warning
    choice = table.lookup(WINNER.kernel, KEYS, 16)
    assert choice.reason is Reason.BUCKET
    assert choice.config["group_m"] == 128
    assert said in choice.why
    assert table.lookup(WINNER.kernel, KEYS, 1).reason is Reason.EXACT
    # Its bucket went to its neighbours, which meet at their own mean.
    assert table.lookup(WINNER.kernel, KEYS, 2).bucket == (1, 11)


def test_a_problem_without_rows_that_run_falls_to_the_default() -> None:
    table = table_of(winner(16, replace(REPORT, shared_bytes=300_000)))
    choice = table.lookup(WINNER.kernel, KEYS, 16, default={"block_m": 8})
    assert choice.reason is Reason.DEFAULT
    assert choice.config == {"block_m": 8}


def test_what_is_not_known_is_judged_by_its_warps() -> None:
    table = table_of(winner(1, None, num_warps=64), winner(16, None))
    assert "2048 threads" in table.warnings[0]
    assert table.lookup(WINNER.kernel, KEYS, 1).config["group_m"] == 16


def test_a_layer_needs_what_its_gemms_need() -> None:
    gemms = [
        replace(winner(16, replace(REPORT, shared_bytes=size)), unit=unit)
        for unit, size in ((Unit.GATE_UP, 300_000), (Unit.DOWN, 1000))
    ]
    table = table_of(*gemms, winner(16, None), winner(64, None))
    assert table.lookup(WINNER.kernel, KEYS, 16, unit="layer").config["group_m"] == 64


def test_rows_of_another_gpu_are_left_out_whole() -> None:
    other = replace(WINNER.silicon, arch=107)
    table = table_of(winner(16), replace(winner(16), silicon=other))
    assert [p["arch"] for p in table.problems()] == [90]
    assert "they are for sm_107, h200 is sm_90" in table.warnings[0]


def test_the_hash_is_of_the_table_not_of_the_gpu() -> None:
    document = table_document([winner(16), winner(64, replace(REPORT, shared_bytes=300_000))])
    assert (
        Table.from_document(document, gpu=H200).content_hash
        == Table.from_document(document).content_hash
    )


def test_a_server_may_say_its_limits_itself() -> None:
    small = replace(Limits.of(H200), name="mig", shared_bytes=1024)
    table = Table.from_document(table_document([winner(16)]), gpu=small)
    assert table.problems() == []
    assert "mig has 1024" in table.warnings[0]


def test_larger_shared_memory_counts_where_a_gpu_has_the_mode() -> None:
    assert Limits.of(load_gpu("vr200")).shared_bytes > 232_448
