"""MegaMoE against float64 in Triton's interpreter: every loader, several routings, and its promises."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

ROUTINGS = ("random", "one expert", "empty experts", "foreign")


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("tokens", [1, 13])
def test_every_routing_is_right(interpreter: Any, tokens: int, routing: str) -> None:
    answer = interpreter("loads", how="fused", tokens=tokens, routing=routing)
    assert answer["error"] <= answer["tolerance"]


@pytest.mark.parametrize(
    "how", ["experts", "transposed", "gpt-oss", "qwen", "mixtral", "relu2", "fused"]
)
def test_every_loader_gives_the_checkpoints_layer(interpreter: Any, how: str) -> None:
    biases = how in ("fused", "gpt-oss")
    answer = interpreter("loads", how=how, tokens=7, routing="random", biases=biases)
    assert answer["error"] <= answer["tolerance"]


@pytest.mark.parametrize("fused", [False, True], ids=["an expert each", "fused"])
def test_block_scaled_fp8_weights_are_loaded(interpreter: Any, fused: bool) -> None:
    answer = interpreter("block_fp8", fused=fused)
    assert answer["form"] == "fp8_block128"
    assert answer["error"] <= answer["tolerance"]


@pytest.mark.parametrize(
    ("how", "rows"), [("gpt-oss", "bf16"), ("halves", "bf16"), ("experts", "mxfp8")]
)
def test_mxfp4_weights_are_loaded(interpreter: Any, how: str, rows: str) -> None:
    answer = interpreter("mxfp4", how=how)
    assert answer["form"] == ["mxfp4", rows]
    assert answer["error"] <= answer["tolerance"]


@pytest.mark.parametrize(
    ("tokens", "between", "one"), [(12, 12, True), (5, 7, True), (9, 16, False)]
)
def test_a_planned_step_serves_other_tokens_from_the_same_buffers(
    interpreter: Any, tokens: int, between: int, one: bool
) -> None:
    answer = interpreter("repeats", tokens=tokens, between=between)
    assert answer == {
        "same": True, "shape": [tokens, 256], "buffers stay": True, "one plan": one,
    }  # fmt: skip


def test_layers_share_the_plans_of_a_workspace(interpreter: Any) -> None:
    answer = interpreter("shares")
    assert answer["one plan"]
    assert answer["error"] <= answer["tolerance"]


def test_a_workspace_keeps_only_the_last_large_plans(interpreter: Any) -> None:
    assert interpreter("forgets") == {"kept": [False] * 3 + [True] * 4}


def test_large_steps_run_in_pieces_and_shards_count_from_their_first_expert(
    interpreter: Any,
) -> None:
    answer = interpreter("pieces")
    assert answer["pieces"] <= answer["tolerance"]
    assert answer["shifted"] <= answer["tolerance"]
    assert answer["empty"] == [0, 256]


def test_a_tables_configs_are_launched(interpreter: Any) -> None:
    answer = interpreter("uses_table", change={"block_m": 32, "load": "tma"})
    assert answer["block_m"] == [32, 32]
    assert answer["load"] == ["tma", "tma"]
    assert "exact: measured" in answer["why"]
    assert answer["without"].startswith("default")
    assert answer["error"] <= answer["tolerance"]


def test_a_layers_winner_goes_before_the_winners_of_its_gemms(interpreter: Any) -> None:
    layer = {"gate_up": {"block_m": 64, "load": "tma"}, "down": {"block_m": 16}}
    answer = interpreter("uses_table", change={"block_m": 32}, layer=layer)
    assert answer["block_m"] == [64, 16]
    assert answer["load"] == ["tma", "pointers"]
    assert answer["why"].startswith("layer exact: measured")
    assert answer["error"] <= answer["tolerance"]


def test_a_tables_illegal_config_is_not_launched(interpreter: Any) -> None:
    answer = interpreter("uses_table", change={"block_m": 48})
    assert answer["block_m"] == [16, 16]
    assert "not legal" in answer["why"]
    assert answer["error"] <= answer["tolerance"]


REFUSALS = {
    "width": "hidden is [4, 248]",
    "rank": "hidden is [1, 4, 256]",
    "dtype": "torch.float32: must be torch.bfloat16",
    "ids": "must be integers",
    "top_k": "topk_ids is [4, 1]",
    "weights": "topk_weights is [2, 2]",
    "out": "out is torch.bfloat16 [2, 256]",
    "gradient": "no backward",
    "plan 0": "tokens is 0",
    "plan above capacity": "the capacity of 4",
    "capacity": "capacity is 0",
    "float32 weights": "float32 and float32",
    "other experts": "gate_up weights are [4, 256, 256]",
    "fp8 without scales": "need scales",
    "flat blocks": "gate_up_blocks are uint8 [5, 256, 256]: must be uint8",
    "no scales": "there is no gate_up_proj_scales",
    "bytes without scales": "gate_up weights are [5, 256, 256]",
    "too many top_k": "top_k",
    "missing expert": "5 w1, 4 w3 and 5 w2",
    "ragged experts": "w3 of expert 4",
    "short scale": "down scale is [5, 1, 1]: must be [5, 2, 1]",
    "integer scale": "int32: must be floating-point",
    "short bias": "down bias is [5, 3]: must be [5, 256]",
    "flat weights": "an axis of experts",
    "device": "hidden is on meta: must be on cpu",
    "no such prefix": "no expert weights begin with 'b.'",
    "no down": "there is no down_proj",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_meant_is_refused(interpreter: Any, case: str) -> None:
    words = interpreter("refuses")[case]
    assert REFUSALS[case] in words
    assert "\n" not in words


def test_the_module_is_found_in_runtime_and_torch_only_when_asked_for() -> None:
    code = (
        "import sys, rubin_tune.runtime as r, rubin_tune.runtime.transformers as t\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
        "assert 'triton' not in sys.modules and 'numpy' not in sys.modules\n"
        "r.MegaMoE\n"
        "assert 'torch' in sys.modules and 'sqlalchemy' not in sys.modules\n"
        "assert 'optuna' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
