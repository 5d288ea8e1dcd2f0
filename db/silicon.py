"""The silicon that a time belongs to, from the topology's facts."""

from __future__ import annotations

from ..topology import Gpu
from .records import Silicon


def silicon_of(gpu: Gpu) -> Silicon:
    """Return what identifies a GPU's timings: capability, size, limits; its name only for people."""
    return Silicon(
        name=gpu.title,
        arch=gpu.arch,
        sms=gpu.sms,
        memory_bytes=gpu.memory_bytes,
        shared_limit_bytes=gpu.shared_memory_limit(),
        power_limit_w=gpu.power_limit_w,
    )
