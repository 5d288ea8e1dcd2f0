"""What the compiler will make of a config, guessed: instructions, stages, registers.

The shape of the formulas is the kernel's k-loop; their coefficients are least squares over the
SASS (never over times) of 542 variants of a kernel written after vLLM's fused MoE, compiled by
Triton 3.6 for sm_90: instructions within 7 % (median), registers within 7 %. A report with real
counts replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..search_spaces import Problem, Unit
from ._cost_machine import Machine
from ._cost_numbers import Columns, Number, choose, larger, smaller, upward

# Kinds of matrix instruction by number, so that a column of them is an array.
KINDS = (
    "hmma",
    "hgmma",
    "qgmma",
    "utchmma",
    "utcqmma",
    "utcomma",
    "qmma",
    "imma",
    "igmma",
    "none",
)
_HMMA, _HGMMA, _QGMMA, _UTCHMMA, _UTCQMMA, _UTCOMMA = range(6)
_MOST_REGISTERS = 255
# Loads and stores of the k-loop for one spilled word. Source: SASS as above, 79 spilling variants.
_LOCAL_PER_WORD = 1.2
# What a persistent loop holds across tiles, and what a k-tile asks before it skips the start and the end
# of a tile. Source: ten variants of megamoe, Triton 3.9, sm_90 and sm_107: 20 to 28 registers more
# (bf16), 39 to 68 (fp8, mxfp4); instructions inferred.
_PERSISTENT_REGISTERS = 24
_PERSISTENT_SCALED_REGISTERS = 48
_PERSISTENT_INSTRUCTIONS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """What the model reads of a problem and a unit: nothing that changes with the tokens.

    Attributes:
        n: Rows of one expert's weights.
        k: Elements along which it is multiplied.
        weight_bits: Bits of a weight in memory, scales left out.
        weight_bytes: Bytes of one expert's weights with scales.
        input_bytes: Bytes of one input row with scales.
        output_bytes: Bytes of one output row with scales.
        is_engine: vLLM's kernel: plain bf16 output, padding rows masked.
        is_fused: The epilogue applies the activation and quantises.
        reads_tokens: Input rows are gathered from the tokens, so top_k rows share one.
    """

    weights: str
    activations: str
    n: int
    k: int
    weight_bits: int
    activation_bits: int
    weight_bytes: float
    input_bytes: float
    output_bytes: float
    is_engine: bool
    is_fused: bool
    reads_tokens: bool

    @property
    def is_scaled(self) -> bool:
        """Whether weights are FP4 with a scale per 32."""
        return self.weights == "mxfp4"

    @property
    def is_promoted(self) -> bool:
        """Whether each k-tile's product is scaled and added on the CUDA cores."""
        return self.weights == "fp8_block128"


