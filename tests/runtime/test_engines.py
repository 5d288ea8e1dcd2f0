"""The engines' plug-ins: what they write, what they leave alone, and that nothing is ever raised."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Evidence, open_store
from rubin_tune.errors import ExportRefused, InvalidInput
from rubin_tune.runtime import engines

VARIABLES = {"vllm": engines.VLLM_FOLDER, "sglang": engines.SGLANG_FOLDER}
KERNELS = {"vllm": "fused_moe", "sglang": "sglang_fused_moe"}


@pytest.fixture(params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache of the test's own, and no variable set; what a plug-in sets is taken back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (engines.TABLE, *VARIABLES.values()):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    # SGLang need not be installed: it "ships" one table.
    shipped = tmp_path / "shipped"
    place = shipped / "configs/triton_3_6_0/E=8,N=14336,device_name=NVIDIA_H200.json"
    place.parent.mkdir(parents=True)
    place.write_text('{"1": {"BLOCK_SIZE_M": 16}}')
    monkeypatch.setattr(engines, "_shipped", lambda: shipped)
    return tmp_path


@pytest.fixture
def table(home: Path, engine: str, engine_winner: Callable[..., Any], write_table: Any) -> Path:
    winners = [engine_winner(KERNELS[engine], tokens) for tokens in (16, 1024)]
    found: Path = write_table(home / "table.json", winners)
    return found


def plug_in(engine: str) -> str | None:
    """Call an engine's plug-in; return what it set."""
    getattr(engines, engine)()
    return os.environ.get(VARIABLES[engine])


def test_the_folder_is_private_and_holds_the_engines_files(
    engine: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(engines.TABLE, str(table))
    folder = Path(plug_in(engine) or "")
    assert folder.stat().st_mode & 0o777 == 0o700
    names = {str(p.relative_to(folder)) for p in folder.rglob("*.json")}
    if engine == "vllm":
        assert names == {
            "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
        }
    else:
        ours = "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128]"
        assert names == {
            f"configs/triton_3_9_0/{ours}.json",
            f"configs/triton_3_9_0/{ours}_down.json",
            "configs/triton_3_6_0/E=8,N=14336,device_name=NVIDIA_H200.json",
        }


def test_every_rank_and_restart_gets_the_same_folder(
    engine: str, table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(engines.TABLE, str(table))
    first = plug_in(engine)
    again = plug_in(engine)
    monkeypatch.delenv(VARIABLES[engine])
    assert first == again == plug_in(engine)
    assert caplog.records == []


def test_a_users_own_folder_wins(
    engine: str, table: Path, home: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv(engines.TABLE, str(table))
    monkeypatch.setenv(VARIABLES[engine], str(home / "mine"))
    assert plug_in(engine) == str(home / "mine")
    assert not (home / "cache").exists()
    (record,) = caplog.records
    assert VARIABLES[engine] in record.getMessage()


def test_without_a_table_nothing_happens(
    engine: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert plug_in(engine) is None
    assert caplog.records == []
    assert not (home / "cache").exists()


def test_a_database_does_as_well(
    engine: str, home: Path, engine_winner: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = engine_winner(KERNELS[engine], 16)
    with open_store(home / "our.db") as store:
        store.begin_sweep(winner.sweep_id, "print", {})
        store.add_winners([winner])
    monkeypatch.setenv(engines.TABLE, str(home / "our.db"))
    assert Path(plug_in(engine) or "").is_dir()


BAD = {
    "empty": b"",
    "truncated": b'{"schema": "rubin-tune.table/1", "tables": [',
    "NaN": b"NaN",
    "deep": b"[" * 100_000,
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
    "no rows": b'{"schema": "rubin-tune.table/1", "tables": []}',
    "wrong types": b'{"schema": "rubin-tune.table/1", "tables": [{"op": 1}]}',
    "sqlite": b"SQLite format 3\x00 but no more",
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_bad_table_is_one_warning(
    engine: str, home: Path, content: bytes, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    path = home / "bad"
    path.write_bytes(content)
    monkeypatch.setenv(engines.TABLE, str(path))
    assert plug_in(engine) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "\n" not in record.getMessage()
    assert not list(home.glob("cache/**/*.json"))


def test_a_missing_table_and_a_foreign_password_are_not_shown(
    engine: str, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(engines.TABLE, "postgresql://me:secret@127.0.0.1:1/none?connect_timeout=1")
    assert plug_in(engine) is None
    monkeypatch.setenv(engines.TABLE, str(home / "not there.json"))
    assert plug_in(engine) is None
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


def test_rows_that_the_engine_would_misread_leave_it_alone(
    engine: str, home: Path, engine_winner: Callable[..., Any], write_table: Any,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    from dataclasses import replace

    winner = engine_winner(KERNELS[engine], 16)
    predicted = replace(winner, evidence=Evidence.PREDICTED)
    shape = replace(winner.problem.shape, hidden=4096, model="another")
    other = replace(winner, problem=replace(winner.problem, shape=shape))
    for rows, words in (([predicted], "predicted"), ([winner, other], "two problems")):
        path = write_table(home / "table.json", rows)
        monkeypatch.setenv(engines.TABLE, str(path))
        caplog.clear()
        assert plug_in(engine) is None
        assert words in caplog.text
        with pytest.raises(ExportRefused, match=words):
            engines.materialise(str(path), engine, home / "root")


def test_only_the_engines_own_winners_are_handed_over(
    home: Path, engine_winner: Callable[..., Any], write_table: Any
) -> None:
    path = write_table(home / "table.json", [engine_winner("fused_moe", 16)])
    with pytest.raises(InvalidInput, match="sglang"):
        engines.materialise(str(path), "sglang", home / "root")


def test_a_link_in_the_caches_place_is_refused(
    engine: str, table: Path, home: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (home / "cache/rubin-tune").mkdir(parents=True)
    (home / "cache/rubin-tune/engines").symlink_to(elsewhere)
    monkeypatch.setenv(engines.TABLE, str(table))
    assert plug_in(engine) is None
    assert "link" in caplog.text
    assert list(elsewhere.iterdir()) == []


def test_the_plug_in_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, rubin_tune.runtime.engines as e\n"
        "e.vllm(); e.sglang()\n"
        "heavy = {'torch', 'numpy', 'sqlalchemy', 'triton', 'platformdirs'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != engines.TABLE}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
