"""The machine that times: graphs and rounds, and three figures measured once to compare with."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton

from rubin_tune.tuner import timing
from rubin_tune.tuner.timing import Runnable

_NODES = 512
_COPY_BYTES = 2 << 30
_MATMUL = 8192
_REPEATS = 20


class Clock(Protocol):
    """How steps are captured and timed."""

    device: str
    rotation: int

    def capture(self, sets: Sequence[Sequence[Runnable]]) -> Callable[[], None]:
        """Return what replays every set once."""
        ...

    def rounds(self, replays: Sequence[Callable[[], None]]) -> list[list[float]]:
        """Return microseconds of one set, several samples for each replay, interleaved."""
        ...

    def nodes(self, launches: Sequence[Runnable]) -> int | None:
        """Return how many nodes they are in a CUDA graph."""
        ...


@dataclass(slots=True)
class GpuClock:
    """CUDA graphs and the tuner's interleaved rounds."""

    device: str = "cuda"
    rotation: int = timing.ROTATION

    def capture(self, sets: Sequence[Sequence[Runnable]]) -> Callable[[], None]:
        """Capture one graph of all sets."""
        return timing.capture(sets)

    def rounds(self, replays: Sequence[Callable[[], None]]) -> list[list[float]]:
        """Sample in rounds, forwards and backwards in turns."""
        return timing.rounds(replays)

    def nodes(self, launches: Sequence[Runnable]) -> int | None:
        """Capture them alone and ask the driver."""
        if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph"):
            return None
        graph: Any = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            for launch in launches:
                launch.run()
        count = ctypes.c_size_t()
        handle = ctypes.c_void_p(graph.raw_cuda_graph())
        status = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(handle, None, ctypes.byref(count))
        return None if status else count.value


@dataclass(slots=True)
class CpuClock:
    """One run each: checks this program where there is no GPU; its times mean nothing."""

    device: str = "cpu"
    rotation: int = 1

    def capture(self, sets: Sequence[Sequence[Runnable]]) -> Callable[[], None]:
        """Run the sets when replayed."""

        def replay() -> None:
            for launches in sets:
                for launch in launches:
                    launch.run()

        return replay

    def rounds(self, replays: Sequence[Callable[[], None]]) -> list[list[float]]:
        """Take one sample each by the wall clock."""
        return [[self._sample(replay)] for replay in replays]

    def nodes(self, launches: Sequence[Runnable]) -> int | None:
        """Nothing is a graph here."""
        return None

    def _sample(self, replay: Callable[[], None]) -> float:
        started = time.perf_counter()
        replay()
        return (time.perf_counter() - started) * 1e6


@triton.jit
def _nothing(place):  # type: ignore[no-untyped-def]
    pass


def measure_machine() -> dict[str, float | str]:
    """Return copy bandwidth (read and written bytes), an empty graph node's cost, a dense bf16 rate."""
    place = torch.zeros(1, dtype=torch.int32, device="cuda")

    class Nothing:
        def run(self) -> None:
            _nothing[(1,)](place, num_warps=4)

    nodes = timing.capture([[Nothing()] * _NODES])
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    generator = torch.Generator(device="cuda").manual_seed(0)
    size = (_MATMUL, _MATMUL)
    left, right = (
        torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)
        for _ in range(2)
    )
    out = torch.empty_like(left)
    node_us, copy_us, matmul_us = (
        _median_us(nodes) / _NODES,
        _median_us(lambda: target.copy_(source)),
        _median_us(lambda: torch.mm(left, right.T, out=out)),
    )
    return {
        "empty_node_us": node_us,
        "copy_bytes_per_s": 2 * _COPY_BYTES / copy_us * 1e6,
        "dense_bf16_flops": 2.0 * _MATMUL**3 / matmul_us * 1e6,
        "clocks": read_clocks(),
    }


def read_clocks() -> str:
    """Return SM clock, memory clock, power and temperature as nvidia-smi says, "" without it."""
    query = "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def _median_us(work: Callable[[], Any]) -> float:
    for _ in range(3):
        work()
    # `sample` divides by the rotation of a tuner's graph.
    samples = sorted(timing.sample(work) * timing.ROTATION for _ in range(_REPEATS))
    return samples[len(samples) // 2]
