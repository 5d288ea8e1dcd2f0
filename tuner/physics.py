"""The floor that no honest time lies under: bytes over bandwidth, operations over rate."""

from __future__ import annotations

from ..search_spaces import Unit
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
        max(work.min_bytes / bandwidth, work.flops / setting.gpu.peak_flops(_rate(setting))) * 1e6
    )


def beats_physics(setting: Setting, unit: Unit, tokens: int, time_us: float | None) -> str | None:
    """Return in words why a time cannot be true, or None where it can."""
    if time_us is None or unit not in setting.kernel.units():
        return None
    floor = floor_us(setting, unit, tokens) * SLACK
    if time_us >= floor:
        return None
    return f"{time_us:.2f} us is under the floor of {floor:.2f} us for bytes and operations"


def _rate(setting: Setting) -> str:
    activations = setting.problems[0].activations
    return "bf16" if activations.bits == 16 else "fp8"
