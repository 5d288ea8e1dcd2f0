"""megamoe against float64 in Triton's interpreter: every axis, every format, ragged shapes."""

from __future__ import annotations

from typing import Any

import pytest

PAIRS = (
    ("bf16", "bf16", 0),
    ("fp8_block128", "fp8_block128", 64),
    ("mxfp4", "mxfp8", 32),
    ("mxfp4", "bf16", 0),
)
NAMES = [f"{weights}x{activations}" for weights, activations, _ in PAIRS]
BASE: dict[str, Any] = {
    "block_m": 16,
    "block_n": 128,
    "block_k": 64,
    "num_warps": 4,
    "num_stages": 2,
    "group_m": 1,
    "swap_ab": False,
    "load": "pointers",
    "split": "none",
}


def shape(weights: str, activations: str, **changes: Any) -> dict[str, Any]:
    return {
        "experts": 6,
        "top_k": 2,
        "hidden": 256,
        "intermediate": 128,
        "weights": weights,
        "activations": activations,
        **changes,
    }


def check(
    interpreter: Any,
    pair: tuple[str, str, int],
    unit: str,
    config: dict[str, Any],
    *,
    tokens: int = 13,
    layout: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    weights, activations, group = pair
    answer = interpreter(
        "verify",
        shape=shape(weights, activations, **changes),
        layout=layout or {},
        tokens=tokens,
        unit=unit,
        config={**BASE, "act_group": group, **config},
    )
    assert answer["error"] <= answer["tolerance"]


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
@pytest.mark.parametrize(
    "config",
    [
        {"block_m": 32},
        {"block_m": 64, "swap_ab": True},
        {"block_m": 128},
        {"block_n": 256, "load": "tma"},
        {"block_n": 256, "swap_ab": True},
        {"load": "tma", "swap_ab": True},
        {"split": "domains", "group_m": 4},
        {"split": "domains", "load": "tma", "swap_ab": True, "block_n": 128},
        {"schedule": "persistent", "group_m": 4},
        {"schedule": "persistent", "load": "tma", "swap_ab": True},
    ],
    ids=lambda config: "-".join(f"{k}={v}" for k, v in config.items()),
)
def test_every_structure_is_right_in_every_format(
    interpreter: Any, pair: tuple[str, str, int], unit: str, config: dict[str, Any]
) -> None:
    check(interpreter, pair, unit, config)


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("block_m", 256),
        ("block_n", 32),
        ("block_n", 64),
        ("block_k", 32),
        ("block_k", 128),
        ("block_k", 256),
        ("group_m", 4),
        ("group_m", 8),
        ("group_m", 16),
        ("group_m", 32),
    ],
)
def test_every_other_axis_value_is_right(
    interpreter: Any, unit: str, axis: str, value: int
) -> None:
    check(interpreter, PAIRS[0], unit, {axis: value}, tokens=40)


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("block_k", [128, 256])
@pytest.mark.parametrize("pair", PAIRS[2:], ids=NAMES[2:])
def test_deep_tiles_of_mx_formats_are_right(
    interpreter: Any, pair: tuple[str, str, int], unit: str, block_k: int
) -> None:
    check(interpreter, pair, unit, {"block_k": block_k})


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("block_k", [64, 128])
def test_wide_activation_groups_of_fp8_are_right(
    interpreter: Any, unit: str, block_k: int
) -> None:
    config = {"act_group": 128, "block_n": 256, "block_k": block_k}
    check(interpreter, PAIRS[1], unit, config, intermediate=320)


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("load", ["pointers", "tma"])
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_ragged_n_and_k_are_right(
    interpreter: Any, pair: tuple[str, str, int], unit: str, load: str, swap_ab: bool
) -> None:
    config = {"load": load, "swap_ab": swap_ab}
    if pair[2] == 0 or pair[2] == 32:
        config["block_k"] = 128
    check(interpreter, pair, unit, config, hidden=352, intermediate=160)


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("split", ["none", "domains"])
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_a_width_of_4_5_scale_blocks_is_right(
    interpreter: Any, pair: tuple[str, str, int], unit: str, split: str
) -> None:
    check(
        interpreter, pair, unit, {"block_n": 256, "split": split},
        experts=2, intermediate=576, hidden=384, tokens=5,
    )  # fmt: skip


