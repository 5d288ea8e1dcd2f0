"""Problems that several tests compile."""

from __future__ import annotations

import pytest

from rubin_tune.db import CompileReport
from rubin_tune.search_spaces import (
    Problem,
    default_layout,
    load_model,
    parse_routing,
    with_formats,
)
from rubin_tune.topology import resolve_target


def problem_of(model: str, dtype: str | None, target: str) -> Problem:
    shape = with_formats(load_model(model), dtype, None)
    gpu = resolve_target(target)
    return Problem(
        shape=shape,
        layout=default_layout(shape, gpu),
        routing=parse_routing("lognormal:0.5"),
        tokens=128,
    )


@pytest.fixture
def mxfp4() -> Problem:
    """DeepSeek-V4.1-Flash: mxfp4 weights, mxfp8 activations."""
    return problem_of("deepseek-v4.1-flash", None, "vr200")


@pytest.fixture
def fp8() -> Problem:
    """Qwen3-30B-A3B in fp8."""
    return problem_of("qwen3-30b-a3b", "fp8", "h200")


@pytest.fixture
def report() -> CompileReport:
    """A plausible report of a Rubin variant."""
    return CompileReport(
        target=107, registers=64, spill_bytes=0, shared_bytes=51712, buffers=5, stage_bytes=10240,
        weight_stage_bytes=8192, tmem_columns=32, mma_kind="utcqmma", mma_k=64, mma_count=2,
        loop_instructions=136, loop_local_ops=0, threads=128, cubin_sha256="ab" * 32, compile_s=0.5,
    )  # fmt: skip
