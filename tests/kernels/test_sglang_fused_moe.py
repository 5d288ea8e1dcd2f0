"""SGLang's own kernel as we launch it, against float64; skipped where SGLang's files are not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rubin_tune.errors import InvalidInput
from rubin_tune.kernels.sglang_fused_moe import PROVIDES
from rubin_tune.search_spaces import GEMMS, load_model, parse_routing, with_formats
from rubin_tune.search_spaces.layout import Layout
from rubin_tune.search_spaces.problem import Problem
from rubin_tune.topology import load_gpu

H200 = load_gpu("h200")


def problem(dtype: str, tokens: int = 64) -> Problem:
    shape = with_formats(load_model("qwen3-30b-a3b"), dtype, None)
    return Problem(shape=shape, layout=Layout(), routing=parse_routing("uniform"), tokens=tokens)


@pytest.mark.skipif(find_spec("sglang") is None, reason="SGLang's files are not here")
def test_both_gemms_are_right_as_we_launch_them() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).with_name("interpret_sglang.py"))],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 4
    for row in found:
        assert row["error"] <= row["tolerance"]


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@pytest.mark.parametrize("tokens", [1, 16, 128, 4096])
def test_the_engines_default_is_a_point_of_its_space(dtype: str, tokens: int) -> None:
    one = problem(dtype, tokens)
    for unit in GEMMS:
        found = PROVIDES.space(one, unit, H200)
        assert found.contains(PROVIDES.default(one, unit, H200))


def test_a_k_tile_lies_in_one_scale_block() -> None:
    legal = PROVIDES.space(problem("fp8"), GEMMS[0], H200).legal()
    assert {config["block_k"] for config in legal} == {32, 64, 128}
    legal = PROVIDES.space(problem("bf16"), GEMMS[0], H200).legal()
    assert {config["block_k"] for config in legal} == {32, 64, 128, 256}


def test_gemms_are_coupled_by_the_rows_of_a_tile() -> None:
    config = PROVIDES.default(problem("fp8"), GEMMS[0], H200)
    assert PROVIDES.coupling(config) == PROVIDES.coupling(config.replace(block_n=32, num_warps=8))
    assert PROVIDES.coupling(config) != PROVIDES.coupling(config.replace(block_m=16))


@pytest.mark.parametrize("evaluator", ["recorded", "gpu", "model"])
def test_what_cannot_time_it_is_refused(evaluator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubin_tune.kernels.sglang_fused_moe.find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"vLLM's kernel|sglang is not installed"):
        PROVIDES.require(evaluator)


def test_formats_that_the_kernel_lacks_are_refused() -> None:
    flash = load_model("deepseek-v4.1-flash")
    one = Problem(shape=flash, layout=Layout(), routing=parse_routing("uniform"), tokens=1)
    with pytest.raises(InvalidInput, match="tune megamoe instead"):
        PROVIDES.default(one, GEMMS[0], H200)
