"""Exported tables: round trips, refusals, nothing half written."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Evidence, Winner
from rubin_tune.db.testing import WINNER
from rubin_tune.errors import ExportRefused
from rubin_tune.registry import load, names
from rubin_tune.search_spaces import LaunchConfig, Unit, load_model, with_formats

ENGINE_CONFIG = LaunchConfig.of(
    block_m=16, block_n=128, block_k=128, group_m=1, num_warps=4, num_stages=3
)


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
