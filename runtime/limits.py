"""What a GPU can launch, as far as a table's rows say what they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..topology import Gpu

_WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A GPU's limits.

    Attributes:
        name: As messages call it.
        arch: Compute capability times ten.
        shared_bytes: Shared memory that one block can ask for.
        threads: Threads of the largest block.
        registers: 32-bit registers of an SM.
        tmem_columns: Tensor-memory columns of an SM.
    """

    name: str
    arch: int
    shared_bytes: int
    threads: int
    registers: int
    tmem_columns: int

    @classmethod
    def of(cls, gpu: Gpu | Limits) -> Limits:
        """Return the limits of a GPU; oversized shared memory counts, as kernels may ask for it."""
        if isinstance(gpu, Limits):
            return gpu
        mode = "oversized" if gpu.has_oversized_shared_memory else "default"
        return cls(
            name=gpu.name,
            arch=gpu.arch,
            shared_bytes=gpu.shared_memory_limit(mode),
            threads=gpu.max_threads_per_block,
            registers=gpu.registers_per_sm,
            tmem_columns=gpu.tmem_columns(exclusive=True),
        )

    def why_not(self, needs: Sequence[int]) -> str:
        """Say which limit is passed, "" where none is.

        Args:
            needs: Shared bytes, threads, registers a thread, tensor-memory columns (0 = unknown).
        """
        shared, threads, registers, columns = needs
        if shared > self.shared_bytes:
            return (
                f"needs {shared} B of shared memory: {self.name} has {self.shared_bytes} a block"
            )
        if threads > self.threads:
            return f"needs {threads} threads: {self.name} has {self.threads} a block"
        if threads * registers > self.registers:
            return (
                f"needs {threads} threads of {registers} registers: {self.name} has "
                f"{self.registers} an SM"
            )
        if columns > self.tmem_columns:
            return f"needs {columns} tensor-memory columns: {self.name} has {self.tmem_columns}"
        return ""

    def too_many_warps(self, config: Mapping[str, object]) -> str:
        """Say whether a config alone asks for too many threads, "" where it does not."""
        for name, value in config.items():
            if name.rpartition(".")[2] == "num_warps" and isinstance(value, int):
                why = self.why_not((0, value * _WARP, 0, 0))
                if why:
                    return why
        return ""
