"""Compiling one launch for an explicit target, and reading the facts out of what came of it.

Triton's own binder makes the signature, so specialisation (divisibility by 16, pointer alignment, == 1) is
exactly the launch's. No driver is touched; what a driver would refuse is checked here against the topology.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..db import CompileReport, Rejected, Why
from ..kernels._kernel import Launch
from ..search_spaces import LaunchConfig
from ..topology import Gpu
from .sass import Code, read_cubin

_ELEMENT_BYTES = {"f8E4M3FN": 1, "f8E5M2": 1, "i8": 1, "bf16": 2, "f16": 2, "f32": 4}
_ALLOC = re.compile(r"ttg\.local_alloc[^\n]*?!ttg\.memdesc<([\dx]+)x([A-Za-z]\w*), (#\w+)")
_PADDED = re.compile(r"^(#\w+) = #ttg\.nvmma_shared<\{[^}]*fp4Padded = true", re.MULTILINE)
_TCGEN05 = re.compile(r"tcgen05\.mma[\w.:]*?kind::(\w+)")
# What the SASS of a tcgen05 kind is called. Source: facts, hardware 5.1.
_UTC_NAMES = {
    "f16": "utchmma",
    "tf32": "utchmma",
    "f8f6f4": "utcqmma",
    "mxf8f6f4": "utcqmma",
    "mxf4": "utcomma",
    "mxf4nvf4": "utcomma",
    "i8": "utcimma",
}
_INSTRUCTION_K = re.compile(r"(?:wgmma\.mma_async|mma\.sync)[\w.]*?\.m\d+n\d+k(\d+)")
# Rows on the M side of one tcgen05 instruction.
_UTC_ROWS = 128
# Columns on its N side at most.
_UTC_COLUMNS = 256


def compile_launch(launch: Launch, arch: int) -> Any:
    """Compile what `launch.run()` would launch, for another target.

    Args:
        launch: Arguments may lie on torch's "meta" device: their pointers are 0, and so aligned.
        arch: Compute capability times ten.

    Returns:
        Triton's compiled kernel: `asm` and `metadata`.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    fn = launch.fn
    options = {**launch.kwargs, "debug": bool(fn.debug)}
    binder = create_function_from_signature(fn.signature, fn.params, backend)
    bound, specialization, rest = binder(*launch.args, **options)
    parsed, signature, constexprs, attrs = fn._pack_args(
        backend, options, bound, specialization, rest
    )
    source = ASTSource(fn, signature, constexprs, attrs)
    return triton.compile(source, target=target, options=parsed.__dict__)


def report_on(launch: Launch, arch: int) -> CompileReport:
    """Compile a GEMM's launch and return the compiler's facts about it."""
    begun = time.perf_counter()
    kernel = compile_launch(launch, arch)
    seconds = time.perf_counter() - begun
    code = read_cubin(kernel.asm["cubin"])
    tile = _Tile.of(launch.kwargs)
    buffers, stage, weights = _stages(kernel.asm["ttgir"], tile)
    kind, depth, count = _matrix(code, kernel.asm["ptx"], tile)
    metadata = kernel.metadata
    loop = code.main or code.whole
    return CompileReport(
        target=arch,
        registers=code.registers,
        spill_bytes=code.stack_bytes,
        shared_bytes=int(metadata.shared),
        buffers=buffers,
        stage_bytes=stage,
        weight_stage_bytes=weights,
        tmem_columns=int(getattr(metadata, "tmem_size", 0) or 0),
        mma_kind=kind,
        mma_k=depth,
        mma_count=count,
        loop_instructions=loop.instructions,
        loop_local_ops=loop.local_ops,
        threads=_threads(kernel.asm["ptx"], int(metadata.num_warps)),
        cubin_sha256=code.sha256,
        compile_s=seconds,
    )


