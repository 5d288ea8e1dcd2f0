"""The examples of docs/lookup.md run as they are written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.formats.json import table_document
from rubin_tune.db.table_file import document_text
from rubin_tune.db.testing import CONFIG, WINNER
from rubin_tune.search_spaces import LaunchConfig

TEXT = (Path(__file__).parents[1] / "docs/lookup.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_the_examples_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = LaunchConfig.of({f"{u}.{n}": v for u in ("gate_up", "down") for n, v in CONFIG.items})
    rows = [replace(WINNER, problem=WINNER.problem.at(t), config=config) for t in (1, 16, 128)]
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/TABLE.json").write_text(document_text(table_document(rows)))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in EXAMPLES:
        exec(compile(example, "docs/lookup.md", "exec"), names)
    assert len(EXAMPLES) == 6
    assert "64 measured exact: measured at 16 tokens" in capsys.readouterr().out
    assert '"tokens": 500000' in (tmp_path / "misses.jsonl").read_text()
