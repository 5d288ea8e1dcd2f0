"""The benchmark of look-ups: a small table in place of its own, every figure in its JSON."""

from __future__ import annotations

import json

import pytest

from benchmarks import lookup


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a table of 320 rows: what is tested is the command, not the machine."""
    monkeypatch.setattr(lookup, "_PROBLEMS", 4)
    monkeypatch.setattr(lookup, "_LOOPS", 3)


def test_json_has_the_figures_and_nothing_is_allocated(capsys: pytest.CaptureFixture[str]) -> None:
    lookup.main(["--json"])
    found = json.loads(capsys.readouterr().out)
    for name in ("lookup_us_median", "lookup_unbound_us_median", "load_file_ms", "load_sqlite_ms"):
        assert found[name] > 0
    assert found["rows"] == 320
    assert found["evidence"] == "measured"
    assert found["allocated_bytes"] == 0
    assert found["imports_heavy"] == []


def test_the_made_up_table_is_the_same_each_time() -> None:
    assert lookup.make_winners() == lookup.make_winners()