@pytest.mark.parametrize("unit", ["gate_up", "down"])
def test_widths_that_no_power_of_two_divides_are_right(interpreter: Any, unit: str) -> None:
    check(interpreter, PAIRS[0], unit, {"block_n": 64}, hidden=100, intermediate=74)


ACTIVATIONS = [
    {"kind": "swiglu", "limit": 0.5},
    {"kind": "swiglu", "alpha": 1.702, "limit": 0.7, "up_shift": 1.0},
    {"kind": "geglu"},
    {"kind": "relu2"},
]


@pytest.mark.parametrize("pair", PAIRS[:3], ids=NAMES[:3])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=["clamp", "gpt-oss", "geglu", "relu2"])
def test_every_activation_is_right(
    interpreter: Any, pair: tuple[str, str, int], activation: dict[str, Any]
) -> None:
    check(interpreter, pair, "gate_up", {}, activation=activation, biases=True)


@pytest.mark.parametrize("swap_ab", [False, True])
def test_biases_of_the_down_gemm_are_added(interpreter: Any, swap_ab: bool) -> None:
    check(interpreter, PAIRS[0], "down", {"swap_ab": swap_ab}, biases=True)


@pytest.mark.parametrize("load", ["pointers", "tma"])
@pytest.mark.parametrize("unit", ["gate_up", "layer"])
def test_routed_weights_on_the_input_are_applied_once(
    interpreter: Any, unit: str, load: str
) -> None:
    check(interpreter, PAIRS[0], unit, {"load": load}, weight_on_input=True, biases=True)


@pytest.mark.parametrize("load", ["pointers", "tma"])
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
def test_the_whole_layer_is_right(interpreter: Any, pair: tuple[str, str, int], load: str) -> None:
    check(interpreter, pair, "layer", {"load": load}, routed_scaling_factor=2.5)


@pytest.mark.parametrize(
    "layout",
    [{"kind": "ep", "ranks": 2}, {"kind": "dep", "ranks": 4}, {"kind": "tp", "ranks": 2}],
    ids=["ep2", "dep4-uneven", "tp2"],
)
def test_a_shard_computes_its_own_part(interpreter: Any, layout: dict[str, Any]) -> None:
    check(interpreter, PAIRS[0], "layer", {}, layout=layout)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(1, 1, 1), (3, 3, 2), (33, 5, 7)])
def test_odd_numbers_of_experts_are_right(
    interpreter: Any, experts: int, top_k: int, tokens: int
) -> None:
    check(interpreter, PAIRS[0], "layer", {}, tokens=tokens, experts=experts, top_k=top_k)


@pytest.mark.parametrize(
    ("how", "least"),
    [
        ("does nothing", float("inf")),
        ("writes a dead row", float("inf")),
        ("skips a row", float("inf")),
        ("swaps two columns", 0.01),
    ],
)
def test_verification_notices_a_kernel_that(interpreter: Any, how: str, least: float) -> None:
    answer = interpreter(
        "sabotage", how=how, shape=shape("bf16", "bf16"), tokens=9, unit="down",
        config={**BASE, "act_group": 0},
    )  # fmt: skip
    assert answer["error"] >= least
    assert answer["error"] > answer["tolerance"]


@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("group_m", [1, 8])
def test_a_split_launch_leaves_its_counters_at_zero(
    interpreter: Any, unit: str, group_m: int
) -> None:
    config = {**BASE, "act_group": 0, "split": "domains", "block_n": 64, "group_m": group_m}
    answer = interpreter(
        "tickets", shape=shape("bf16", "bf16"), tokens=21, unit=unit, config=config
    )
    assert answer == {"counters": [0, 0, 0], "same": True}


@pytest.mark.parametrize("load", ["pointers", "tma"])
def test_weights_past_2_31_elements_are_reached(interpreter: Any, load: str) -> None:
    answer = interpreter(
        "far",
        shape=shape("bf16", "bf16", experts=17000, top_k=1, hidden=512),
        tokens=3,
        config={**BASE, "act_group": 0, "load": load},
    )
    assert answer["elements"] > 2**31 + 2**20
    assert answer["same"]


def test_a_plan_serves_another_routing_and_token_count(interpreter: Any) -> None:
    answer = interpreter(
        "layer_twice", shape=shape("fp8_block128", "fp8_block128"), tokens=11, capacity=16,
        then=5, config={**BASE, "act_group": 64, "load": "tma"},
    )  # fmt: skip
    assert answer["same"]
