"""What stands in the way of timing, throttled rounds, and who holds a GPU."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from rubin_tune.db import open_store
from rubin_tune.errors import GpuBusy, InvalidInput
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.tuner import SweepRequest, gpu_state, sweep, timing
from rubin_tune.tuner.evaluators import gpu
from rubin_tune.tuner.gpu_state import GpuLock, GpuState, Nvml, refusal, take, visible_device
from rubin_tune.tuner.watch import Watch


class Told:
    """A monitor that says what it was told, one state a look."""

    def __init__(self, *states: GpuState) -> None:
        self.states = list(states)

    def glance(self) -> GpuState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


def test_a_free_gpu_is_taken_and_an_unknown_one_too() -> None:
    assert refusal(None) == ""
    assert refusal(GpuState(clock_mhz=1980)) == ""
    # A context that does nothing disturbs nothing: a display, a shell.
    assert refusal(GpuState(others=(7,), busy_percent=0)) == ""


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (GpuState(others=(7, 8), busy_percent=93), "93 % busy; process 7, 8"),
        (GpuState(mig=True), "MIG"),
    ],
)
def test_a_busy_or_divided_gpu_is_refused(state: GpuState, words: str) -> None:
    assert words in refusal(state)


def test_throttles_are_named_and_wanted_states_are_none() -> None:
    assert GpuState(throttles=0x1 | 0x2 | 0x10).throttled_by == ""
    assert (
        GpuState(throttles=0x4 | 0x40).throttled_by
        == "its power limit and its temperature (hardware)"
    )


def test_a_machine_without_nvml_knows_nothing() -> None:
    assert Nvml("GPU-00000000-0000-0000-0000-000000000000").read() is None


def rounds(watch: Watch) -> list[float]:
    replay: Callable[[], None] = lambda: None  # noqa: E731
    taken = iter(range(1000))
    (samples,) = timing.rounds([replay], lambda _: float(next(taken)), watch)
    return samples


def test_a_throttled_round_is_discarded_and_repeated() -> None:
    hot, cool = GpuState(throttles=0x40), GpuState()
    samples = rounds(Watch(Told(cool, hot, hot, cool)))
    assert len(samples) == timing.ROUNDS
    assert samples[:3] == [0.0, 3.0, 4.0]


def test_a_gpu_that_never_cools_is_timed_all_the_same_and_not_asked_to_cool_again() -> None:
    samples = rounds(Watch(Told(GpuState(throttles=0x4))))
    assert samples == [3.0 + number for number in range(timing.ROUNDS)]


def test_lowest_and_highest_clock_of_rounds_that_count_are_noted() -> None:
    clocks = [GpuState(clock_mhz=c) for c in (1980, 1755, 1965, 1900)]
    discarded = GpuState(clock_mhz=345, throttles=0x40)
    watch = Watch(Told(*clocks[:2], discarded, *clocks[2:]))
    rounds(watch)
    assert (watch.low_mhz, watch.high_mhz, watch.last_mhz) == (1755, 1980, 1900)


def test_a_throttled_screening_sample_is_repeated_and_its_clocks_are_stored(
    monkeypatch: pytest.MonkeyPatch, fp8: Problem
) -> None:
    hot = GpuState(clock_mhz=345, throttles=0x8)
    cool = [GpuState(clock_mhz=c) for c in (1980, 1700, 1800)]
    monkeypatch.setattr(timing, "_monitor", Told(cool[0], hot, cool[1], cool[2]))
    monkeypatch.setattr(timing, "capture", lambda sets: lambda: None)
    times = iter([10.0, 99.0, *[10.0] * 20])
    monkeypatch.setattr(timing, "sample", lambda _: next(times))
    task = timing.TimingTask(
        kernel="megamoe", problems=(fp8,), unit=Unit.GATE_UP, config=LaunchConfig.of(block_m=64)
    )

    class NoInputs:
        """A bench whose inputs nothing reads."""

        def inputs(self, problem: Problem) -> list[object]:
            return []

    outcome = timing._screen(NoInputs(), task, fp8, None)  # type: ignore[arg-type]
    assert outcome.measurement is not None
    assert set(outcome.measurement.samples_us) == {10.0}
    assert outcome.measurement.clock_low_mhz == 1700
    assert outcome.measurement.clock_high_mhz == 1980


def test_a_busy_gpu_is_waited_for_and_its_user_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_state, "POLL_S", 0.01)
    busy = GpuState(others=(7,), busy_percent=93)
    states = iter([busy] * 6)
    said: list[str] = []
    lock = GpuLock("GPU-1", tmp_path)
    take(lock, lambda: next(states, GpuState()), wait_s=30.0, says=said.append)
    lock.release()
    assert len(said) == 1
    assert "process 7" in said[0]


def test_a_gpu_that_stays_busy_is_refused_after_the_wait_and_its_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_state, "POLL_S", 0.01)
    busy = GpuState(others=(7,), busy_percent=93)
    with pytest.raises(GpuBusy, match="--wait-gpu 10m"):
        take(GpuLock("GPU-1", tmp_path), lambda: busy, wait_s=0.05)
    lock = GpuLock("GPU-1", tmp_path)
    lock.hold()
    lock.release()


def test_nobody_waits_for_mig_mode_to_end(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(GpuBusy, match="MIG"):
        take(GpuLock("GPU-1", tmp_path), lambda: GpuState(mig=True), wait_s=60.0)
    assert time.monotonic() - began < 10.0


def test_a_held_gpu_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(gpu, "read_device", lambda *_: SimpleNamespace(uuid="GPU-1"))
    module = importlib.import_module("rubin_tune.tuner.sweep")
    monkeypatch.setattr(
        module, "make_evaluator", lambda resolved, cache: gpu.GpuEvaluator(resolved.setting, cache)
    )
    holder = GpuLock("GPU-1")
    holder.hold()
    database = tmp_path / "trials.sqlite"
    request = SweepRequest(model="qwen3-30b-a3b", target="h200", tokens="16", evaluator="model")
    with pytest.raises(GpuBusy, match=rf"process {os.getpid()}, since .*--wait-gpu 10m"):
        sweep(request, database=database, cache_dir=tmp_path)
    holder.release()
    with open_store(database) as store:
        assert store.counts()["sweeps"] == 0


def test_a_second_sweep_is_refused_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from rubin_tune.tuner.gpu_state import GpuLock\n"
        "lock = GpuLock('GPU-1', Path(sys.argv[1]))\nlock.hold()\nprint('held', flush=True)\ntime.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    lock = GpuLock("GPU-1", tmp_path)
    with pytest.raises(GpuBusy, match=f"process {holder.pid}"):
        lock.hold()
    other = GpuLock("GPU-2", tmp_path)
    other.hold()
    other.release()
    holder.kill()
    holder.communicate()
    lock.hold()
    lock.release()


def test_an_index_counts_among_the_visible_gpus() -> None:
    assert visible_device("1", None) == "1"
    assert visible_device("1", "4,6") == "6"
    assert visible_device("GPU-ab", "4,6") == "GPU-ab"


@pytest.mark.parametrize("gpus", ["0,1", "", "h200", "2"])
def test_what_no_gpu_can_be_is_refused(gpus: str) -> None:
    with pytest.raises(InvalidInput):
        visible_device(gpus, "4,6")
