"""The floor that no honest time lies under: bytes over bandwidth, operations over rate."""

from __future__ import annotations

from ..search_spaces import Problem, Unit
from .evaluation import Setting

# Work is an expectation over routings; a draw may need this much less than expected.
SLACK = 0.8


def floor_us(setting: Setting, unit: Unit, tokens: int) -> float:
    """Return the least time of a unit in microseconds, at the GPU's peak bandwidth and rate.

    Source: bytes that must cross device memory once, and FLOPs, from the kernel's `work`.
    """
    work = setting.kernel.work(setting.problem(tokens), unit)
    bandwidth = setting.gpu.fact("memory_peak_bandwidth").number
    return (
        max(
            work.min_bytes / bandwidth,
            work.flops / setting.gpu.peak_flops(rate_name(setting.problems[0])),
        )
        * 1e6
    )


def beats_physics(setting: Setting, unit: Unit, tokens: int, time_us: float | None) -> str | None:
    """Return in words why a time cannot be true, or None where it can."""
    if time_us is None or unit not in setting.kernel.units():
        return None
    floor = floor_us(setting, unit, tokens) * SLACK
    if time_us >= floor:
        return None
    return f"{time_us:.2f} us is under the floor of {floor:.2f} us for bytes and operations"


def rate_name(problem: Problem) -> str:
    """Return the name under which a GPU states the rate of the problem's matrix instructions."""
    return "bf16" if problem.activations.bits == 16 else "fp8"
