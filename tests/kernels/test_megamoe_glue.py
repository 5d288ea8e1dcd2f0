"""megamoe's routing and quantisation in Triton's interpreter, against the same made with torch."""

from __future__ import annotations

from typing import Any

import pytest

FORMATS = (
    ("bf16", "bf16"),
    ("fp8_block128", "fp8_block128"),
    ("mxfp4", "mxfp8"),
)


def run(interpreter: Any, command: str = "glue", **case: Any) -> dict[str, Any]:
    load = case.pop("load", "tma")
    weights, activations = case.pop("formats", FORMATS[0])
    shape = {
        "experts": 6, "top_k": 2, "hidden": 160, "intermediate": 64,
        "weights": weights, "activations": activations, **case.pop("shape", {}),
    }  # fmt: skip
    config = {"block_m": case.pop("block_m", 16), "load": load}
    answer: dict[str, Any] = interpreter(command, shape=shape, config=config, **case)
    return answer


@pytest.mark.parametrize("load", ["pointers", "tma"])
@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: pair[1])
def test_rows_are_sorted_and_quantised(
    interpreter: Any, formats: tuple[str, str], load: str
) -> None:
    answer = run(interpreter, formats=formats, load=load, tokens=29, capacity=33)
    assert answer["differences"] == []


@pytest.mark.parametrize(
    "ids",
    [
        [[0, 3]],
        [[-1, -1]],
        [[5, -1]] * 40,
        [[0, 1], [-1, 2], [9, 0], [0, 7]],
    ],
    ids=["one token", "no local route", "all on one expert", "foreign experts"],
)
@pytest.mark.parametrize("block_m", [16, 128])
@pytest.mark.parametrize("counted", [False, True], ids=["few", "counted"])
def test_special_routings_are_sorted(
    interpreter: Any, ids: list[list[int]], block_m: int, counted: bool
) -> None:
    answer = run(
        interpreter, ids=ids, tokens=len(ids), capacity=44, block_m=block_m, counted=counted
    )
    assert answer["differences"] == []


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(1, 1, 5), (127, 8, 200), (130, 22, 60)])
@pytest.mark.parametrize("counted", [False, True], ids=["few", "counted"])
def test_many_routes_and_experts_are_sorted(
    interpreter: Any, experts: int, top_k: int, tokens: int, counted: bool
) -> None:
    answer = run(
        interpreter,
        shape={"experts": experts, "top_k": top_k},
        tokens=tokens,
        capacity=tokens + 300,
        counted=counted,
    )
    assert answer["differences"] == []


@pytest.mark.parametrize("formats", FORMATS[1:], ids=lambda pair: pair[1])
def test_quantised_bytes_equal_torchs_but_for_ties(
    interpreter: Any, formats: tuple[str, str]
) -> None:
    answer = run(
        interpreter, "rounding", formats=formats, load="pointers", tokens=16,
        shape={"hidden": 512},
    )  # fmt: skip
    # fp8 multiplies by the reciprocal of the scale where torch divides: a last bit in a thousand.
    assert answer["differ"] < 0.002
