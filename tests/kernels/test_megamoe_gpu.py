"""megamoe on a GPU, on real shapes: warps, stages, TMA, tickets and bf16 as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rubin_tune.kernels.megamoe import PROVIDES
from rubin_tune.search_spaces import (
    GEMMS,
    LaunchConfig,
    Layout,
    Problem,
    Routing,
    Unit,
    load_model,
    with_formats,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

FORMATS = (
    ("bf16", "bf16", 0),
    ("fp8_block128", "fp8_block128", 64),
    ("mxfp4", "mxfp8", 32),
    ("mxfp4", "bf16", 0),
)
NAMES = [f"{weights}x{activations}" for weights, activations, _ in FORMATS]
TILES: tuple[dict[str, Any], ...] = (
    {},
    {"block_m": 16},
    {"block_m": 64, "swap_ab": True},
    {"block_m": 64, "load": "tma"},
    {"block_m": 16, "load": "tma", "swap_ab": True},
    {"block_m": 64, "split": "domains", "group_m": 8},
    {"block_m": 16, "split": "domains", "load": "tma", "swap_ab": True, "num_stages": 5},
    {"block_n": 256, "num_warps": 8},
    {"block_m": 16, "schedule": "persistent", "swap_ab": True},
    {"block_m": 16, "schedule": "persistent", "load": "tma", "group_m": 4},
    {"schedule": "persistent", "load": "tma", "num_warps": 8, "group_m": 8},
)


def problem_of(
    pair: tuple[str, str, int], tokens: int, model: str = "qwen3-30b-a3b", layout: Any = None
) -> Problem:
    shape = load_model(model)
    if (shape.weights, shape.activations) != pair[:2]:
        shape = _forced(shape, pair)
    return Problem(
        shape=shape,
        layout=layout or Layout(),
        routing=Routing(kind="lognormal", skew=0.5),
        tokens=tokens,
    )


def _forced(shape: Any, pair: tuple[str, str, int]) -> Any:
    """Return the shape in formats that its checkpoints may not have."""
    from dataclasses import replace

    return replace(shape, weights=pair[0], activations=pair[1])


def config_of(pair: tuple[str, str, int], **changes: Any) -> LaunchConfig:
    base = LaunchConfig.of(
        block_m=128, block_n=128, block_k=128 if pair[0] == "mxfp4" else 64, num_warps=4,
        num_stages=3, group_m=1, swap_ab=False, load="pointers", split="none", act_group=pair[2],
    )  # fmt: skip
    return base.replace(**changes)


def check(problem: Problem, unit: Unit, config: LaunchConfig) -> None:
    error = PROVIDES.verify(problem, unit, config, device="cuda", seed=0)
    assert error <= PROVIDES.tolerance(problem, unit)


@pytest.mark.parametrize("unit", [*GEMMS, Unit.LAYER], ids=lambda unit: unit.value)
@pytest.mark.parametrize("pair", FORMATS, ids=NAMES)
@pytest.mark.parametrize("tile", TILES, ids=lambda t: "-".join(f"{k}={v}" for k, v in t.items()))
def test_a_real_layer_is_right(
    tile: dict[str, Any], pair: tuple[str, str, int], unit: Unit
) -> None:
    check(problem_of(pair, 53), unit, config_of(pair, **tile))


@pytest.mark.parametrize("unit", GEMMS, ids=lambda unit: unit.value)
@pytest.mark.parametrize("load", ["pointers", "tma"])
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(kind="tp", ranks=4)], ids=["width 2304", "width 576"]
)
def test_ragged_widths_of_deepseek_v41_flash_are_right(
    layout: Layout, load: str, unit: Unit
) -> None:
    pair = FORMATS[2]
    problem = problem_of(pair, 53, "deepseek-v4.1-flash", layout)
    check(problem, unit, config_of(pair, block_m=16, swap_ab=True, load=load))


@pytest.mark.parametrize("unit", GEMMS, ids=lambda unit: unit.value)
def test_offsets_past_2_31_elements_are_right(unit: Unit) -> None:
    pair = FORMATS[1]
    problem = problem_of(pair, 16, "deepseek-v3", Layout(kind="ep", ranks=2))
    n, k = problem.gemm(Unit.GATE_UP)
    assert problem.local_experts * n * k > 2**31
    inputs = PROVIDES.make_inputs(problem, device="cuda", seed=0)
    config = config_of(pair, block_m=16)
    (launch,) = PROVIDES.launches(problem, unit, config, inputs)
    launch.run()
    from rubin_tune.kernels._megamoe_formats import dequantise_rows
    from rubin_tune.kernels._megamoe_reference import live_rows, row_error, unit_rows

    if unit is Unit.DOWN:
        rows, group = inputs.intermediate(64), 64
    else:
        rows, group = inputs.rows(permuted=True), 128
    expected = unit_rows(problem, unit, inputs, rows, group)
    count = live_rows(inputs.routed)
    data, scale = launch.args[6], launch.args[7]
    found = dequantise_rows(data[:count], None if scale is None else scale[:count], 64)
    assert row_error(found, expected) <= PROVIDES.tolerance(problem, unit)


@pytest.mark.parametrize("split", ["none", "domains"])
def test_a_captured_layer_follows_tokens_and_routing(split: str) -> None:
    pair = FORMATS[1]
    problem = problem_of(pair, 64)
    configs = dict.fromkeys(GEMMS, config_of(pair, block_m=16, split=split))
    inputs = PROVIDES.make_inputs(problem, device="cuda", seed=0)
    launches = PROVIDES.layer(problem, configs, inputs)
    for launch in launches:
        launch.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch.run()
    other = PROVIDES.rotate(inputs, problem, seed=7)
    inputs.x.copy_(other.x)
    inputs.topk_ids.copy_(other.topk_ids)
    inputs.topk_weights.copy_(other.topk_weights)
    inputs.live_tokens.fill_(37)
    other.live_tokens.fill_(37)
    for _ in range(3):
        graph.replay()
    fresh = PROVIDES.layer(problem, configs, other)
    for launch in fresh:
        launch.run()
    torch.cuda.synchronize()
    assert torch.equal(launches[-1].args[3][:37], fresh[-1].args[3][:37])


def test_formats_of_a_checkpoint_are_the_kernels() -> None:
    shape = with_formats(load_model("qwen3-30b-a3b"), "fp8", None)
    problem = Problem(shape=shape, layout=Layout(), routing=Routing(kind="uniform"), tokens=8)
    check(problem, Unit.LAYER, config_of(FORMATS[1], block_m=16))
