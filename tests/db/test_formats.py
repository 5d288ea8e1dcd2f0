"""Exported tables: round trips, refusals, nothing half written."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Evidence, Winner
from rubin_tune.db.formats._format import write_together
from rubin_tune.db.formats.vllm import device_as_file_name
from rubin_tune.db.testing import REPORT, WINNER
from rubin_tune.errors import CorruptFile, ExportRefused, InvalidInput
from rubin_tune.registry import load, names
from rubin_tune.search_spaces import LaunchConfig, Unit, load_model, with_formats

ENGINE_CONFIG = LaunchConfig.of(
    block_m=16, block_n=128, block_k=128, group_m=1, num_warps=4, num_stages=3
)

SHIPPED = Path(__file__).parents[2] / "../shared/data/engine-configs/vllm"


def format_of(name: str) -> Any:
    return load("db.formats", name)


@pytest.fixture
def layer() -> Winner:
    """A measured winner of vLLM's kernel for both GEMMs."""
    problem = replace(
        WINNER.problem,
        shape=with_formats(load_model("qwen3-30b-a3b"), "fp8", None),
        tokens=16,
        capacity=16,
    )
    return replace(
        WINNER, kernel="fused_moe", problem=problem, unit=Unit.LAYER, config=ENGINE_CONFIG,
        default_config=ENGINE_CONFIG, evidence=Evidence.MEASURED, compile=None, parts=(),
    )  # fmt: skip


def test_formats_are_the_files_of_the_folder() -> None:
    assert {"vllm", "json", "csv"} <= set(names("db.formats"))


def test_json_comes_back_with_the_same_configs(layer: Winner, tmp_path: Path) -> None:
    winners = [layer, replace(layer, problem=layer.problem.at(64), time_us=20.0)]
    (path,) = format_of("json").export(winners, tmp_path)
    back = format_of("json").load(path)
    assert [(w.problem.tokens, w.config, w.time_us, w.evidence) for w in back] == [
        (w.problem.tokens, w.config, w.time_us, w.evidence) for w in winners
    ]


def test_csv_has_a_line_a_winner(layer: Winner, tmp_path: Path) -> None:
    (path,) = format_of("csv").export([layer], tmp_path)
    (row,) = csv.DictReader(path.read_text().splitlines())
    assert row["evidence"] == "measured"
    assert int(row["tokens"]) == 16


def test_vllm_pins_the_whole_ladder(layer: Winner, tmp_path: Path) -> None:
    (path,) = format_of("vllm").export([layer], tmp_path)
    assert path.name == (
        "E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
    )
    table = json.loads(path.read_text())
    assert len([k for k in table if k != "triton_version"]) == 18
    assert table["16"] == {
        "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
        "num_warps": 4, "num_stages": 3,
    }  # fmt: skip


def refused(winners: list[Winner], folder: Path, match: str, **options: Any) -> None:
    with pytest.raises(ExportRefused, match=match):
        format_of("vllm").export(winners, folder, **options)
    assert not folder.exists() or list(folder.iterdir()) == []


def test_vllm_refuses_winners_of_another_kernel(layer: Winner, tmp_path: Path) -> None:
    refused([replace(layer, kernel="megamoe")], tmp_path / "t", "megamoe")


def test_vllm_refuses_predicted_rows_unless_allowed(layer: Winner, tmp_path: Path) -> None:
    predicted = replace(layer, evidence=Evidence.PREDICTED)
    refused([predicted], tmp_path / "t", "predicted")
    assert format_of("vllm").export([predicted], tmp_path / "t", allow_predicted=True)


def test_vllm_refuses_two_problems_that_share_a_file(layer: Winner, tmp_path: Path) -> None:
    shape = replace(layer.problem.shape, model="another", hidden=4096)
    other = replace(layer, problem=replace(layer.problem, shape=shape))
    refused([layer, other], tmp_path / "t", "another|4096|hidden")


def test_vllm_refuses_a_row_that_its_kernel_would_misread(layer: Winner, tmp_path: Path) -> None:
    wide = replace(layer, config=ENGINE_CONFIG.replace(block_k=256))
    refused([wide], tmp_path / "t", "block_k|BLOCK_SIZE_K|256")
    strange = replace(layer, config=LaunchConfig.of(ENGINE_CONFIG.as_dict(), swap_ab=True))
    refused([strange], tmp_path / "t", "swap_ab")
    large = ENGINE_CONFIG.replace(block_m=256, block_n=256, num_stages=5)
    refused([replace(layer, config=large)], tmp_path / "t", "shared memory")


