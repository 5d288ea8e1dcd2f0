"""transformers' own models served by our kernels, in Triton's interpreter; skipped without transformers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

needs_transformers = pytest.mark.skipif(
    find_spec("transformers") is None, reason="transformers is not installed"
)
# Two layers in bf16 against the model's own bf16: 2 sqrt(2 (28 layers + 3)) 2^-8 / sqrt(3), as
# benchmarks/transformers_moe.py derives it, for the difference of two.
BOUND = 2 * (2 * (28 * 2 + 3)) ** 0.5 * 2.0**-8 / 3**0.5


@needs_transformers
@pytest.mark.parametrize(
    ("model", "in_place"), [("qwen3_moe", True), ("qwen3_moe", False), ("gpt_oss", True)]
)
def test_a_model_gives_its_own_logits(interpreter: Any, model: str, in_place: bool) -> None:
    answer = interpreter("serves", model=model, in_place=in_place)
    assert answer["error"] <= BOUND
    assert answer["relaid"] is in_place
    assert answer["why"].startswith("default")


@needs_transformers
@pytest.mark.parametrize("model", ["qwen3_moe", "gpt_oss"])
def test_weights_are_put_back_at_every_door(interpreter: Any, model: str) -> None:
    answer = interpreter("serves", model=model)
    assert answer["own stays"]
    assert answer["ours stays"]
    assert answer["saved"]
    assert answer["restored"] == 2
    assert answer["after"]
    assert "restore(model)" in answer["copied"]


@needs_transformers
def test_modules_that_cannot_be_served_are_refused_in_words(interpreter: Any) -> None:
    words = interpreter("declines")
    assert "activation" in words["tanh"]
    assert "torch.float32" in words["float32"]
    assert "normalises" in words["norm"]
    assert words["kind"] == "geglu"


def test_without_transformers_registering_says_what_to_install() -> None:
    code = (
        "import sys\n"
        "sys.modules['transformers'] = None\n"
        "from rubin_tune.errors import InvalidInput\n"
        "from rubin_tune.runtime.transformers import register\n"
        "try:\n"
        "    register()\n"
        "except InvalidInput as refusal:\n"
        "    assert 'install transformers >= 5' in str(refusal), refusal\n"
        "else:\n"
        "    raise SystemExit('accepted')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
