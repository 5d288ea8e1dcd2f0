"""Compiler facts of real variants for real targets, and what no driver is here to refuse."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from rubin_tune.db import CompileReport, Why
from rubin_tune.errors import UnsupportedTarget
from rubin_tune.registry import load
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.topology import resolve_target
from rubin_tune.tuner import toolchain as tools
from rubin_tune.tuner.compile import over_limits
from rubin_tune.tuner.farm import compile_one
from rubin_tune.tuner.jobs import CompileJob, compile_job

SWAPPED = LaunchConfig.of(
    act_group=32, block_k=128, block_m=16, block_n=128, group_m=1, load="pointers",
    num_stages=6, num_warps=4, split="none", swap_ab=True,
)  # fmt: skip


def compiled(
    problem: Problem, config: LaunchConfig, arch: int, unit: Unit = Unit.GATE_UP
) -> CompileReport:
    job = CompileJob(kernel="megamoe", problem=problem, unit=unit, config=config, arch=arch)
    outcome = compile_job(job)
    assert isinstance(outcome, CompileReport), outcome
    return outcome


@pytest.mark.compile
@pytest.mark.parametrize("load_path", ["pointers", "tma"])
def test_fp4_is_packed_on_rubin_and_its_instruction_is_twice_as_deep(
    mxfp4: Problem, load_path: str
) -> None:
    config = SWAPPED.replace(load=load_path)
    blackwell, rubin = (compiled(mxfp4, config, arch) for arch in (103, 107))
    assert rubin.weight_stage_bytes * 2 == blackwell.weight_stage_bytes == 128 * 128
    assert (blackwell.mma_k, rubin.mma_k) == (32, 64)
    assert blackwell.mma_count == 2 * rubin.mma_count == 4
    assert blackwell.mma_kind == rubin.mma_kind == "utcqmma"
    assert rubin.tmem_columns == 32
    assert blackwell.buffers == rubin.buffers


@pytest.mark.compile
@pytest.mark.parametrize("swap_ab", [True, False])
def test_weights_are_told_from_activations_of_the_same_tile(mxfp4: Problem, swap_ab: bool) -> None:
    config = SWAPPED.replace(block_m=128, num_stages=4, swap_ab=swap_ab)
    blackwell, rubin = (compiled(mxfp4, config, arch) for arch in (103, 107))
    assert rubin.weight_stage_bytes * 2 == blackwell.weight_stage_bytes == 128 * 128
    assert rubin.stage_bytes == 128 * 128 + 128 * 64
    assert (blackwell.mma_k, rubin.mma_k) == (32, 64)


@pytest.mark.compile
def test_operands_that_are_not_pipelined_are_staged_once(mxfp4: Problem) -> None:
    report = compiled(mxfp4, SWAPPED.replace(num_stages=1), 107)
    assert (report.buffers, report.weight_stage_bytes) == (1, 128 * 64)
    assert report.stage_bytes == 128 * 64 + 16 * 128


@pytest.mark.compile
@pytest.mark.parametrize("unit", ["gate_up", "down"])
@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_103", "sm_107"])
def test_defaults_compile_for_every_target_and_fit_it(
    mxfp4: Problem, fp8: Problem, target: str, unit: str
) -> None:
    gpu = resolve_target(target)
    kernel: Any = load("kernels", "megamoe")
    for problem in (mxfp4, fp8):
        config = kernel.default(problem, Unit(unit), gpu)
        report = compiled(problem, config, gpu.arch, Unit(unit))
        assert over_limits(config, report, gpu) is None
        assert report.registers > 0
        assert report.mma_count > 0
        assert report.buffers >= 2


@pytest.mark.compile
def test_hopper_fp8_uses_the_warpgroup_instruction_when_swapped(fp8: Problem) -> None:
    config = SWAPPED.replace(act_group=64, num_stages=4)
    report = compiled(fp8, config, 90)
    assert (report.mma_kind, report.mma_k) == ("qgmma", 32)
    # weights are 128 rows: two instructions of 64 rows, four steps of 32 along K
    assert report.mma_count == 8
    assert report.weight_stage_bytes == 128 * 128


@pytest.mark.compile
def test_compiling_elsewhere_gives_the_same_code_under_the_same_triton(fp8: Problem) -> None:
    config = SWAPPED.replace(act_group=64, num_stages=4)
    job = CompileJob(kernel="megamoe", problem=fp8, unit=Unit.DOWN, config=config, arch=90)
    job = replace(job, config=config.replace(block_k=64))
    here = compile_job(job)
    there = compile_one(job, python=sys.executable)
    assert isinstance(here, CompileReport)
    assert isinstance(there, tuple)
    assert there[0].cubin_sha256 == here.cubin_sha256
    assert there[1] == tools.toolchain(90)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shared_bytes": 334_849}, Why.SHARED_MEMORY),
        ({"tmem_columns": 577}, Why.TENSOR_MEMORY),
        ({"threads": 2048}, Why.THREADS),
        ({"registers": 255, "threads": 1024}, Why.THREADS),
    ],
)
def test_what_the_gpu_cannot_launch_is_rejected(
    report: CompileReport, change: dict[str, Any], why: Why
) -> None:
    rejected = over_limits(SWAPPED, replace(report, **change), resolve_target("vr200"))
    assert rejected is not None
    assert rejected.why is why


def test_rubins_oversized_shared_memory_is_allowed_and_blackwells_limit_holds(
    report: CompileReport,
) -> None:
    report = replace(report, shared_bytes=300_000)
    assert over_limits(SWAPPED, report, resolve_target("vr200")) is None
    assert over_limits(SWAPPED, report, resolve_target("gb300")) is not None


def test_an_older_triton_is_told_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    tools.why_unsupported.cache_clear()
    monkeypatch.setattr(tools, "_version", lambda package: "3.6.0")
    with pytest.raises(
        UnsupportedTarget, match=r"triton 3\.6\.0 does not know sm_107; pip install"
    ):
        tools.require_target(107)
    tools.require_target(90)
    tools.why_unsupported.cache_clear()
