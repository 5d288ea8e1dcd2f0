"""Worker processes that know nothing of the program that started them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

_swapping = threading.Lock()


class _Process(SpawnProcess):
    """A spawned process that does not import the parent's main module again.

    Spawning runs the user's script a second time in every worker: a script without an
    `if __name__ == "__main__":` guard, or one read from stdin, then cannot call us at all.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        with _swapping:
            main = sys.modules["__main__"]
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                return SpawnProcess._Popen(process_obj)
            finally:
                sys.modules["__main__"] = main


class _Context(SpawnContext):
    """Spawn, with such processes."""

    Process = _Process


def spawn_context() -> Any:
    """Return the multiprocessing context for pools of workers."""
    return _Context()


def resident_bytes() -> int:
    """Return how much memory this process holds; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def lead_group() -> None:
    """Make this worker the leader of a process group, so that what it starts can be ended with it."""
    os.setpgid(0, 0)
    # Pebble's own handler is Python code, which a compiler that hangs never comes back to run.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_group(pid: int) -> None:
    """Kill what is left of a worker's group: an assembler outlives the worker that called it."""
    if pid > 1 and pid != os.getpgrp():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