def test_a_folder_that_cannot_be_written_is_refused(layer: Winner, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(Exception, match="file"):
        format_of("json").export([layer], blocked)
    assert blocked.read_text() == "not a folder"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"unit": Unit.DOWN}, "no winners of unit 'layer'"),
        ({"parts": (("down", ENGINE_CONFIG.replace(block_n=64)),)}, "one must serve both"),
        ({"config": ENGINE_CONFIG.replace(swap_ab=True)}, "takes no 'swap_ab'"),
        ({"config": LaunchConfig.of(block_m=16)}, "has no 'block_n'"),
        ({"config": ENGINE_CONFIG.replace(num_warps=3)}, "num_warps is 3: must be a power of two"),
        ({"config": ENGINE_CONFIG.replace(block_m=256, num_stages=9)}, "at most 232448"),
        ({"compile": replace(REPORT, shared_bytes=232_449)}, "needs 232449 bytes"),
        ({"evidence": Evidence.COMPILED}, "rows are compiled"),
        ({"silicon": replace(WINNER.silicon, name="h200")}, "--device-name"),
        ({"silicon": replace(WINNER.silicon, name="NVIDIA H200 SXM")}, "--device-name"),
    ],
)
def test_vllm_refuses_a_row_that_cannot_be_meant(
    layer: Winner, tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    refused([replace(layer, **change)], tmp_path / "t", match)


def test_vllm_refuses_weights_that_it_reads_no_table_of(layer: Winner, tmp_path: Path) -> None:
    shape = replace(layer.problem.shape, weights="mxfp4", activations="mxfp8")
    other = replace(layer, problem=replace(layer.problem, shape=shape))
    refused([other], tmp_path / "t", "mxfp4")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"config": ENGINE_CONFIG.replace(block_n=64)}, "two winners"),
        ({"silicon": replace(WINNER.silicon, power_limit_w=300)}, "two GPUs"),
    ],
)
def test_vllm_refuses_rows_that_the_name_cannot_tell_apart(
    layer: Winner, tmp_path: Path, change: dict[str, Any], match: str
) -> None:
    refused([layer, replace(layer, **change)], tmp_path / "t", match)


@pytest.mark.parametrize(
    ("driver", "file"),
    [
        ("NVIDIA H200", "NVIDIA_H200"),
        ("NVIDIA H200 NVL", "NVIDIA_H200"),
        ("NVIDIA GH200 480GB", "NVIDIA_GH200_480GB"),
        ("NVIDIA B200", "NVIDIA_B200"),
        ("AMD/Radeon  X", "AMD_Radeon_X"),
    ],
)
def test_vllm_spells_gpus_as_the_engine_does(driver: str, file: str) -> None:
    assert device_as_file_name(driver) == file


def test_vllm_keeps_rows_beside_the_ladder_and_takes_a_device_name(
    layer: Winner, tmp_path: Path
) -> None:
    beside = replace(layer, problem=layer.problem.at(8192))
    (path,) = format_of("vllm").export([beside], tmp_path, device_name="NVIDIA X")
    assert "device_name=NVIDIA_X," in path.name
    assert list(format_of("vllm").load(path))[-1] == 8192


def test_vllm_loads_what_it_exported(layer: Winner, tmp_path: Path) -> None:
    (path,) = format_of("vllm").export([layer], tmp_path)
    assert format_of("vllm").load(path)[16] == ENGINE_CONFIG


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="the engine's tables of ../shared are not here")
def test_vllm_loads_the_tables_that_the_engine_ships() -> None:
    tables = {path.name: format_of("vllm").load(path) for path in SHIPPED.glob("*.json")}
    assert len(tables) == 3
    assert all(len(table) == 18 for table in tables.values())


@pytest.mark.parametrize("content", ["", "[]", '{"a": {}}', '{"1": {"BLOCK_SIZE_M": 16}}'])
def test_what_is_no_table_of_vllm_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(CorruptFile, match=r"t\.json"):
        format_of("vllm").load(tmp_path / "t.json")


@pytest.mark.parametrize("name", ["csv", "json", "vllm"])
def test_no_winners_are_no_table(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="no winners"):
        format_of(name).export([], tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_files_are_written_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "second.json").mkdir()
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_together({tmp_path / "second.json": "b", tmp_path / "third.json": "c"})
    assert [p.name for p in tmp_path.iterdir()] == ["second.json"]