def over_limits(config: LaunchConfig, report: CompileReport, gpu: Gpu) -> Rejected | None:
    """Return why the GPU cannot launch a variant, or None: Triton finds out only with a driver."""
    mode = "oversized" if gpu.has_oversized_shared_memory else "default"
    limit = gpu.shared_memory_limit(mode)
    if report.shared_bytes > limit:
        detail = f"{report.shared_bytes} B of shared memory, {gpu.name} has {limit} B a block"
        return Rejected(config=config, why=Why.SHARED_MEMORY, detail=detail)
    if report.tmem_columns > gpu.tmem_columns(exclusive=True):
        detail = (
            f"{report.tmem_columns} tensor-memory columns, {gpu.name} has "
            f"{gpu.tmem_columns(exclusive=True)}"
        )
        return Rejected(config=config, why=Why.TENSOR_MEMORY, detail=detail)
    if report.threads > gpu.max_threads_per_block or not gpu.occupancy(
        report.registers, report.shared_bytes, report.threads
    ):
        detail = f"{report.threads} threads of {report.registers} registers do not fit an SM"
        return Rejected(config=config, why=Why.THREADS, detail=detail)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """A launch's tile, however its kernel spells it (0 where it has no such name)."""

    block_m: int
    block_n: int
    block_k: int
    swapped: bool

    @classmethod
    def of(cls, kwargs: Mapping[str, Any]) -> _Tile:
        """Read it from a launch's constexprs."""

        def named(*names: str) -> Any:
            return next((kwargs[name] for name in names if name in kwargs), 0)

        return cls(
            block_m=int(named("BLOCK_M", "BLOCK_SIZE_M")),
            block_n=int(named("BLOCK_N", "BLOCK_SIZE_N")),
            block_k=int(named("BLOCK_K", "BLOCK_SIZE_K")),
            swapped=bool(named("SWAP_AB")),
        )

    def holds(self, array: _Array) -> bool:
        """Whether an array is one of the two operands: a block's rows by a k-tile, FP4 in pairs or not."""
        depths = {self.block_k, self.block_k // 2 if array.element == "i8" else self.block_k}
        a, b = array.sizes
        rows = {self.block_m, self.block_n}
        return (a in rows and b in depths) or (b in rows and a in depths)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Array:
    """One matrix in shared memory, once for each buffer (0: not pipelined)."""

    buffers: int
    sizes: tuple[int, int]
    element: str
    size_bytes: int


def _arrays(ttgir: str) -> list[_Array]:
    """Return the matrices that a kernel allocates in shared memory."""
    padded = set(_PADDED.findall(ttgir))
    found = []
    for dims, element, layout in _ALLOC.findall(ttgir):
        sizes = [int(d) for d in dims.split("x")]
        if element not in _ELEMENT_BYTES or not 2 <= len(sizes) <= 3:
            continue
        rows, columns = sizes[-2:]
        size = rows * columns * _ELEMENT_BYTES[element] * (2 if layout in padded else 1)
        found.append(
            _Array(
                buffers=sizes[0] if len(sizes) == 3 else 0,
                sizes=(rows, columns),
                element=element,
                size_bytes=size,
            )
        )
    return found


def _stages(ttgir: str, tile: _Tile) -> tuple[int, int, int]:
    """Return (buffers, bytes of one, the weights' share) of the software pipeline.

    A pipelined operand is a shared-memory array with the buffers as its first dimension; FP4 that the target
    must pad takes a byte an element. Without a pipeline an operand may be staged once a k-tile.
    """
    arrays = _arrays(ttgir)
    buffers = max((a.buffers for a in arrays), default=0)
    staged = [a for a in arrays if a.buffers == buffers and (buffers or tile.holds(a))]
    stage = sum(a.size_bytes for a in staged)
    # FP4 comes in pairs, as bytes, and only weights are FP4; else the shape tells, and where both operands
    # have the weights' shape their sizes are equal.
    packed = [a for a in staged if a.element == "i8"]
    shape = {(tile.block_n, tile.block_k), (tile.block_k, tile.block_n)}
    shaped = packed or [a for a in staged if a.sizes in shape]
    return max(1, buffers), stage, max((a.size_bytes for a in shaped), default=0)


def _matrix(code: Code, ptx: str, tile: _Tile) -> tuple[str, int, int]:
    """Return (kind, K of one instruction, instructions a k-tile).

    The loop's body is one k-tile: counting in the whole kernel would count peeled iterations too
    (facts, hardware 5.5). A tcgen05 instruction does not name its K: it follows from the count.
    """
    loop = code.main or code.whole
    if not loop.matrix_count:
        return "none", 0, 0
    count = loop.matrix_count
    tensor = _TCGEN05.search(ptx)
    if tensor:
        rows, columns = tile.block_m, tile.block_n
        if tile.swapped:
            rows, columns = columns, rows
        per_step = max(1, rows // _UTC_ROWS) * -(-columns // _UTC_COLUMNS)
        kind = _UTC_NAMES.get(tensor[1], f"utc{tensor[1]}mma")
        return kind, tile.block_k * per_step // count, count
    (kind, _) = max(loop.matrix, key=lambda pair: pair[1])
    depth = _INSTRUCTION_K.search(ptx)
    return kind, int(depth[1]) if depth else 0, count


def _threads(ptx: str, num_warps: int) -> int:
    found = re.search(r"\.reqntid (\d+)", ptx)
    return int(found[1]) if found else num_warps * 32
