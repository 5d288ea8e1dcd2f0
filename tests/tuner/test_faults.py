"""Faults through the real sweep: the fastest variants are the broken ones, and the right ones win.

Compiler and GPU are stand-ins that do what a config's hash says; farm, timing process, database and search are
the real ones.
"""

from __future__ import annotations

import fcntl
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
# What happens, and the reason and words that its trial is stored with.
FATES = {
    "compiler segfault": (Why.CRASH, "ended by SIGSEGV"),
    "compile hangs": (Why.COMPILE_TIMEOUT, "not done within 1 s"),
    "compile worker killed": (Why.CRASH, "ended by SIGKILL"),
    "kernel hangs": (Why.HANG, "no answer within 2 s"),
    "illegal address": (Why.CRASH, "an illegal memory access"),
    "out of memory": (Why.CRASH, "out of memory, in a fresh process too: CUDA out of memory"),
    "timing process killed": (Why.CRASH, "timing process ended"),
}
# Out of memory where others filled the process, fine in a fresh one: no fault of the config's.
FULL = "out of memory once"
REQUEST = SweepRequest(
    model="qwen3-30b-a3b",
    dtype="bf16",
    target="h200",
    tokens="64",
    trials=14,
    evaluator="model",
    audit=0,
)


def fate(config: LaunchConfig) -> str:
    """Return what happens to a config: every other one that is met breaks, once in each way.

    The order in which configs are met is kept in a file, for all processes; one compiles at a time.
    """
    met = Path(os.environ["FAULTS_MET"])
    with met.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        keys = file.read().splitlines()
        if config.key not in keys:
            keys.append(config.key)
            file.write(f"{config.key}\n")
    number = keys.index(config.key)
    ways = dict(zip(range(1, 99, 2), (*FATES, FULL), strict=False))
    return ways.get(number, "fine")


def breaks(config: LaunchConfig) -> bool:
    return fate(config) in FATES


def true_us(config: LaunchConfig) -> float:
    """Return a time; every broken config would be faster than all that work."""
    return 2000.0 + zlib.crc32(config.key.encode()) % 1000 - 1000.0 * breaks(config)


def compile_it(job: CompileJob) -> CompileReport | Rejected:
    how = fate(job.config)
    if how == "compiler segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "compile hangs":
        time.sleep(60)
    if how == "compile worker killed":
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


_timed: list[LaunchConfig] = []


def measure(task: timing.TimingTask) -> timing.TimingResult:
    """A GPU on which some configs break."""
    how = fate(task.config)
    if how == "kernel hangs":
        time.sleep(60)
    if how == "timing process killed":
        os.kill(os.getpid(), signal.SIGKILL)

    def run(_: timing.Bench) -> dict[int, Outcome]:
        import torch

        if how == "illegal address":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if how == "out of memory" or (how == FULL and _timed):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 900 GiB")
        _timed.append(task.config)
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
    monkeypatch.setenv("FAULTS_MET", str(tmp_path / "met"))
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
    monkeypatch.setattr(gpu, "TASK_LIMIT_S", 2.0)
    for name, stand_in in (
        ("measure", measure), ("compare", compare), ("compare_layers", compare_layers),
    ):  # fmt: skip
        monkeypatch.setattr(gpu.timing, name, stand_in)
    monkeypatch.setattr(gpu, "beats_physics", lambda *_: None)
    return tmp_path / "trials.sqlite"


def test_every_fault_is_named_and_the_right_winners_come_out(broken_machine: Path) -> None:
    result = sweep(
        REQUEST, database=broken_machine, cache_dir=broken_machine.parent / "cache", jobs=1
    )
    assert result.complete
    with open_store(broken_machine) as store:
        kept = [t for t in store.trials_of(result.sweep_id) if t.policy == timing.POLICY]
    named = {fate(t.config): (t.rejected.why, t.rejected.detail) for t in kept if t.rejected}
    assert set(named) == set(FATES)
    for how, (why, words) in FATES.items():
        assert named[how][0] is why, how
        assert words in named[how][1]
    refused = {t.config for t in kept if t.rejected is not None}
    assert refused == {t.config for t in kept if breaks(t.config)}
    assert FULL in {fate(t.config) for t in kept if t.time_us is not None}
    assert set(result.refused) == {why.value for why, _ in FATES.values()}
    assert sum(result.refused.values()) == len([t for t in kept if t.rejected is not None])
    for winner in result.winners:
        if winner.unit in (Unit.GATE_UP, Unit.DOWN):
            times = [t.time_us for t in kept if t.unit is winner.unit and t.time_us is not None]
            assert not breaks(winner.config)
            assert winner.time_us == min(times) == true_us(winner.config)