def gemm_of(problem: Problem, unit: Unit, *, is_engine: bool) -> Gemm:
    """Read a problem and a unit."""
    n, k = problem.gemm(unit)
    is_fused = unit is Unit.GATE_UP and not is_engine
    if is_fused:
        output_bytes = problem.activations.bytes_of(1, problem.local_intermediate)
    else:
        output_bytes = 2 * n
    return Gemm(
        weights=problem.shape.weights,
        activations=problem.shape.activations,
        n=n,
        k=k,
        weight_bits=problem.weights.bits,
        activation_bits=problem.activations.bits,
        weight_bytes=problem.weights.bytes_of(n, k),
        input_bytes=problem.activations.bytes_of(1, k),
        output_bytes=output_bytes,
        is_engine=is_engine,
        is_fused=is_fused,
        reads_tokens=unit is Unit.GATE_UP,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Facts of one variant's main loop, guessed or reported; one value or one a config.

    Attributes:
        kind: Place in KINDS.
        ahead: k-tiles whose loads are in flight while one is multiplied.
        loop_instructions: SASS instructions of a k-tile, one warp, spills included.
        local_ops: Loads and stores of spilled words among them.
    """

    kind: Number
    mma_k: Number
    mma_count: Number
    registers: Number
    spill_bytes: Number
    shared_bytes: Number
    buffers: Number
    ahead: Number
    stage_bytes: Number
    weight_stage_bytes: Number
    tmem_columns: Number
    loop_instructions: Number
    local_ops: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Sizes that the formulas share.

    Attributes:
        m_side: Rows on the M side of the matrix instruction.
        n_side: The other side.
        m_padded: m_side as the instruction runs it.
        accumulators: float32 results a thread.
        copies: 16-byte copies a thread and k-tile.
        warps: Warps a block.
    """

    m_side: Number
    n_side: Number
    m_padded: Number
    accumulators: Number
    copies: Number
    warps: Number


def kind_of(c: Columns, gemm: Gemm, machine: Machine) -> Number:
    """Return the matrix instruction that Triton chooses. Source: facts, hardware 5.1 and 5.3b."""
    m_side = choose(c.is_swapped, c.block_n, c.block_m)
    if machine.arch < 100:
        wide = _QGMMA if gemm.is_promoted else _HGMMA
        return choose(m_side >= 64, wide, _HMMA)
    if gemm.is_promoted:
        return choose(m_side >= 64, _UTCQMMA, _HMMA)
    half = choose(m_side >= 64, _UTCHMMA, _HMMA)
    if gemm.is_scaled and gemm.activation_bits == 8:
        return choose(m_side >= 128, _UTCQMMA, half)
    return half


def is_warp_level(kind: Number) -> Number:
    """Whether operands go through registers (mma.sync)."""
    return (kind == _HMMA) | (kind >= 6)


def is_warpgroup(kind: Number) -> Number:
    """Whether it is Hopper's wgmma."""
    return (kind == _HGMMA) | (kind == _QGMMA) | (kind == 8)


def is_tensor_memory(kind: Number) -> Number:
    """Whether it is Blackwell's tcgen05, with results in tensor memory."""
    return (kind == _UTCHMMA) | (kind == _UTCQMMA) | (kind == _UTCOMMA)


def rate_of(kind: Number, rates: dict[str, float]) -> Number:
    """Return an instruction's figure by the format it multiplies."""
    is_fp8 = (kind == _QGMMA) | (kind == _UTCQMMA) | (kind == 6)
    eight = rates["fp8"] or rates["bf16"]
    return choose(kind == _UTCOMMA, rates["nvfp4"], choose(is_fp8, eight, rates["bf16"]))


def is_converted(kind: Number, gemm: Gemm) -> Number:
    """Whether operands are widened in registers before the instruction."""
    if gemm.is_scaled:
        return (kind != _UTCQMMA) & (kind != _UTCOMMA)
    return (kind == _HMMA) & gemm.is_promoted


def tile_of(c: Columns, gemm: Gemm, kind: Number) -> Tile:
    """Return the tile's sizes; a 64-row tcgen05 takes as long as one of 128 rows."""
    m_side = choose(c.is_swapped, c.block_n, c.block_m)
    n_side = choose(c.is_swapped, c.block_m, c.block_n)
    granule = choose(is_warp_level(kind), 16, choose(is_tensor_memory(kind), 128, 64))
    threads = c.num_warps * 32
    by_rows = c.block_m * c.block_k * gemm.activation_bits / 128 / threads
    by_weights = c.block_n * c.block_k * gemm.weight_bits / 128 / threads
    return Tile(
        m_side=m_side,
        n_side=n_side,
        m_padded=upward(m_side / granule) * granule,
        accumulators=c.block_m * c.block_n / threads,
        copies=choose(c.is_tma, 1, larger(by_rows, 1) + larger(by_weights, 1)),
        warps=c.num_warps,
    )


def guess(c: Columns, gemm: Gemm, machine: Machine) -> Code:
    """Return what the compiler will likely report."""
    kind = kind_of(c, gemm, machine)
    tile = tile_of(c, gemm, kind)
    mma_k = _mma_k(c, kind, machine)
    count = _mma_count(c, tile, kind, mma_k)
    weight_stage = _weight_stage(c, gemm, kind, machine)
    stage = weight_stage + c.block_m * c.block_k * gemm.activation_bits / 8
    buffers = _buffers(c, gemm, kind)
    registers = _registers(tile, gemm, kind)
    scaled = gemm.is_promoted or gemm.is_scaled
    kept = _PERSISTENT_SCALED_REGISTERS if scaled else _PERSISTENT_REGISTERS
    registers = registers + choose(c.is_persistent, kept, 0)
    words = _spilled_words(registers, tile)
    local = upward(words * _LOCAL_PER_WORD)
    return Code(
        kind=kind,
        mma_k=mma_k,
        mma_count=count,
        registers=smaller(upward(registers), _MOST_REGISTERS),
        spill_bytes=words * 4,
        shared_bytes=_shared_bytes(c, gemm, kind, tile, buffers * stage),
        buffers=buffers,
        ahead=ahead_of(c, buffers),
        stage_bytes=stage,
        weight_stage_bytes=weight_stage,
        tmem_columns=choose(is_tensor_memory(kind), _tmem_columns(c, tile, gemm), 0),
        loop_instructions=upward(instructions(c, gemm, tile, kind, count)) + local,
        local_ops=local,
    )


def ahead_of(c: Columns, buffers: Number) -> Number:
    """Return k-tiles in flight beside the one multiplied: num_stages - 1, if there are buffers."""
    return larger(smaller(c.num_stages - 1, buffers), 1)


def local_ops_of(spill_bytes: Number) -> Number:
    """Return accesses to spilled words a k-tile, where no SASS was read."""
    return upward(spill_bytes / 4 * _LOCAL_PER_WORD)


def _mma_k(c: Columns, kind: Number, machine: Machine) -> Number:
    """Source: facts, hardware 1.3: FP8 K is 64 on sm_107, for k-tiles of at least 64."""
    full = dict(machine.full_k)
    native = smaller(choose(c.block_k >= 64, full["fp8"], 32), 64)
    eight = choose(kind == _UTCQMMA, native, 32)
    return choose((kind == _QGMMA) | (kind == _UTCQMMA), eight, 16)


def _mma_count(c: Columns, tile: Tile, kind: Number, mma_k: Number) -> Number:
    """Instructions a k-tile: of one warp (mma.sync), one warpgroup, or the block (tcgen05)."""
    steps = upward(c.block_k / mma_k)
    warp = larger(c.block_m * c.block_n / 128 / tile.warps, 1)
    groups = larger(tile.warps / 4, 1)
    rows = tile.m_padded / 64
    group = larger(rows / groups, 1) * upward(tile.n_side / larger(groups / rows, 1) / 256)
    block = tile.m_padded / 128 * upward(tile.n_side / 256)
    each = choose(is_warp_level(kind), warp, choose(is_tensor_memory(kind), block, group))
    return upward(each * steps)


def _weight_stage(c: Columns, gemm: Gemm, kind: Number, machine: Machine) -> Number:
    """Bytes of one weight k-tile in shared memory.

    Source: facts, hardware 5.2: FP4 takes a byte an element on sm_100 and sm_103, half of one on
    sm_107 (there padded again for k-tiles of 32).
    """
    data = c.block_n * c.block_k * gemm.weight_bits / 8
    if not gemm.is_scaled or machine.arch < 100:
        return data
    padded = (kind == _UTCQMMA) & (machine.padded_fp4 | (c.block_k < 64))
    return choose(padded, 2 * data, data)


def _buffers(c: Columns, gemm: Gemm, kind: Number) -> Number:
    """Buffers: a wgmma that runs on keeps its operands one k-tile longer.

    Source: shared bytes of the recorded landscapes.
    """
    fewer = larger(c.num_stages - 1, 1)
    if gemm.is_scaled:
        return fewer
    return choose(is_warpgroup(kind), c.num_stages, fewer)


def _shared_bytes(c: Columns, gemm: Gemm, kind: Number, tile: Tile, staged: Number) -> Number:
    """Shared memory a block: buffers, scale scratch, widened operand on sm_90, TMA barriers.

    Source: facts, hardware 5.2 and 5.3b.
    """
    extra = choose(c.is_tma, 520, 0)
    # The finished tile is rearranged in shared memory; a persistent loop's buffers are never free for it.
    extra = extra + choose(c.is_persistent, c.block_m * c.block_n * gemm.output_bytes / gemm.n, 0)
    if gemm.is_promoted:
        extra = extra + 512
    if gemm.is_scaled:
        scratch = larger(c.block_k / 128, 0.5) * 512
        widened = tile.n_side * c.block_k * 2
        extra = extra + choose(is_converted(kind, gemm), widened, scratch)
    return upward(staged + extra)


def _registers(tile: Tile, gemm: Gemm, kind: Number) -> Number:
    """Registers wanted, which may be more than there are. Source: module docstring."""
    acc, copies = tile.accumulators, tile.copies
    if gemm.is_promoted:
        loop = 32 + copies + choose(is_warp_level(kind), 2.0, 3.06) * acc
        return loop
    through_registers = 25 + 2.8 * copies + 1.7 * acc
    in_registers = 26 + 2.9 * copies + acc
    # Results in tensor memory reach registers only in the epilogue, after the pointers are gone.
    in_memory = larger(26 + 2.9 * copies, 40 + acc)
    return choose(
        is_warp_level(kind),
        through_registers,
        choose(is_tensor_memory(kind), in_memory, in_registers),
    )


def _spilled_words(registers: Number, tile: Tile) -> Number:
    over = larger(registers - _MOST_REGISTERS, 0)
    # Accumulators that alone fill the registers are all spilled.
    whole = choose(tile.accumulators >= 250, tile.accumulators, 0)
    return upward(choose(over > 0, larger(over / 2, whole), 0))


def _tmem_columns(c: Columns, tile: Tile, gemm: Gemm) -> Number:
    """Source: facts, hardware 5.3b: two columns a result column with block scales, at least 32.

    A persistent loop has the next tile's results beside the last one's, unless each k-tile's product
    leaves tensor memory anyhow (512 columns for bf16 128 x 256: Triton 3.9, sm_107).
    """
    columns = tile.n_side * (2 if gemm.is_scaled else 1) * tile.m_padded / 128
    if not gemm.is_promoted:
        columns = columns * choose(c.is_persistent, 2, 1)
    return smaller(larger(columns, 32), 512)


def instructions(c: Columns, gemm: Gemm, tile: Tile, kind: Number, count: Number) -> Number:
    """SASS instructions of a k-tile in one warp, spills left out. Source: module docstring."""
    own = _tile_instructions(c, gemm, tile, kind, count)
    return own + choose(c.is_persistent, _PERSISTENT_INSTRUCTIONS, 0)


def _tile_instructions(c: Columns, gemm: Gemm, tile: Tile, kind: Number, count: Number) -> Number:
    acc, copies = tile.accumulators, tile.copies
    if gemm.is_promoted:
        added = 2.4 * acc + choose(is_tensor_memory(kind), acc / 8, 0)
        base = choose(is_warp_level(kind), 72 + 8.0 * count, 75 + 4.1 * copies + 3.0 * count)
        return base + added
    base = choose(
        is_warp_level(kind),
        48 + 4.8 * copies + 2.0 * count,
        choose(
            is_tensor_memory(kind),
            60 + 5.8 * copies + 4.0 * count,
            25 + 5.8 * copies + 6.9 * count,
        ),
    )
    if not gemm.is_scaled:
        return base
    threads = tile.warps * 32
    scales = (c.block_n + choose(gemm.activation_bits == 8, c.block_m, 0)) * c.block_k / 32
    # A byte load with its address, and a byte moved, for each scale (facts, hardware 5.5).
    base = base + 6.0 * scales / threads
    # Widening: two FP4 elements a conversion, one multiply and one store each.
    widened = c.block_n * c.block_k + choose(gemm.activation_bits == 8, c.block_m * c.block_k, 0)
    return base + choose(is_converted(kind, gemm), 1.5 * widened / threads, 0)


def epilogue_instructions(gemm: Gemm, tile: Tile, stages: Number) -> Number:
    """Instructions of a warp outside the k-loop. Source: module docstring; fused ones inferred."""
    filled = tile.copies * (20 + 3.4 * stages)
    each = 10.0 if gemm.is_promoted else 4.0
    if gemm.is_fused:
        each += 12.0  # sigmoid, product, clamp, largest of a group, quantise
    return 300 + filled + each * tile.accumulators
