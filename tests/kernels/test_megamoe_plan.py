"""megamoe's launches, formats and counts, without running or compiling anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubin_tune.errors import InvalidConfig, InvalidInput
from rubin_tune.kernels._megamoe_formats import (
    deinterleave_gate_up,
    dequantise_rows,
    dequantise_weight,
    interleave_gate_up,
    quantise_rows,
    quantise_weight,
)
from rubin_tune.kernels._megamoe_inputs import draw, make_inputs, tile_capacity
from rubin_tune.kernels._megamoe_plan import split_column
from rubin_tune.kernels._megamoe_reference import row_error
from rubin_tune.kernels.megamoe import PROVIDES
from rubin_tune.search_spaces import (
    ACTIVATION_FORMATS,
    GEMMS,
    WEIGHT_FORMATS,
    LaunchConfig,
    Layout,
    MoEShape,
    Problem,
    Routing,
    Unit,
    load_model,
    model_names,
)
from rubin_tune.topology import load_gpu

CONFIG = LaunchConfig.of(
    block_m=64, block_n=128, block_k=64, num_warps=4, num_stages=3, group_m=1,
    swap_ab=False, load="pointers", split="none", act_group=0,
)  # fmt: skip


def problem_of(weights: str = "bf16", activations: str = "bf16", **changes: Any) -> Problem:
    tokens = changes.pop("tokens", 16)
    capacity = changes.pop("capacity", 0)
    layout = changes.pop("layout", Layout())
    shape = MoEShape(
        **{
            "model": "test", "experts": 8, "top_k": 2, "hidden": 256, "intermediate": 128,
            "weights": weights, "activations": activations, **changes,
        }
    )  # fmt: skip
    return Problem(
        shape=shape,
        layout=layout,
        routing=Routing(kind="uniform"),
        tokens=tokens,
        capacity=capacity,
    )


def test_every_model_can_be_planned_without_memory_or_a_gpu() -> None:
    gpu = load_gpu("vr200")
    for name in model_names():
        problem = Problem(
            shape=load_model(name), layout=Layout(), routing=Routing(kind="uniform"), tokens=32
        )
        inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
        configs = {unit: PROVIDES.default(problem, unit, gpu) for unit in GEMMS}
        launches = PROVIDES.layer(problem, configs, inputs)
        assert [launch.is_gemm for launch in launches] == [False, False, True, True, False]


def test_a_unit_is_one_gemm_and_glue_has_none() -> None:
    problem = problem_of()
    inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
    for unit in GEMMS:
        (launch,) = PROVIDES.launches(problem, unit, CONFIG, inputs)
        assert launch.is_gemm
    glue = PROVIDES.launches(problem, Unit.GLUE, CONFIG, inputs)
    assert [launch.is_gemm for launch in glue] == [False, False, False]


@pytest.mark.parametrize("load", ["pointers", "tma"])
@pytest.mark.parametrize("arch", [90, 107])
def test_one_compiled_kernel_serves_every_token_count(
    specialised: Callable[[Any, int], Any], arch: int, load: str
) -> None:
    config = CONFIG.replace(load=load, split="domains", act_group=64)
    few: list[list[str]] = []
    many: list[list[str]] = []
    for tokens, capacity in ((1, 1), (3, 7), (16, 16), (4096, 8192), (5000, 7777)):
        problem = problem_of(
            "fp8_block128", "fp8_block128", tokens=tokens, capacity=capacity, hidden=512
        )
        inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
        launches = PROVIDES.layer(problem, dict.fromkeys(GEMMS, config), inputs)
        # Many routes have glue of their own; the GEMMs are shared.
        found = few if capacity < 1000 else many
        found.append([specialised(launch, arch)[0].hash() for launch in launches])
    assert all(one == few[0] for one in few)
    assert all(one == many[0] for one in many)
    assert few[0][-3:-1] == many[0][-3:-1]
    assert (len(set(few[0])), len(set(many[0]))) == (5, 7)


@pytest.mark.parametrize(
    ("unit", "pair", "change", "words"),
    [
        (Unit.GATE_UP, "bf16", {"block_n": 512}, "block_n is 512"),
        (Unit.GATE_UP, "fp8", {"block_n": 64, "act_group": 64}, "act_group = 64"),
        (Unit.GATE_UP, "fp8", {"block_k": 256, "act_group": 64}, "at most 128"),
        (Unit.DOWN, "fp8", {"block_k": 128, "act_group": 64}, "at most 64"),
        (Unit.DOWN, "bf16", {"split": "domains", "block_n": 256}, "one tile"),
        (Unit.DOWN, "odd", {"load": "tma"}, "16 bytes"),
        (Unit.DOWN, "bf16", {"split": "domains", "schedule": "persistent"}, "tickets"),
    ],
)
def test_a_config_the_kernel_would_get_wrong_is_refused(
    unit: Unit, pair: str, change: dict[str, Any], words: str
) -> None:
    problem = {
        "bf16": problem_of(),
        "fp8": problem_of("fp8_block128", "fp8_block128"),
        "odd": problem_of(intermediate=100),
    }[pair]
    inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
    with pytest.raises(InvalidConfig, match=words):
        PROVIDES.launches(problem, unit, CONFIG.replace(**change), inputs)


def test_a_persistent_grid_does_not_grow_with_the_tokens() -> None:
    grids = set()
    for tokens in (64, 4096):
        problem = problem_of(tokens=tokens)
        inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
        config = CONFIG.replace(schedule="persistent")
        (launch,) = PROVIDES.launches(problem, Unit.GATE_UP, config, inputs)
        grids.add(launch.grid)
    assert len(grids) == 1


def test_a_layer_refuses_two_scale_groups() -> None:
    problem = problem_of("fp8_block128", "fp8_block128")
    inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
    configs = {
        Unit.GATE_UP: CONFIG.replace(act_group=64),
        Unit.DOWN: CONFIG.replace(act_group=128),
    }
    with pytest.raises(InvalidInput, match="64 in gate_up and 128 in down"):
        PROVIDES.layer(problem, configs, inputs)


@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=40),
    block_m=st.sampled_from([16, 64, 256]),
)
def test_the_grid_has_room_for_every_routing(counts: list[int], block_m: int) -> None:
    rows = max(sum(counts), 1)
    problem = problem_of(experts=len(counts), top_k=1, tokens=rows)
    tiles = sum(-(-count // block_m) for count in counts)
    assert tiles <= tile_capacity(problem, block_m)


@given(
    ids=st.lists(st.lists(st.integers(-1, 9), min_size=2, max_size=2), min_size=1, max_size=30),
    spare=st.integers(0, 3),
    block_m=st.sampled_from([16, 64]),
)
def test_sorted_routes_are_a_stable_permutation_of_the_local_ones(
    ids: list[list[int]], spare: int, block_m: int
) -> None:
    problem = problem_of(tokens=len(ids), capacity=len(ids) + spare, hidden=32, intermediate=32)
    weights = PROVIDES.make_inputs(problem, device="meta", seed=0).weights
    inputs = draw(problem, weights, device="cpu", seed=0, topk_ids=np.array(ids))
    routed = inputs.routed
    flat = [e for token in ids for e in token]
    local = [r for r, e in enumerate(flat) if 0 <= e < 8]
    expected = sorted(local, key=lambda route: flat[route])
    assert routed.routes[: len(local)].tolist() == expected
    assert int(routed.offsets[-1]) == len(local)
    inverse = routed.inverse.flatten().tolist()
    assert [inverse[route] for route in expected] == list(range(len(local)))
    assert inverse.count(-1) == len(inverse) - len(local)
    schedule = inputs.schedule(block_m)
    live = int(schedule.live_tiles[0])
    offsets = routed.offsets.tolist()
    covered = [
        row
        for expert, first in zip(
            schedule.tile_expert[:live].tolist(), schedule.tile_row[:live].tolist(), strict=True
        )
        for row in range(first, min(first + block_m, offsets[expert + 1]))
    ]
    assert covered == list(range(len(local)))


def test_interleaving_pairs_each_gate_row_with_its_up_row() -> None:
    w13 = torch.arange(2 * 6 * 3).reshape(2, 6, 3)
    stored = interleave_gate_up(w13)
    assert torch.equal(stored[:, 0::2], w13[:, :3])
    assert torch.equal(stored[:, 1::2], w13[:, 3:])
    assert torch.equal(deinterleave_gate_up(stored), w13)


def test_interleaving_refuses_an_odd_number_of_rows() -> None:
    with pytest.raises(InvalidInput, match="5 rows"):
        interleave_gate_up(torch.zeros(1, 5, 2))


@pytest.mark.parametrize(
    ("name", "bound"), [("bf16", 2.0**-8), ("fp8_block128", 2.0**-4), ("mxfp4", 0.25)]
)
def test_weights_come_back_within_half_a_unit(name: str, bound: float) -> None:
    weight = torch.randn((200, 160), generator=torch.Generator().manual_seed(0))
    stored = quantise_weight(weight, WEIGHT_FORMATS[name])
    back = dequantise_weight(stored.data, stored.scale, WEIGHT_FORMATS[name])
    assert row_error(back, weight.double()) <= bound
    again = quantise_weight(back.float(), WEIGHT_FORMATS[name])
    once_more = dequantise_weight(again.data, again.scale, WEIGHT_FORMATS[name])
    torch.testing.assert_close(once_more, back, rtol=1e-6, atol=0)


def test_mxfp4_packs_the_even_column_low() -> None:
    weight = torch.zeros((1, 32))
    weight[0, 0], weight[0, 1], weight[0, 31] = 6.0, -1.0, 0.5
    stored = quantise_weight(weight, WEIGHT_FORMATS["mxfp4"])
    assert stored.scale is not None
    assert stored.scale.tolist() == [[127]]
    assert stored.data[0, 0] == (0b1010 << 4 | 0b0111)
    assert stored.data[0, 15] == 0b0001 << 4


@pytest.mark.parametrize(("name", "group"), [("fp8_block128", 128), ("mxfp8", 32)])
def test_rows_never_overflow_and_zero_stays_zero(name: str, group: int) -> None:
    rows = torch.randn((4, 160), generator=torch.Generator().manual_seed(0))
    rows[0] *= 1e30
    rows[1] *= 1e-30
    rows[2] = 0
    stored = quantise_rows(rows, ACTIVATION_FORMATS[name], group)
    back = dequantise_rows(stored.data, stored.scale, group)
    assert bool(torch.isfinite(back).all())
    assert bool((back[2] == 0).all())
    assert row_error(back[[0, 3]], rows[[0, 3]].double()) <= 2.0**-4


def test_row_error_calls_an_unwritten_or_added_value_infinite() -> None:
    expected = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    assert row_error(expected.clone(), expected) == 0
    off = expected.clone()
    off[0, 0] += 0.5
    assert row_error(off, expected) == pytest.approx(0.1)
    unwritten = expected.clone()
    unwritten[0, 1] = float("nan")
    assert row_error(unwritten, expected) == float("inf")
    added = expected.clone()
    added[1, 1] = 1e-9
    assert row_error(added, expected) == float("inf")


@given(tiles=st.integers(2, 60), block_n=st.sampled_from([32, 64, 128, 256]))
def test_both_halves_of_a_split_have_columns(tiles: int, block_n: int) -> None:
    n = tiles * block_n - 16
    column = split_column(n, block_n)
    assert column % block_n == 0
    assert 0 < column < n


def test_work_counts_rows_active_experts_and_the_bytes_of_both_formats() -> None:
    problem = problem_of("mxfp4", "mxfp8", experts=4, top_k=4, tokens=10)
    work = PROVIDES.work(problem, Unit.GATE_UP)
    assert work.flops == pytest.approx(2 * 40 * 256 * 256)
    assert work.weight_bytes == pytest.approx(4 * 256 * (256 // 2 + 256 // 32))
    rows_bytes = 10 * (256 + 8) + 40 * (128 + 4)
    assert work.min_bytes == pytest.approx(work.weight_bytes + rows_bytes)
    down = PROVIDES.work(problem, Unit.DOWN)
    layer = PROVIDES.work(problem, Unit.LAYER)
    assert layer.flops == pytest.approx(work.flops + down.flops)
    assert layer.weight_bytes == pytest.approx(work.weight_bytes + down.weight_bytes)
    assert layer.nvlink_bytes == 0


def test_only_expert_parallel_layers_send_bytes() -> None:
    spread = problem_of(layout=Layout(kind="ep", ranks=4), tokens=64)
    assert PROVIDES.work(spread, Unit.LAYER).nvlink_bytes > 0
    assert PROVIDES.work(spread, Unit.GATE_UP).nvlink_bytes == 0


def test_rotation_keeps_the_weights_and_draws_the_rest_anew() -> None:
    problem = problem_of()
    inputs = make_inputs(problem, device="cpu", seed=0)
    other = PROVIDES.rotate(inputs, replace(problem, tokens=5, capacity=9), seed=1)
    assert other.weights is inputs.weights
    assert other.x.shape == (9, 256)
    assert int(other.live_tokens[0]) == 5
    assert not torch.equal(other.x[:5], inputs.x[:5])
    same = PROVIDES.rotate(inputs, replace(problem, tokens=5, capacity=9), seed=1)
    assert torch.equal(same.x, other.x)
    assert torch.equal(same.topk_ids, other.topk_ids)


def test_the_source_hash_changes_with_the_kernel_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rubin_tune.kernels import megamoe

    before = PROVIDES.source_hash()
    assert len(before) == 16
    monkeypatch.setattr(megamoe, "_SOURCES", megamoe._SOURCES[:1])
    assert PROVIDES.source_hash() != before
