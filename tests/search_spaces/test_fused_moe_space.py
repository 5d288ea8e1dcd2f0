"""The space of vLLM's kernel: its grid, its clamp, its defaults, and recorded landscapes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import (
    GEMMS,
    LaunchConfig,
    Layout,
    Problem,
    Unit,
    fused_moe,
    load_model,
    parse_layout,
    parse_routing,
    with_formats,
)
from rubin_tune.topology import gpu_names, load_gpu

H200 = load_gpu("h200")
LANDSCAPES = Path(__file__).parents[2] / "../shared/data/landscapes"


def problem(dtype: str, tokens: int = 64, layout: str = "single") -> Problem:
    shape = with_formats(load_model("qwen3-30b-a3b"), dtype, None)
    return Problem(
        shape=shape,
        layout=parse_layout(layout, shape, H200),
        routing=parse_routing("uniform"),
        tokens=tokens,
    )


def test_the_grid_is_vllms() -> None:
    """1,920 points; a model of stages - 1 buffers leaves 1,488 bf16 ones (engines 4.2)."""
    found = fused_moe.space(problem("bf16"), Unit.GATE_UP, H200)
    assert found.size == 1920
    assert len(found.legal()) == 1488
    assert found.duplicates == 0


def test_the_clamp_of_block_k_makes_duplicates() -> None:
    found = fused_moe.space(problem("fp8"), Unit.DOWN, H200)
    removed = sum(count for _, count in found.removed())
    # 1,280 distinct launches (facts, engines 2.1), of which 8 exceed shared memory.
    assert len(found.legal()) == 1280 - 8
    assert found.duplicates == 640 - (removed - 8)
    assert {c["block_k"] for c in found.legal()} == {64, 128}
    wide = found.legal()[0].replace(block_k=256)
    assert found.canonical(wide)["block_k"] == 128
    assert found.canonical(found.canonical(wide)) == found.canonical(wide)


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_canonical_points_obey_where_the_given_ones_do(dtype: str) -> None:
    found = fused_moe.space(problem(dtype), Unit.GATE_UP, H200)
    for config in found.legal():
        wide = config.replace(block_k=256)
        if found.why_not(wide) is None:
            assert found.contains(found.canonical(wide))


@pytest.mark.parametrize(
    ("dtype", "tokens", "expected"),
    [
        ("fp8", 1, "block_k=128 block_m=16 block_n=64 group_m=1 num_stages=4 num_warps=4"),
        ("fp8", 16, "block_k=128 block_m=16 block_n=128 group_m=1 num_stages=3 num_warps=4"),
        ("fp8", 65, "block_k=128 block_m=64 block_n=128 group_m=32 num_stages=3 num_warps=4"),
        ("bf16", 32, "block_k=128 block_m=16 block_n=64 group_m=1 num_stages=4 num_warps=4"),
        ("bf16", 64, "block_k=128 block_m=32 block_n=64 group_m=1 num_stages=3 num_warps=4"),
        ("bf16", 512, "block_k=64 block_m=64 block_n=128 group_m=1 num_stages=3 num_warps=8"),
        ("bf16", 32768, "block_k=64 block_m=128 block_n=128 group_m=16 num_stages=3 num_warps=8"),
    ],
)
def test_defaults_are_the_engines(dtype: str, tokens: int, expected: str) -> None:
    """Source: facts, engines 1.1, get_default_config."""
    assert str(fused_moe.default(problem(dtype, tokens), Unit.GATE_UP, H200)) == expected


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_default_is_legal(gpu: str, dtype: str) -> None:
    device = load_gpu(gpu)
    for tokens in (1, 16, 128, 4096, 65536):
        for layout in ("single", "dep8"):
            one = problem(dtype, tokens, layout)
            for unit in GEMMS:
                found = fused_moe.space(one, unit, device)
                assert found.contains(fused_moe.default(one, unit, device))


def test_both_units_share_one_space() -> None:
    spaces = [fused_moe.space(problem("fp8"), unit, H200) for unit in GEMMS]
    assert spaces[0].legal() == spaces[1].legal()


def test_formats_that_the_kernel_lacks_are_refused() -> None:
    flash = Problem(
        shape=load_model("deepseek-v4.1-flash"),
        layout=Layout(),
        routing=parse_routing("uniform"),
        tokens=8,
    )
    with pytest.raises(InvalidInput, match="must have bf16 or fp8"):
        fused_moe.space(flash, Unit.GATE_UP, H200)
    with pytest.raises(InvalidInput, match="must have bf16 or fp8"):
        fused_moe.default(flash, Unit.GATE_UP, H200)


def test_configs_go_to_the_engine_and_back() -> None:
    for config in fused_moe.space(problem("bf16"), Unit.GATE_UP, H200).legal()[::97]:
        row = fused_moe.to_engine(config)
        assert set(row) == set(fused_moe.ENGINE_NAMES.values())
        assert fused_moe.from_engine(row) == config


def test_rows_without_warps_and_stages_get_tritons_defaults() -> None:
    row = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}
    found = fused_moe.from_engine({**row, "SPLIT_K": 1})
    assert (found["num_warps"], found["num_stages"]) == (4, 3)
    with pytest.raises(InvalidInput, match="BLOCK_SIZE_M is None"):
        fused_moe.from_engine({"BLOCK_SIZE_N": 64})


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_recorded_points_lie_in_both_spaces(dtype: str) -> None:
    path = LANDSCAPES / f"h200-vllm-fused-moe-qwen3-30b-a3b-{dtype}.jsonl.gz"
    if not path.exists():
        pytest.skip("the shared data folder is not beside this checkout")
    with gzip.open(path, "rt") as lines:
        header = json.loads(next(lines))
        rows = [json.loads(line) for line in lines]
    recorded = fused_moe.from_landscape_grid(header)
    assert len(recorded.legal()) == recorded.size == {"bf16": 720, "fp8": 480}[dtype]
    own = fused_moe.space(problem(dtype), Unit.GATE_UP, H200)
    names = ("block_m", "block_n", "block_k", "group_m", "num_warps", "num_stages")
    for row in rows:
        config = LaunchConfig.of(dict(zip(names, row["c"], strict=True)))
        assert recorded.contains(config)
        if "st" not in row:  # it ran, so no rule may call it impossible
            assert own.contains(config), (config, own.why_not(config))


GRID = {
    "BLOCK_SIZE_M": [16],
    "BLOCK_SIZE_N": [64],
    "BLOCK_SIZE_K": [64, 128, 256],
    "GROUP_SIZE_M": [1],
    "num_warps": [4],
    "num_stages": [2],
}


def test_recorded_grids_are_clamped_as_the_engine_does() -> None:
    assert len(fused_moe.from_landscape_grid({"grid": GRID, "dtype": "fp8"}).legal()) == 2
    assert len(fused_moe.from_landscape_grid({"grid": GRID, "dtype": "bf16"}).legal()) == 3


@pytest.mark.parametrize(
    "grid",
    [
        None,
        {},
        [],
        {**GRID, "SPLIT_K": [1]},
        {**GRID, "num_warps": 4},
        {**GRID, "num_warps": []},
        {**GRID, "num_warps": ["4"]},
        {**GRID, "num_warps": [0]},
        {**GRID, "num_warps": [True]},
        {k: v for k, v in GRID.items() if k != "num_warps"},
        {**GRID, "num_warps": [4, 4]},
    ],
)
def test_corrupt_grids_are_one_sentence(grid: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        fused_moe.from_landscape_grid({"grid": grid})
    assert "\n" not in str(caught.value)
