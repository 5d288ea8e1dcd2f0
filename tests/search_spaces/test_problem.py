"""Problems: one rank's work, and the key under which winners are stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import (
    Activation,
    Layout,
    Problem,
    Unit,
    load_model,
    parse_routing,
    with_formats,
)

FLASH = load_model("deepseek-v4.1-flash")
BASE = Problem(shape=FLASH, layout=Layout(), routing=parse_routing("uniform"), tokens=8)


def test_gemms_of_a_shard() -> None:
    cut = replace(BASE, layout=Layout(kind="tp", ranks=4))
    assert cut.gemm(Unit.GATE_UP) == (2 * 576, 5120)
    assert cut.gemm(Unit.DOWN) == (5120, 576)
    plain = replace(BASE, shape=replace(FLASH, activation=Activation(kind="relu2")))
    assert plain.gemm(Unit.GATE_UP) == (2304, 5120)
    padded = replace(BASE, shape=replace(FLASH, padded_intermediate=2560))
    assert padded.gemm(Unit.DOWN) == (5120, 2560)
    with pytest.raises(InvalidInput, match="is no GEMM"):
        BASE.gemm(Unit.LAYER)


def test_bytes_of_the_weights_count_scales() -> None:
    assert FLASH.weight_bytes(2) == 2 * 3 * 5120 * 2304 * 17 // 32
    assert load_model("mixtral-8x7b").weight_bytes(1) == 3 * 4096 * 14336 * 2


@pytest.mark.parametrize(
    "other",
    [
        replace(BASE, tokens=9, capacity=9),
        replace(BASE, capacity=16),
        replace(BASE, layout=Layout(kind="dep", ranks=2)),
        replace(BASE, layout=Layout(kind="ep", ranks=2)),
        replace(BASE, routing=parse_routing("zipf:0.8")),
        replace(BASE, shape=replace(FLASH, top_k=8)),
        replace(BASE, shape=replace(FLASH, hidden=4096)),
        replace(BASE, shape=replace(FLASH, biases=True)),
        replace(BASE, shape=replace(FLASH, activation=Activation(limit=10.0))),
        replace(BASE, shape=replace(FLASH, routed_scaling_factor=2.5)),
    ],
)
def test_what_changes_code_or_work_changes_the_key(other: Problem) -> None:
    assert other.key != BASE.key


def test_a_models_name_does_not_change_the_key() -> None:
    assert replace(BASE, shape=replace(FLASH, model="mine", layers=3)).key == BASE.key


@pytest.mark.parametrize("tokens", [0, -1, True, 1.5])
def test_token_counts_that_no_step_has_are_refused(tokens: int) -> None:
    with pytest.raises(InvalidInput, match="tokens is"):
        replace(BASE, tokens=tokens)


def test_a_cut_through_a_scale_block_is_refused() -> None:
    shape = with_formats(load_model("qwen3-30b-a3b"), "fp8", None)
    with pytest.raises(InvalidInput, match="must be a multiple of 128"):
        Problem(
            shape=shape,
            layout=Layout(kind="tp", ranks=4),
            routing=parse_routing("uniform"),
            tokens=8,
        )
