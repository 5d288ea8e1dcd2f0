"""vLLM's own look-up reads what we export; skipped where vLLM is not installed (docs/engines.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rubin_tune.cli import main

LANDSCAPE = (
    Path(__file__).parents[2]
    / "../shared/data/landscapes/h200-vllm-fused-moe-qwen3-30b-a3b-fp8.jsonl.gz"
)
LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
PROBLEM = ("fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200")

pytestmark = pytest.mark.skipif(
    not LANDSCAPE.exists(), reason="the recorded landscapes of ../shared/data are not here"
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sweep the recorded landscape and export vLLM's table."""
    folder = tmp_path_factory.mktemp("vllm")
    database = folder / "trials.sqlite"
    for words in (
        ("sweep", *PROBLEM, "--evaluator", f"recorded:{LANDSCAPE}"),
        ("export", *PROBLEM, "--format", "vllm", "--out", str(folder / "tables")),
    ):
        result = CliRunner().invoke(main, ["-q", *words, "--db", str(database)])
        assert result.exit_code == 0, result.output + result.stderr
    return folder / "tables"


@pytest.fixture
def engine(tables: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's module, on a machine that it takes for an H200, reading our folder."""
    module = pytest.importorskip(
        "vllm.model_executor.layers.fused_moe.fused_moe", reason="vLLM is not installed"
    )
    # Without the GPU vLLM has no device to ask for its name.
    monkeypatch.setattr(module, "get_device_name_as_file_name", lambda: "NVIDIA_H200")
    monkeypatch.setitem(os.environ, "VLLM_TUNED_CONFIG_FOLDER", str(tables))
    module.get_moe_configs.cache_clear()
    yield module
    module.get_moe_configs.cache_clear()


def test_the_file_has_the_name_that_the_engine_asks_for(engine: Any, tables: Path) -> None:
    name = engine.get_config_file_name(128, 768, "fp8_w8a8", [128, 128])
    assert [p.name for p in tables.iterdir()] == [name]


def test_the_engine_reads_every_row_as_we_wrote_it(engine: Any, tables: Path) -> None:
    (path,) = tables.iterdir()
    ours = json.loads(path.read_text())
    ours.pop("triton_version")
    found = engine.get_moe_configs(128, 768, "fp8_w8a8", 128, 128)
    assert found == {int(tokens): config for tokens, config in ours.items()}
    assert set(LADDER) <= set(found)


@pytest.mark.parametrize("tokens", LADDER)
def test_each_token_count_gets_its_own_row(engine: Any, tables: Path, tokens: int) -> None:
    (path,) = tables.iterdir()
    wanted = json.loads(path.read_text())[str(tokens)]
    config = engine.try_get_optimal_moe_config(
        (128, 1536, 2048), (128, 2048, 768), 8, "fp8_w8a8", tokens, [128, 128]
    )
    assert {name: config[name] for name in wanted} == wanted


def test_our_default_rows_are_what_the_engine_launches_without_a_table(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rubin_tune.search_spaces import (
        Problem,
        Unit,
        fused_moe,
        load_model,
        parse_layout,
        parse_routing,
        with_formats,
    )
    from rubin_tune.topology import load_gpu

    gpu = load_gpu("h200")
    for dtype, name, block in (("fp8", "fp8_w8a8", [128, 128]), ("bf16", None, None)):
        shape = with_formats(load_model("qwen3-30b-a3b"), dtype, None)
        problem = Problem(
            shape=shape,
            layout=parse_layout("single", shape, gpu),
            routing=parse_routing("uniform"),
            tokens=1,
        )
        for tokens in LADDER:
            theirs = engine.get_default_config(tokens, 128, 1536, 2048, 8, name, block)
            ours = fused_moe.to_engine(fused_moe.default(problem.at(tokens), Unit.GATE_UP, gpu))
            assert {k: v for k, v in theirs.items() if k != "SPLIT_K"} == ours


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA GB200", "A/B  C"])
@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
@pytest.mark.parametrize("layout", ["single", "tp2", "tp4", "ep8", "dep8", "dep3"])
def test_each_rank_of_each_layout_asks_for_the_name_that_we_write(
    engine: Any, monkeypatch: pytest.MonkeyPatch, layout: str, dtype: str, device: str
) -> None:
    import re

    from rubin_tune.db.formats.vllm import file_name
    from rubin_tune.search_spaces import (
        Problem,
        load_model,
        parse_layout,
        parse_routing,
        with_formats,
    )
    from rubin_tune.topology import load_gpu

    # Its get_device_name_as_file_name, without the GPU that it asks.
    monkeypatch.setattr(
        engine, "get_device_name_as_file_name", lambda: re.sub(r"[\s/]+", "_", device)
    )
    # 12 experts a rank of width 1536, 384 a shard: whole scale blocks in every layout.
    shape = with_formats(load_model("qwen3-235b-a22b"), dtype, None)
    problem = Problem(
        shape=shape,
        layout=parse_layout(layout, shape, load_gpu("h200")),
        routing=parse_routing("uniform"),
        tokens=1,
    )
    name, block = ("fp8_w8a8", [128, 128]) if dtype == "fp8" else (None, None)
    wanted = engine.get_config_file_name(
        problem.local_experts, problem.local_intermediate, name, block
    )
    assert file_name(problem, device) == wanted


@pytest.mark.usefixtures("installed")
def test_the_plug_in_serves_a_table_and_leaves_a_users_own(
    engine: Any, engine_winner: Any, write_table: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from rubin_tune.runtime import engines
    from rubin_tune.search_spaces import Unit, fused_moe
    from rubin_tune.topology import load_gpu

    plugins = pytest.importorskip("vllm.plugins")
    winners = [engine_winner("fused_moe", tokens) for tokens in (4, 16, 1024)]
    table = write_table(tmp_path / "table.json", winners)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(engines.TABLE, str(table))
    monkeypatch.setenv("VLLM_PLUGINS", "rubin_tune")
    users = os.environ[engines.VLLM_FOLDER]

    monkeypatch.setattr(plugins, "plugins_loaded", False)
    plugins.load_general_plugins()
    assert os.environ[engines.VLLM_FOLDER] == users

    monkeypatch.setenv(engines.VLLM_FOLDER, "")
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    plugins.load_general_plugins()
    assert Path(os.environ[engines.VLLM_FOLDER]).is_relative_to(tmp_path / "cache")
    engine.get_moe_configs.cache_clear()
    own = {winner.problem.tokens: winner.config for winner in winners}
    for tokens in LADDER:
        found = engine.try_get_optimal_moe_config(
            (128, 1536, 2048), (128, 2048, 768), 8, "fp8_w8a8", tokens, [128, 128]
        )
        default = fused_moe.default(winners[0].problem.at(tokens), Unit.GATE_UP, load_gpu("h200"))
        assert fused_moe.from_engine(found) == own.get(tokens, default), tokens
