"""What the GPU does while we time on it: is it free, is it throttled; and whose it is.

NVML is asked through ctypes, as in topology/driver.py. Where it does not answer nothing is known, and
nothing is refused or repeated.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from platformdirs import user_state_path

from ..errors import GpuBusy, InvalidInput

_SUCCESS = 0
_SM_CLOCK = 1
# nvml.h, nvmlClocksEventReasons: 0x1 idle, 0x2 application clocks and 0x10 sync boost are wanted states.
_THROTTLES = {
    0x4: "its power limit",
    0x8: "hardware slow-down",
    0x20: "its temperature (software)",
    0x40: "its temperature (hardware)",
    0x80: "the power brake",
}
# Other processes that use this much of the GPU disturb times.
BUSY_PERCENT = 10
# Seconds between two looks at a GPU that is waited for.
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One look at a GPU.

    Attributes:
        clock_mhz: SM clock.
        throttles: Bits of nvmlClocksEventReasons.
        others: Process ids that hold a context on it, ours left out.
        busy_percent: Share of the last second in which some kernel ran.
        mig: Whether it is divided into instances.
    """

    clock_mhz: int = 0
    throttles: int = 0
    others: tuple[int, ...] = ()
    busy_percent: int = 0
    mig: bool = False

    @property
    def throttled_by(self) -> str:
        """What holds the clock down, "" if nothing."""
        return " and ".join(name for bit, name in _THROTTLES.items() if self.throttles & bit)


class Monitor(Protocol):
    """Looks at one GPU."""

    def glance(self) -> GpuState | None:
        """Return its clock and what throttles it, or None where nobody answers."""
        ...


def refusal(state: GpuState | None) -> str:
    """Say why times on a GPU in this state would be worth nothing, "" if they would not."""
    if state is None:
        return ""
    if state.mig:
        return "it is in MIG mode: its instances share memory and clocks; time on a whole GPU"
    if state.others and state.busy_percent >= BUSY_PERCENT:
        who = ", ".join(map(str, state.others[:4]))
        return (
            f"another process is using it ({state.busy_percent} % busy; process {who}): end it, "
            "wait for it with --wait-gpu 10m, or pick another GPU with --gpus"
        )
    return ""


class Nvml:
    """A monitor that asks NVML.

    Args:
        uuid: The GPU's, as NVML writes it ("GPU-...").
    """

    def __init__(self, uuid: str) -> None:
        self._library: Any = _library()
        self._handle = ctypes.c_void_p()
        if self._library is not None:
            name = ctypes.c_char_p(uuid.encode())
            found = self._library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle))
            if found != _SUCCESS:
                self._library = None

    def glance(self) -> GpuState | None:
        """Return clock and throttles alone: cheap enough for every round."""
        if self._library is None:
            return None
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK, ctypes.byref(clock))
        self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.byref(reasons))
        return GpuState(clock_mhz=clock.value, throttles=reasons.value)

    def read(self) -> GpuState | None:
        """Return its whole state; what the driver does not know counts as nothing."""
        seen = self.glance()
        if seen is None:
            return None
        mode, pending = ctypes.c_uint(), ctypes.c_uint()
        usage = (ctypes.c_uint * 2)()
        self._ask("nvmlDeviceGetUtilizationRates", ctypes.byref(usage))
        self._ask("nvmlDeviceGetMigMode", ctypes.byref(mode), ctypes.byref(pending))
        return replace(seen, others=self._others(), busy_percent=usage[0], mig=mode.value == 1)

    def _others(self) -> tuple[int, ...]:
        count = ctypes.c_uint(64)
        infos = (_ProcessInfo * 64)()
        asked = "nvmlDeviceGetComputeRunningProcesses_v3"
        if not self._ask(asked, ctypes.byref(count), infos):
            return ()
        ours = {os.getpid(), os.getppid()}
        return tuple(info.pid for info in infos[: count.value] if info.pid not in ours)

    def _ask(self, name: str, *args: Any) -> bool:
        function = getattr(self._library, name, None)
        return function is not None and function(self._handle, *args) == _SUCCESS


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of the _v2 and _v3 calls."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _library() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == _SUCCESS else None


class GpuLock:
    """One sweep at a time holds a GPU; the operating system releases it when the holder dies.

    Args:
        uuid: The GPU's.
        folder: Where lock files lie; None = the user's state folder.
    """

    def __init__(self, uuid: str, folder: Path | None = None) -> None:
        self._path = (folder or user_state_path("rubin-tune")) / f"{uuid}.lock"
        self._file: IO[str] | None = None

    def hold(self) -> None:
        """Take the lock.

        Raises:
            GpuBusy: another sweep has it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise GpuBusy(
                f"the GPU is held by another sweep (process {holder}): wait for it with "
                "--wait-gpu 10m, or pick another GPU with --gpus"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}, since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give it back; without effect where it is not held."""
        if self._file is not None:
            self._file.close()
            self._file = None


def take(
    lock: GpuLock,
    read: Callable[[], GpuState | None],
    *,
    wait_s: float = 0.0,
    says: Callable[[str], None] | None = None,
) -> None:
    """Hold a GPU that is free, or becomes free in time.

    Args:
        lock: Its lock.
        read: Looks at it.
        wait_s: Seconds to wait while another sweep holds it or another process uses it.
        says: Hears, once, who is waited for.

    Raises:
        GpuBusy: it was not free in time, or is divided.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            return _take_now(lock, read)
        except GpuBusy as error:
            state = read()
            left_s = until - time.monotonic()
            # Nobody ends MIG mode because we wait.
            if left_s <= 0 or (state is not None and state.mig):
                raise
            if says is not None:
                says(f"waiting {wait_s:g} s at most: {str(error).rpartition(': ')[0]}")
                says = None
            time.sleep(min(POLL_S, left_s))


def _take_now(lock: GpuLock, read: Callable[[], GpuState | None]) -> None:
    lock.hold()
    why = refusal(read())
    if why:
        lock.release()
        raise GpuBusy(f"cannot time on the GPU: {why}")


def visible_device(gpus: str, visible: str | None) -> str:
    """Return the CUDA_VISIBLE_DEVICES under which a sweep sees the GPU that was picked.

    Args:
        gpus: An index, or a UUID.
        visible: CUDA_VISIBLE_DEVICES as it is: indices count within it.

    Raises:
        InvalidInput: more than one, or none of the visible.
    """
    picked = [part.strip() for part in gpus.split(",") if part.strip()]
    if len(picked) != 1:
        raise InvalidInput(
            f"gpus is {gpus!r}: a sweep times on one GPU; start one sweep a GPU, with the same --db"
        )
    (one,) = picked
    if not one.isdigit():
        if not one.startswith("GPU-"):
            raise InvalidInput(
                f"gpus is {gpus!r}: must be an index or a UUID that starts with GPU-"
            )
        return one
    listed: Sequence[str] = [v.strip() for v in visible.split(",")] if visible else ()
    if not listed:
        return one
    if int(one) >= len(listed):
        raise InvalidInput(f"gpus is {gpus!r}: CUDA_VISIBLE_DEVICES shows {len(listed)} GPUs")
    return listed[int(one)]
