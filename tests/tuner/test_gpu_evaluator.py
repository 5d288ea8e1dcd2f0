"""The timing process: what hangs, dies or breaks there is a value here, and the process is replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Rejected, Why
from rubin_tune.errors import WorkerLost
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.topology import resolve_target
from rubin_tune.tuner.evaluation import Setting
from rubin_tune.tuner.evaluators import gpu
from rubin_tune.tuner.evaluators.gpu import GpuEvaluator
from rubin_tune.tuner.physics import beats_physics, floor_us
from rubin_tune.tuner.request import load_kernel
from rubin_tune.tuner.timing import TimingTask

_held: list[bytes] = []


def behave(task: TimingTask) -> str:
    """A timing process that does what the config says."""
    how = task.config["how"]
    if how == "crash":
        os.abort()
    if how == "hang":
        time.sleep(60)
    if how == "grow":
        _held.append(b"x" * (64 << 20))
    if how == "out of memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 900 GiB")
    if how == "needs a fresh process" and _held:
        raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")
    _held.append(b"")
    if how == "raise":
        raise ValueError("an illegal memory access was encountered")
    return f"process {os.getpid()}"


@pytest.fixture
def evaluator(
    fp8: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GpuEvaluator]:
    monkeypatch.setattr(gpu, "TASK_LIMIT_S", 3.0)
    setting = Setting(
        kernel=load_kernel("megamoe"), gpu=resolve_target("h200"), problems=(fp8,), seed=0
    )
    made = GpuEvaluator(setting, tmp_path)
    yield made
    made.close()


def ask(evaluator: GpuEvaluator, how: str) -> Any:
    task = TimingTask(
        kernel="megamoe",
        problems=evaluator.setting.problems,
        unit=Unit.GATE_UP,
        config=LaunchConfig.of(how=how),
    )
    return evaluator._call(behave, task)


@pytest.mark.parametrize(
    ("how", "why", "words"),
    [
        ("hang", Why.HANG, "no answer within 3 s"),
        ("crash", Why.CRASH, "ended"),
        ("raise", Why.CRASH, "ValueError: an illegal memory access"),
        ("out of memory", Why.CRASH, "in a fresh process too: CUDA out of memory"),
    ],
)
def test_a_broken_variant_is_a_value_and_the_next_one_is_timed(
    evaluator: GpuEvaluator, how: str, why: Why, words: str
) -> None:
    first = ask(evaluator, "fine")
    broken = ask(evaluator, how)
    assert isinstance(broken, Rejected)
    assert broken.why is why
    assert words in broken.detail
    after = ask(evaluator, "fine")
    assert after.startswith("process ")
    assert after != first


def test_what_runs_out_of_memory_runs_again_in_a_fresh_process(evaluator: GpuEvaluator) -> None:
    first = ask(evaluator, "fine")
    second = ask(evaluator, "needs a fresh process")
    assert second.startswith("process ")
    assert second != first


def test_a_process_whose_memory_grows_is_replaced_and_its_answer_is_kept(
    evaluator: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MEMORY_GROWTH_BYTES", 32 << 20)
    first = ask(evaluator, "fine")
    assert ask(evaluator, "fine") == first
    assert ask(evaluator, "grow") == first
    assert ask(evaluator, "fine") != first


def test_a_machine_on_which_nothing_runs_ends_the_sweep(
    evaluator: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "MAX_DEATHS", 2)
    assert isinstance(ask(evaluator, "crash"), Rejected)
    with pytest.raises(WorkerLost, match="died 2 times in a row"):
        ask(evaluator, "crash")


def test_a_time_under_the_floor_beats_physics(evaluator: GpuEvaluator) -> None:
    setting = evaluator.setting
    tokens = setting.ladder[0]
    floor = floor_us(setting, Unit.GATE_UP, tokens)
    # 128 experts of 1536 x 2048 fp8 are 403 MB: 84 us at 4.8 TB/s
    assert 60 < floor < 90
    assert beats_physics(setting, Unit.GATE_UP, tokens, floor) is None
    assert "under the floor" in (beats_physics(setting, Unit.GATE_UP, tokens, floor / 2) or "")
