"""Ways to run the same launches in another order, so that a race shows as other bits.

On a GPU: one launch right behind the other, as served; each held back by other work on its stream; and
beside other work that takes SMs away. In Triton's interpreter, where programs run one after the other:
forwards and backwards. Persistent kernels also get another number of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ._kernel import Launch

Runner = Callable[[Sequence[Launch]], None]

# A fill of so many bytes takes some 10 us and leaves nothing of ours in a small cache.
_HOLD_BYTES = 32 << 20
# Products of such matrices keep half of the SMs of a large GPU busy, for longer than a layer takes.
_NOISE_WIDTH = 2048
_NOISE_PRODUCTS = 8


def runners(device: str) -> tuple[Runner, ...]:
    """Return the ways there are on a device ("cpu" = the interpreter), the plain one first."""
    return (plain, backwards) if device == "cpu" else (plain, held_back, beside)


def plain(launches: Sequence[Launch]) -> None:
    """Run as the layer is served."""
    for launch in launches:
        launch.run()


def backwards(launches: Sequence[Launch]) -> None:
    """Run the programs of every launch last to first (interpreter)."""
    with _last_to_first():
        plain([_fewer(launch) for launch in launches])


def held_back(launches: Sequence[Launch]) -> None:
    """Put other work before every launch, of changing length."""
    ballast = torch.empty(_HOLD_BYTES, dtype=torch.uint8, device="cuda")
    for number, launch in enumerate(launches):
        ballast[: _HOLD_BYTES >> number % 4].fill_(number)
        _fewer(launch).run()


def beside(launches: Sequence[Launch]) -> None:
    """Run while another stream multiplies matrices."""
    factor = torch.zeros((_NOISE_WIDTH, _NOISE_WIDTH), dtype=torch.bfloat16, device="cuda")
    streams: Any = torch.cuda
    here, side = streams.current_stream(), streams.Stream()
    side.wait_stream(here)
    with streams.stream(side):
        for _ in range(_NOISE_PRODUCTS):
            factor @ factor
    plain(launches)
    here.wait_stream(side)


def _fewer(launch: Launch) -> Launch:
    """Return a persistent launch with half the programs: each walks over twice the tiles."""
    if not launch.kwargs.get("PERSISTENT"):
        return launch
    return replace(launch, grid=(max(1, launch.grid[0] // 2), *launch.grid[1:]))


@contextmanager
def _last_to_first() -> Iterator[None]:
    # Only there when interpreting, and private to triton: pinned by the tests of races.
    from triton.runtime.interpreter import interpreter_builder

    builder: Any = interpreter_builder
    forwards = builder.set_grid_idx

    def place(*index: int) -> None:
        forwards(*(size - 1 - i for i, size in zip(index, builder.grid_dim, strict=True)))

    builder.set_grid_idx = place
    try:
        yield
    finally:
        del builder.set_grid_idx
