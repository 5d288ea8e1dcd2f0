"""Faults through the real sweep: the fastest variants are the broken ones, and the right ones win.

Compiler and GPU are stand-ins that do what a config's hash says; farm, timing process, database and search are
the real ones.
"""

from __future__ import annotations

import functools
import os
import signal
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import CompileReport, Measurement, Rejected, Why, open_store
from rubin_tune.search_spaces import LaunchConfig, Unit
from rubin_tune.tuner import SweepRequest, farm, sweep, timing
from rubin_tune.tuner.evaluation import Outcome
from rubin_tune.tuner.evaluators import gpu
from rubin_tune.tuner.jobs import CompileJob

REPORT = CompileReport(
    target=90, registers=64, spill_bytes=0, shared_bytes=51712, buffers=3, stage_bytes=10240,
    weight_stage_bytes=8192, tmem_columns=0, mma_kind="wgmma", mma_k=16, mma_count=2,
    loop_instructions=136, loop_local_ops=0, threads=128, cubin_sha256="ab" * 32, compile_s=0.5,
)  # fmt: skip
COMPILE_FAULTS = ("segfault", "compile hangs", "worker killed")
TIME_FAULTS = ("hang", "illegal address", "out of memory", "timing process killed")
WHYS = {
    "segfault": Why.CRASH,
    "compile hangs": Why.COMPILE_TIMEOUT,
    "worker killed": Why.CRASH,
    "hang": Why.HANG,
    "illegal address": Why.CRASH,
    "out of memory": Why.CRASH,
    "timing process killed": Why.CRASH,
}
REQUEST = SweepRequest(
    model="qwen3-30b-a3b",
    dtype="bf16",
    target="h200",
    tokens="64",
    trials=12,
    evaluator="model",
    audit=0,
)


def fate(config: LaunchConfig) -> str:
    """Return what happens to a config: one in four breaks, each in its own way."""
    number = zlib.crc32(config.key.encode())
    faults = (*COMPILE_FAULTS, *TIME_FAULTS)
    return faults[number // 4 % len(faults)] if number % 4 == 0 else "fine"


def true_us(config: LaunchConfig) -> float:
    """Return a time; every broken config would be faster than all that work."""
    return 2000.0 + zlib.crc32(config.key.encode()) % 1000 - 1000.0 * (fate(config) != "fine")


def compile_it(job: CompileJob) -> CompileReport | Rejected:
    how = fate(job.config)
    if how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "compile hangs":
        time.sleep(60)
    if how == "worker killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return REPORT


def outcome(config: LaunchConfig) -> Outcome:
    time_us = true_us(config)
    return Outcome(
        config=config,
        time_us=time_us,
        interval_us=(time_us, time_us),
        measurement=Measurement(samples_us=(time_us,) * 3, policy="test/1"),
    )


def measure(task: timing.TimingTask) -> timing.TimingResult:
    """A GPU on which some configs break."""
    how = fate(task.config)
    if how == "hang":
        time.sleep(60)
    if how == "timing process killed":
        os.kill(os.getpid(), signal.SIGKILL)

    def run(_: timing.Bench) -> dict[int, Outcome]:
        import torch

        if how == "illegal address":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if how == "out of memory":
            raise torch.cuda.OutOfMemoryError("tried to allocate 900 GiB")
        return {problem.tokens: outcome(task.config) for problem in task.problems}

    return timing._guarded(task, run)


def compare(task: timing.TimingTask, configs: Sequence[LaunchConfig]) -> list[Outcome]:
    return [outcome(config) for config in configs]


def compare_layers(task: timing.TimingTask, pairs: Any) -> list[tuple[Outcome, Outcome]]:
    found = []
    for configs, label in pairs:
        whole = sum(true_us(config) for config in configs.values())
        layer = replace(outcome(label), time_us=whole, interval_us=(whole, whole))
        found.append((outcome(label), layer))
    return found


@pytest.fixture
def broken_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the stand-ins in; return the database's path."""
    module = __import__("rubin_tune.tuner.sweep", fromlist=["sweep"])
    monkeypatch.setattr(
        module,
        "CompileFarm",
        functools.partial(farm.CompileFarm, work=compile_it, time_limit_s=1.0),
    )
    monkeypatch.setattr(
        module,
        "make_evaluator",
        lambda resolved, cache_dir: gpu.GpuEvaluator(resolved.setting, tmp_path / "cache"),
    )
    monkeypatch.setattr(gpu, "TASK_LIMIT_S", 3.0)
    for name, stand_in in (
        ("measure", measure), ("compare", compare), ("compare_layers", compare_layers),
    ):  # fmt: skip
        monkeypatch.setattr(gpu.timing, name, stand_in)
    monkeypatch.setattr(gpu, "beats_physics", lambda *_: None)
    return tmp_path / "trials.sqlite"


def run(database: Path, **options: Any) -> Any:
    return sweep(
        REQUEST, database=database, cache_dir=database.parent / "cache", jobs=2, **options
    )


def assert_right_winners(result: Any, database: Path) -> None:
    """The winner of a GEMM is the fastest of the trials that were not refused, and none that breaks."""
    assert result.complete
    with open_store(database) as store:
        problem = result.resolved.setting.problems
        kept = store.trials_for(
            kernel="megamoe", source_hash=result.winners[0].source_hash, problems=problem,
            silicon=result.winners[0].silicon, toolchain=result.winners[0].toolchain,
            policy=result.winners[0].policy,
        )  # fmt: skip
    for winner in result.winners:
        if winner.unit in (Unit.GATE_UP, Unit.DOWN):
            times = [t.time_us for t in kept if t.unit is winner.unit and t.time_us is not None]
            assert fate(winner.config) == "fine"
            assert winner.time_us == min(times) == true_us(winner.config)
    whys = {fate(t.config): t.rejected.why for t in kept if t.rejected is not None}
    assert whys == {fate: why for fate, why in WHYS.items() if fate in whys}
    assert len(whys) >= 3
    refused = {t.config for t in kept if t.rejected is not None}
    assert refused == {t.config for t in kept if fate(t.config) != "fine"}


def test_a_broken_machine_ends_with_the_right_winners_and_says_what_happened(
    broken_machine: Path,
) -> None:
    result = run(broken_machine)
    assert_right_winners(result, broken_machine)
