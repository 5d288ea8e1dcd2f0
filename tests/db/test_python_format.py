"""The generated module answers as our own table does, without us; loading executes nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Evidence, Winner
from rubin_tune.db.formats.json import table_document
from rubin_tune.db.formats.python import PROVIDES
from rubin_tune.db.records import Edge
from rubin_tune.db.testing import CONFIG, WINNER
from rubin_tune.errors import CorruptFile, ExportRefused
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import Unit

FORMAT: Any = PROVIDES
LADDER = (1, 16, 128, 1024)
WINNERS = [
    replace(
        WINNER, unit=unit, problem=WINNER.problem.at(tokens), edge=edge, parts=(),
        config=CONFIG.replace(block_m=16 << place, num_stages=3 + (unit is Unit.DOWN)),
    )
    for unit in (Unit.GATE_UP, Unit.DOWN)
    for place, (tokens, edge) in enumerate(
        zip(LADDER, (None, Edge(tokens=100, evidence=Evidence.MEASURED), None, None), strict=True)
    )
]  # fmt: skip


def module_of(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def test_the_module_chooses_as_the_table_does(tmp_path: Path) -> None:
    (path,) = FORMAT.export(WINNERS, tmp_path)
    choose = module_of(path)["choose"]
    table = Table.from_document(table_document(WINNERS))
    (problem,) = table.problems()
    for unit in ("gate_up", "down"):
        look = table.bind(WINNER.kernel, problem, unit=unit)
        for tokens in (*range(1, 1200), 5000, 1 << 20):
            assert choose(unit, tokens) == look(tokens).config


def test_a_module_comes_back_with_the_same_configs(tmp_path: Path) -> None:
    (path,) = FORMAT.export(WINNERS, tmp_path)
    wanted: dict[str, dict[int, object]] = {"gate_up": {}, "down": {}}
    for winner in WINNERS:
        wanted[winner.unit.value][winner.problem.tokens] = winner.config
    assert FORMAT.load(path) == wanted


def test_the_module_needs_neither_us_nor_triton_to_choose(tmp_path: Path) -> None:
    (path,) = FORMAT.export(WINNERS, tmp_path)
    path.rename(tmp_path / "tuned.py")
    code = (
        "import sys, tuned; print(tuned.choose('down', 50)['block_m'], "
        "[m for m in sys.modules if m.split('.')[0] in ('rubin_tune', 'triton', 'torch')])"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "32 []"


def test_configs_of_triton_are_those_of_the_unit(tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    (path,) = FORMAT.export(WINNERS, tmp_path)
    found = module_of(path)["triton_configs"]("down")
    assert all(isinstance(one, triton.Config) for one in found)
    assert [(one.kwargs["BLOCK_M"], one.num_warps, one.num_stages) for one in found] == [
        (16 << place, CONFIG.as_dict()["num_warps"], 4) for place in range(4)
    ]


def test_a_module_of_two_problems_is_refused(tmp_path: Path) -> None:
    shape = replace(WINNER.problem.shape, top_k=1)
    other: Winner = replace(WINNERS[0], problem=replace(WINNER.problem, shape=shape))
    with pytest.raises(ExportRefused, match="2 problems"):
        FORMAT.export([*WINNERS, other], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "", "(", "CONFIGS = []", "TABLES = {}\nCONFIGS = 3; TABLES = 4", "\x00",
        "CONFIGS = [__import__('os').abort()]\nTABLES = {}",
        "CONFIGS = []\nTABLES = {'down': {'tokens': [1], 'config': [7]}}",
    ],
)  # fmt: skip
def test_what_is_no_such_module_is_refused_and_not_executed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.py"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=r"tuned\.py"):
        FORMAT.load(path)
