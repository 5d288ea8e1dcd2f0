"""A look-up makes nothing and waits for nothing; ranks agree; keys go from process to process."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import document_text, problem_keys
from rubin_tune.db.testing import WINNER
from rubin_tune.errors import InvalidInput
from rubin_tune.runtime import Reason, Table

COUNTS = (1, 3, 16, 100, 128, 700, 1024, 5000)
WINNERS = [replace(WINNER, problem=WINNER.problem.at(t)) for t in (1, 16, 128, 1024)]
KEYS = problem_keys(WINNER.problem, WINNER.silicon)


@pytest.fixture(scope="module")
def table() -> Table:
    return Table.from_document(table_document(WINNERS))


def held_by(look: Callable[[int], object]) -> int:
    """Return the bytes that look-ups hold after they ran, or held at most while they ran."""
    for tokens in COUNTS:
        look(tokens)
    gc.collect()
    tracemalloc.start()
    try:
        for tokens in COUNTS:
            look(tokens)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for tokens in COUNTS:
            look(tokens)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def test_a_bound_look_up_allocates_nothing(table: Table) -> None:
    # What an empty loop holds is what measuring itself holds.
    assert held_by(table.bind(WINNER.kernel, KEYS)) == held_by(lambda tokens: None)


def test_what_allocates_is_noticed() -> None:
    assert held_by(lambda tokens: [tokens] * 9) > held_by(lambda tokens: None)


@pytest.mark.parametrize("problem", [KEYS, dict(KEYS)], ids=["keys", "plain dict"])
def test_an_unbound_look_up_allocates_nothing(table: Table, problem: Any) -> None:
    def look(tokens: int) -> object:
        return table.lookup(WINNER.kernel, problem, tokens)

    assert held_by(look) == held_by(lambda tokens: None)


def test_a_changed_dict_is_another_problem(table: Table) -> None:
    problem = dict(KEYS)
    assert table.lookup(WINNER.kernel, problem, 16).reason is Reason.EXACT
    problem["hidden"] = 7
    assert table.lookup(WINNER.kernel, problem, 16).reason is Reason.DEFAULT
    problem["hidden"] = KEYS["hidden"]
    assert table.lookup(WINNER.kernel, problem, 16).reason is Reason.EXACT


@pytest.mark.parametrize("tokens", [0, -5, 1.5, "16", None, [1], float("nan")])
def test_no_token_count_is_refused(table: Table, tokens: Any) -> None:
    with pytest.raises(InvalidInput, match="tokens"):
        table.bind(WINNER.kernel, KEYS)(tokens)
    with pytest.raises(InvalidInput, match="tokens"):
        table.lookup(WINNER.kernel, KEYS, tokens)


def test_ranks_with_other_tables_are_told(table: Table) -> None:
    table.assert_same(Table.from_document(table_document(WINNERS[::-1])).content_hash)
    with pytest.raises(InvalidInput, match="ranks"):
        table.assert_same(Table.from_document(table_document(WINNERS[1:])).content_hash)


def test_another_process_finds_the_same_hash(table: Table, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(document_text(table_document(WINNERS)))
    code = "import sys; from rubin_tune import load; print(load(sys.argv[1]).content_hash)"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code, str(path)],
            capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path),
                                                             "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert hashes == {table.content_hash}


def test_keys_can_be_sent_and_not_changed() -> None:
    again = pickle.loads(pickle.dumps(KEYS))
    assert (again, hash(again)) == (KEYS, hash(KEYS))
    with pytest.raises(TypeError):
        again["hidden"] = 1
