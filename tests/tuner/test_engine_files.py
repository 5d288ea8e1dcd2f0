"""What ranks are said to ask for is what export writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Winner
from rubin_tune.db.testing import WINNER
from rubin_tune.registry import load
from rubin_tune.search_spaces import LaunchConfig, Layout, Unit, load_model, with_formats
from rubin_tune.topology import load_gpu
from rubin_tune.tuner.engine_files import engine_files
from rubin_tune.tuner.request import load_kernel

CONFIG = LaunchConfig.of(
    block_m=64, block_n=128, block_k=128, group_m=1, num_warps=4, num_stages=3
)
H200 = load_gpu("h200")
KERNELS = {"vllm": "fused_moe", "sglang": "sglang_fused_moe"}


def winner(engine: str, layout: Layout) -> Winner:
    shape = with_formats(load_model("qwen3-30b-a3b"), "fp8", None)
    problem = replace(WINNER.problem, shape=shape, layout=layout).at(16)
    return replace(
        WINNER, kernel=KERNELS[engine], problem=problem, unit=Unit.LAYER, config=CONFIG,
        default_config=CONFIG, compile=None, parts=(),
    )  # fmt: skip


@pytest.mark.parametrize("engine", KERNELS)
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(kind="dep", ranks=4), Layout(kind="tp", ranks=2)]
)
def test_the_files_are_those_of_the_export(engine: str, layout: Layout, tmp_path: Path) -> None:
    row = winner(engine, layout)
    exporter: Any = load("db.formats", engine)
    written = {str(p.relative_to(tmp_path)) for p in exporter.export([row], tmp_path)}
    found = engine_files(
        engine, load_kernel(KERNELS[engine]), row.problem, H200, row=row, tuned=[16],
        device_name=None,
    )  # fmt: skip
    assert {file.file for file in found} == written
    assert {file.key for file in found} == {"16"}
    assert all(file.ranks == tuple(range(layout.ranks)) for file in found)
