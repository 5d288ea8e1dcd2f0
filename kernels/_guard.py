"""Guard zones: every buffer of a launch inside a larger allocation of poison.

A launch names all it touches in its arguments, so copies of those, each between two zones of 0xFF bytes
(NaN in every float format, -1 as an integer), stand around inputs, weights, scales, scratch and outputs
alike. Whatever is written past an end shows in a zone; whatever is read past one is NaN and shows in the
output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ._kernel import Launch

POISON = 0xFF
# A multiple of every alignment that code is specialised for: a guarded launch runs the same code.
ZONE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Buffer:
    """One buffer between its zones; `original` is what it was copied from."""

    name: str
    whole: Tensor
    body: Tensor
    original: Tensor
    written: bool


class Guards:
    """Guarded copies of the buffers of some launches.

    Args:
        launches: What is to run.
        writes: Names of the arguments that a kernel writes, by the kernel's name.
        keeps: Names of arguments that carry state from one launch to the next: neither poisoned nor
            compared.
    """

    def __init__(
        self,
        launches: Iterable[Launch],
        *,
        writes: Mapping[str, Collection[str]],
        keeps: Collection[str] = (),
    ) -> None:
        launches = tuple(launches)
        self._keeps = keeps
        self._buffers: dict[int, _Buffer] = {}
        self._written = {
            tensor.data_ptr()
            for launch in launches
            for name, tensor in _tensors(launch)
            if name in writes[launch.fn.__name__]
        }
        self.launches = tuple(
            replace(launch, args=tuple(self._guarded(*pair) for pair in _named(launch)))
            for launch in launches
        )

    def inside(self, tensor: Tensor) -> Tensor:
        """Return the guarded copy of a buffer that some launch was given."""
        found = self._buffers[tensor.data_ptr()]
        return found.body.view(tensor.dtype).view(tensor.shape)

    def poison(self) -> None:
        """Fill everything that is written with poison."""
        for buffer in self._buffers.values():
            if buffer.written:
                buffer.body.fill_(POISON)

    def flaw(self) -> str:
        """Say which zone or which input was overwritten, "" where none was."""
        claims, checks = [], []
        for buffer in self._buffers.values():
            for side, zone in _zones(buffer.whole):
                claims.append(f"wrote {side} the buffer {buffer.name!r}")
                checks.append((zone != POISON).any())
            if not (buffer.written or buffer.name in self._keeps):
                claims.append(f"wrote to its input {buffer.name!r}")
                checks.append((_words(buffer.body) != _words(_flat(buffer.original))).any())
        # One look at the device for all of them.
        broken = torch.stack(checks).tolist() if checks else []
        return next(
            (claim for claim, is_broken in zip(claims, broken, strict=True) if is_broken), ""
        )

    def _guarded(self, name: str, arg: Any) -> Any:
        if isinstance(arg, TensorDescriptor):
            base = self._guarded(name, arg.base)
            return TensorDescriptor(base, arg.shape, arg.strides, arg.block_shape)
        if not isinstance(arg, Tensor) or not arg.numel():
            return arg
        if arg.data_ptr() not in self._buffers:
            self._buffers[arg.data_ptr()] = self._enclosed(name, arg)
        return self.inside(arg)

    def _enclosed(self, name: str, tensor: Tensor) -> _Buffer:
        flat = _flat(tensor)
        size = flat.numel() + 2 * ZONE_BYTES
        whole = torch.full((size,), POISON, dtype=torch.uint8, device=tensor.device)
        body = whole[ZONE_BYTES:-ZONE_BYTES]
        body.copy_(flat)
        written = tensor.data_ptr() in self._written
        return _Buffer(name=name, whole=whole, body=body, original=tensor, written=written)


def _named(launch: Launch) -> Iterator[tuple[str, Any]]:
    names = launch.fn.arg_names
    return zip(names[: len(launch.args)], launch.args, strict=True)


def _tensors(launch: Launch) -> Iterator[tuple[str, Tensor]]:
    for name, arg in _named(launch):
        tensor = arg.base if isinstance(arg, TensorDescriptor) else arg
        if isinstance(tensor, Tensor) and tensor.numel():
            yield name, tensor


def _zones(whole: Tensor) -> tuple[tuple[str, Tensor], ...]:
    return ("before", whole[:ZONE_BYTES]), ("after", whole[-ZONE_BYTES:])


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _words(flat: Tensor) -> Tensor:
    """Return bytes as 64-bit words where that goes: an eighth of the work."""
    return (
        flat.view(torch.int64)
        if flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0
        else flat
    )
