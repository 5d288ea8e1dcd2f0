"""SGLang's own look-up reads what we export; skipped where SGLang's files are not here (docs/engines.md).

Its look-up and its plug-in loader are the real files. What they import beside them needs a GPU or dozens of
packages, and is replaced: the device's name, the deterministic switch, the reader of its variables.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import triton

from rubin_tune.db.formats import sglang as our_format
from rubin_tune.errors import ExportRefused
from rubin_tune.runtime import engines
from rubin_tune.search_spaces import Unit, sglang_fused_moe
from rubin_tune.search_spaces.fused_moe import to_engine
from rubin_tune.topology import load_gpu

LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
LOOK_UP = "sglang.srt.layers.moe.moe_runner.triton_utils"
FP8 = ("fp8_w8a8", [128, 128])
OTHERS = (3, 20, 700, 5000, 100_000)

_spec = find_spec("sglang")
needs_sglang = pytest.mark.skipif(_spec is None, reason="SGLang's files are not here")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """SGLang's look-up module, on a machine that it takes for an H200."""
    assert _spec is not None
    assert _spec.origin is not None
    root = Path(_spec.origin).parent
    parts = LOOK_UP.split(".")
    # Packages without their __init__, which would import the whole engine.
    for end in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:end]))
        package.__path__ = [str(root.joinpath(*parts[1:end]))]
        package.__spec__ = _spec if end == 1 else None
        monkeypatch.setitem(sys.modules, package.__name__, package)
    sys.modules[LOOK_UP].get_config = lambda: None  # type: ignore[attr-defined]
    off = types.SimpleNamespace(
        deterministic=types.SimpleNamespace(enable_deterministic_inference=False)
    )
    unset = types.SimpleNamespace(get=lambda: None)
    replaced = {
        "sglang.srt.runtime_context": {"get_exec": lambda: off},
        "sglang.srt.utils": {"get_device_name": lambda: "NVIDIA H200", "is_hip": lambda: False},
        "sglang.srt.environ": {
            "envs": types.SimpleNamespace(SGLANG_PLUGINS=unset, SGLANG_PLATFORM=unset)
        },
    }
    for name, contents in replaced.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(engines.SGLANG_FOLDER, raising=False)
    yield importlib.import_module(f"{LOOK_UP}.fused_moe_triton_config")
    for name in [n for n in sys.modules if n.split(".")[0] == "sglang"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def asked(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Ask the engine for the configs of both GEMMs, as its fused_experts does."""

    def ask(tokens: int, dtype: str = "fp8", version: str = "3.9.0") -> tuple[Any, Any]:
        monkeypatch.setattr(triton, "__version__", version)
        engine.get_moe_configs.cache_clear()
        name, block = FP8 if dtype == "fp8" else (None, None)
        up, (down, _) = engine.try_get_optimal_moe_config(
            (128, 1536, 2048), (128, 2048, 768), 8, name, tokens,
            block_shape=block, return_down_config=True,
        )  # fmt: skip
        return up, down

    return ask


def export(rows: list[Any], folder: Path) -> list[Path]:
    return our_format.PROVIDES.export(rows, folder)


@needs_sglang
@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_files_have_the_names_that_the_engine_asks_for(
    engine: Any, engine_winner: Callable[..., Any], tmp_path: Path, dtype: str
) -> None:
    name, block = FP8 if dtype == "fp8" else (None, None)
    wanted = {
        engine.get_config_file_name(128, 768, name, block, down_moe=down) for down in (False, True)
    }
    written = export([engine_winner("sglang_fused_moe", 16, dtype)], tmp_path)
    assert {path.name for path in written} == wanted
    assert {path.parent.relative_to(tmp_path) for path in written} == {
        Path("configs/triton_3_9_0")
    }


@needs_sglang
@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_every_token_count_of_the_ladder_gets_the_right_configs(
    asked: Any, engine_winner: Callable[..., Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, dtype: str,
) -> None:  # fmt: skip
    winners = [engine_winner("sglang_fused_moe", tokens, dtype) for tokens in (4, 16, 1024)]
    export(winners, tmp_path)
    monkeypatch.setenv(engines.SGLANG_FOLDER, str(tmp_path))
    own = {winner.problem.tokens: dict(winner.parts) for winner in winners}
    for tokens in LADDER:
        default = sglang_fused_moe.default(
            winners[0].problem.at(tokens), Unit.GATE_UP, load_gpu("h200")
        )
        up, down = asked(tokens, dtype)
        wanted = own.get(tokens, {"gate_up": default, "down": default})
        assert up == to_engine(wanted["gate_up"]), tokens
        assert down == to_engine(wanted["down"]), tokens
    for tokens in OTHERS:
        up, down = asked(tokens, dtype)
        nearest = min(LADDER, key=lambda count: abs(count - tokens))
        assert (up, down) == asked(nearest, dtype)
        # Both GEMMs share one alignment: else the engine overwrites the second.
        assert up["BLOCK_SIZE_M"] == down["BLOCK_SIZE_M"]


@needs_sglang
def test_each_triton_gets_its_own_table_and_another_the_newest(
    asked: Any, engine_winner: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        engine_winner("sglang_fused_moe", 16, triton=version, stages=stages)
        for version, stages in (("3.9.0", 4), ("3.8.0", 3))
    ]
    assert len(export(rows, tmp_path)) == 4
    monkeypatch.setenv(engines.SGLANG_FOLDER, str(tmp_path))
    found = {
        version: [config["num_stages"] for config in asked(16, version=version)]
        for version in ("3.9.0", "3.8.0", "3.7.1")
    }
    assert found == {"3.9.0": [4, 4], "3.8.0": [3, 3], "3.7.1": [4, 4]}


@needs_sglang
def test_our_default_rows_are_what_the_engine_launches_without_a_table(
    engine: Any, engine_winner: Callable[..., Any]
) -> None:
    for dtype, name, block in (("fp8", *FP8), ("bf16", None, None)):
        problem = engine_winner("sglang_fused_moe", 1, dtype).problem
        for tokens in LADDER:
            theirs = engine.get_default_config(tokens, 128, 768, 2048, 8, name, False, block)
            ours = sglang_fused_moe.default(problem.at(tokens), Unit.GATE_UP, load_gpu("h200"))
            # What it leaves out is Triton's default.
            assert {"num_warps": 4, "num_stages": 3, **theirs} == to_engine(ours)


@needs_sglang
@pytest.mark.usefixtures("installed")
def test_the_plug_in_serves_ours_beside_what_the_engine_ships(
    engine: Any, asked: Any, engine_winner: Callable[..., Any], write_table: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    winner = engine_winner("sglang_fused_moe", 16)
    table = write_table(tmp_path / "table.json", [winner])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(engines.TABLE, str(table))
    monkeypatch.setenv(engines.SGLANG_FOLDER, "")
    shipped = next(
        path
        for path in sorted((Path(engine.__file__).parent / "configs/triton_3_5_1").iterdir())
        if "device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json" in path.name
    )
    experts, width = (int(part.split("=")[1]) for part in shipped.name.split(",")[:2])

    importlib.import_module("sglang.srt.plugins").load_plugins()

    assert Path(os.environ[engines.SGLANG_FOLDER]).is_relative_to(tmp_path / "cache")
    parts = dict(winner.parts)
    assert asked(16) == (to_engine(parts["gate_up"]), to_engine(parts["down"]))
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    engine.get_moe_configs.cache_clear()
    found = engine.get_moe_configs(experts, width, "fp8_w8a8", 128, 128)
    assert found == {int(k): v for k, v in json.loads(shipped.read_text()).items()}


@needs_sglang
@pytest.mark.usefixtures("installed")
def test_a_users_own_folder_still_wins_through_the_plug_in(
    asked: Any, engine_winner: Callable[..., Any], write_table: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    mine = tmp_path / "mine"
    export([engine_winner("sglang_fused_moe", 16, stages=2)], mine)
    table = write_table(tmp_path / "table.json", [engine_winner("sglang_fused_moe", 16)])
    monkeypatch.setenv(engines.TABLE, str(table))
    monkeypatch.setenv(engines.SGLANG_FOLDER, str(mine))
    importlib.import_module("sglang.srt.plugins").load_plugins()
    assert [config["num_stages"] for config in asked(16)] == [2, 2]


def test_a_version_that_breaks_the_engines_sorting_is_refused(
    engine_winner: Callable[..., Any], tmp_path: Path
) -> None:
    for version in ("3.9.0+git1234", "3.9.0/../..", "", "main"):
        with pytest.raises(ExportRefused, match="released versions"):
            export([engine_winner("sglang_fused_moe", 16, triton=version)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_gemms_that_do_not_share_their_rows_are_refused(
    engine_winner: Callable[..., Any], tmp_path: Path
) -> None:
    from dataclasses import replace

    winner = engine_winner("sglang_fused_moe", 16)
    up = dict(winner.parts)["gate_up"]
    apart = replace(winner, parts=(("gate_up", up), ("down", up.replace(block_m=32))))
    with pytest.raises(ExportRefused, match="different block_m"):
        export([apart], tmp_path / "out")
    with pytest.raises(ExportRefused, match="slash"):
        our_format.PROVIDES.export([winner], tmp_path / "out", device_name="../../etc/passwd")
    with pytest.raises(ExportRefused, match="sweep sglang_fused_moe instead"):
        export([engine_winner("fused_moe", 16)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_exported_is_imported_again(
    engine_winner: Callable[..., Any], tmp_path: Path
) -> None:
    winner = engine_winner("sglang_fused_moe", 16)
    up, down = export([winner], tmp_path)
    parts = dict(winner.parts)
    assert our_format.PROVIDES.load(up)[16] == parts["gate_up"]
    assert our_format.PROVIDES.load(down)[16] == parts["down"]
