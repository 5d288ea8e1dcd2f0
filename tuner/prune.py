"""What a compile report says against a variant before it is timed.

These are doubts, not refusals: a doubtful variant is timed later than its turn (where a budget ends
the search early it is what is left out), never declared a failure. Both rules follow from how an SM works;
neither threshold was fitted:

- spills: the compiler ran out of registers, and each trip of the loop moves values through local
  memory that a variant with smaller tiles keeps in registers. Any spill counts.
- starved: an SM has 4 schedulers; a scheduler with a single warp issues nothing while that warp waits.
  Fewer than 2 warps a scheduler counts, unless the matrix instruction is asynchronous (Hopper's
  warp-group and Blackwell's tensor-memory ones): there one warp keeps the tensor core fed.

`python -m pytest tests/tuner/test_prune.py` applies both to a recorded KTT space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..db import CompileReport
from ..topology import Gpu

# Source: CUDA C++ Programming Guide, "Multiprocessor Level": 4 warp schedulers since sm_50.
SCHEDULERS = 4
_LEAST_WARPS = 2 * SCHEDULERS
_ASYNCHRONOUS = ("hgmma", "qgmma", "igmma", "utc")
_WARP = 32
# Places that a doubtful variant waits: enough that a budget which ends meets it late, few enough that the
# search learns from it.
DELAY = 16


def doubt(*, spill_bytes: int, threads: int, blocks: int, mma_kind: str = "none") -> str:
    """Say what speaks against a variant ("" = nothing).

    Args:
        spill_bytes: Spilled bytes a thread.
        threads: Threads a block.
        blocks: Blocks that one SM holds at once.
        mma_kind: As in a compile report.
    """
    if spill_bytes > 0:
        return f"spills {spill_bytes} bytes a thread"
    warps = blocks * -(-threads // _WARP)
    if warps < _LEAST_WARPS and not mma_kind.startswith(_ASYNCHRONOUS):
        return f"only {warps} warps an SM, for {SCHEDULERS} schedulers"
    return ""


def doubt_of(report: CompileReport, gpu: Gpu) -> str:
    """Say what speaks against a compiled variant on a GPU ("" = nothing)."""
    blocks = gpu.occupancy(report.registers, report.shared_bytes, report.threads)
    return doubt(
        spill_bytes=report.spill_bytes,
        threads=report.threads,
        blocks=blocks,
        mma_kind=report.mma_kind,
    )


_Variant = TypeVar("_Variant")
_Other = TypeVar("_Other")


def doubtful_later(
    compiled: Iterable[tuple[_Variant, CompileReport | _Other]], gpu: Gpu
) -> Iterator[tuple[_Variant, CompileReport | _Other]]:
    """Yield compiled variants as they come, each that something speaks against `DELAY` places later."""
    late: deque[tuple[int, tuple[_Variant, CompileReport | _Other]]] = deque()
    for place, (variant, report) in enumerate(compiled):
        if isinstance(report, CompileReport) and doubt_of(report, gpu):
            late.append((place, (variant, report)))
        else:
            yield variant, report
        while late and place - late[0][0] >= DELAY:
            yield late.popleft()[1]
    yield from (item for _, item in late)
