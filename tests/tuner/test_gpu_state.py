"""What stands in the way of timing, throttled rounds, and who holds a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rubin_tune.errors import GpuBusy, InvalidInput
from rubin_tune.tuner import timing
from rubin_tune.tuner.gpu_state import GpuLock, GpuState, Nvml, refusal, visible_device


class Told:
    """A monitor that says what it was told, one state a look."""

    def __init__(self, *states: GpuState) -> None:
        self.states = list(states)

    def read(self) -> GpuState:
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


def rounds(monitor: Told) -> list[float]:
    replay: Callable[[], None] = lambda: None  # noqa: E731
    taken = iter(range(1000))
    (samples,) = timing.rounds([replay], lambda _: float(next(taken)), monitor)
    return samples


def test_a_throttled_round_is_discarded_and_repeated() -> None:
    hot, cool = GpuState(throttles=0x40), GpuState()
    samples = rounds(Told(cool, hot, hot, cool))
    assert len(samples) == timing.ROUNDS
    assert samples[:3] == [0.0, 3.0, 4.0]


def test_a_gpu_that_never_cools_is_timed_all_the_same() -> None:
    samples = rounds(Told(GpuState(throttles=0x4)))
    assert len(samples) == timing.ROUNDS


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
