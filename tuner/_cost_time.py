"""Time of one grouped GEMM: busy time of every resource, the chain of one block, their overlap.

A block walks K in k-tiles. Per SM a k-tile costs each of these, with occupancy hiding one block's
waits behind another's work:

- issue: instructions x warps / 4 schedulers;
- mma: padded products at the rate of the instruction's kind and K, or its reads of shared memory;
- shared memory: bytes written and read at 128 B a cycle;
- L2: bytes of both operands at what one SM takes in;
- spills: local loads and stores.

The chain of one block (latency) is its own issue, product and copies, or the wait for a copy by
Little's law: (latency + transfer) / tiles in flight; times waves. Device memory carries unique
bytes. A persistent kernel pays a block's start and last store once, and has no empty blocks. The
parts combine by a p-norm: never less than the largest, so never under a physical floor.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._cost_code import (
    Code,
    Gemm,
    Tile,
    epilogue_instructions,
    is_converted,
    is_tensor_memory,
    is_warp_level,
    is_warpgroup,
    rate_of,
    tile_of,
)
from ._cost_machine import Machine, assumed
from ._cost_numbers import Columns, Number, choose, downward, larger, smaller, upward
from ._cost_work import Load

_SHARED_BYTES_PER_CYCLE = 128.0  # a bank is 4 bytes, there are 32
_SCHEDULERS = 4
# Cycles of the load and store unit for a warp's access to spilled words, which evict other lines.
_LOCAL_CYCLES = 8.0
# The share of the L2 that one stream keeps: other streams and its two sides take the rest.
_L2_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, and counts that explain them; one value or one a config."""

    total: Number
    weights: Number
    activations: Number
    output: Number
    dram: Number
    l2: Number
    mma: Number
    issue: Number
    shared: Number
    spill: Number
    latency: Number
    epilogue: Number
    tail: Number
    idle_blocks: Number
    launch: Number
    waves: Number
    tiles: Number
    occupancy: Number
    padding: Number
    rereads: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Cycles of one k-tile of one block on its SM, by resource."""

    issue: Number
    mma: Number
    shared: Number
    l2: Number
    spill: Number
    chain: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traffic:
    """Seconds at device memory, and the share of a chain's k-tiles that miss the L2."""

    weights: Number
    activations: Number
    output: Number
    rereads: Number
    miss_share: Number


def times_of(
    c: Columns,
    code: Code,
    gemm: Gemm,
    load: Load,
    machine: Machine,
    *,
    row_tiles: Number,
    grid_tiles: Number,
    occupancy: Number,
) -> Times:
    """Return the time of one GEMM and its parts.

    Args:
        c: Configs.
        code: Their compiler facts.
        gemm: The product.
        load: Rows on this rank.
        machine: The GPU.
        row_tiles: Live row tiles at each config's block_m.
        grid_tiles: Row tiles launched.
        occupancy: Blocks an SM holds.
    """
    depth, across = upward(gemm.k / c.block_k), upward(gemm.n / c.block_n)
    tiles = row_tiles * across
    per_sm = larger(tiles / machine.sms, 1.0)
    resident = smaller(occupancy, upward(per_sm))
    waves = tiles / (machine.sms * resident)
    live_rows = load.rows / larger(row_tiles, 1e-9) if gemm.is_engine else c.block_m
    traffic = _traffic(c, gemm, load, machine, row_tiles=row_tiles, waves=waves)
    step = _step(c, code, gemm, machine, live_rows)
    drain, store = _epilogue(c, code, gemm, live_rows)
    wait = _wait(code, step, machine, traffic.miss_share)
    # A persistent program loads its next tile while it finishes one: only its first and last show.
    edges = _prologue(c, machine) + store
    inner = depth * larger(step.chain, wait) + drain * _alone(c.num_warps)
    block = inner + choose(c.is_persistent, 0.0, edges)
    full = larger(waves, 1.0)
    tail = 0.5 * (upward(full) - full) * block
    latency = full * block + tail + choose(c.is_persistent, edges, 0.0)
    second = 1.0 / machine.clock
    dram = traffic.weights + traffic.activations + traffic.output
    parts = {
        "issue": per_sm * (depth * step.issue + drain * c.num_warps / _SCHEDULERS) * second,
        "mma": per_sm * depth * step.mma * second,
        "shared": per_sm * depth * step.shared * second,
        "l2": per_sm * (depth * step.l2 + store) * second,
        "spill": per_sm * depth * step.spill * second,
        "latency": latency * second,
    }
    idle = _idle_blocks(grid_tiles * across - tiles, occupancy, machine)
    idle = choose(c.is_persistent, 0.0, idle)
    return Times(
        total=_overlapped([*parts.values(), dram]) + idle + assumed("launch"),
        weights=traffic.weights,
        activations=traffic.activations,
        output=traffic.output,
        dram=dram,
        **parts,
        epilogue=full * (drain * _alone(c.num_warps) + store) * second,
        tail=tail * second,
        idle_blocks=idle,
        launch=assumed("launch"),
        waves=waves,
        tiles=tiles,
        occupancy=occupancy,
        padding=_padding(c, code, gemm, load, tiles),
        rereads=traffic.rereads,
    )


def _overlapped(parts: list[Number]) -> Number:
    """Return the p-norm of the parts."""
    power = assumed("overlap")
    largest = parts[0]
    for part in parts[1:]:
        largest = larger(largest, part)
    return largest * sum((part / largest) ** power for part in parts) ** (1.0 / power)


def _alone(warps: Number) -> Number:
    """Return cycles an instruction when a block has its SM to itself."""
    return larger(assumed("cycles_per_instruction"), warps / _SCHEDULERS)


def _step(c: Columns, code: Code, gemm: Gemm, machine: Machine, live_rows: Number) -> _Step:
    mma = _mma_cycles(c, code, gemm, machine)
    moved = (live_rows * gemm.activation_bits + c.block_n * gemm.weight_bits) * c.block_k / 8
    l2 = moved / assumed("fill_bytes_per_cycle")
    warp_level = is_warp_level(code.kind)
    read = choose(warp_level, _fragment_bytes(c, gemm, code.kind), 0.0)
    own = larger(code.loop_instructions * _alone(c.num_warps), l2)
    # A wgmma or tcgen05 without per-tile scaling runs on while the next copies are issued; all
    # others are waited for first. Source: order of instructions in the SASS (Triton 3.6, sm_90).
    if gemm.is_promoted:
        chain = mma + own
    else:
        waited = warp_level | is_converted(code.kind, gemm)
        chain = choose(waited, mma + own, larger(mma, own))
    return _Step(
        issue=code.loop_instructions * c.num_warps / _SCHEDULERS,
        mma=mma,
        shared=(moved + read) / _SHARED_BYTES_PER_CYCLE,
        l2=l2,
        spill=code.local_ops * c.num_warps * _LOCAL_CYCLES,
        chain=chain + assumed("barrier") + code.local_ops * assumed("local_access"),
    )


def _mma_cycles(c: Columns, code: Code, gemm: Gemm, machine: Machine) -> Number:
    """Return cycles of a k-tile's products, padding included.

    The rate falls with K below the full one. A wgmma or tcgen05 may instead wait for its operands.
    """
    kind = code.kind
    tile = tile_of(c, gemm, kind)
    full = rate_of(kind, dict(machine.macs))
    shorter = smaller(code.mma_k / rate_of(kind, dict(machine.full_k)), 1.0)
    rate = full * choose(is_warp_level(kind), assumed("mma_sync_share"), shorter)
    products = tile.m_padded * tile.n_side * c.block_k
    # Warps that find no work of their own repeat another's.
    least = choose(is_warp_level(kind), 128 * c.num_warps * c.block_k, 0)
    read = _operand_bytes(c, code, gemm, tile) / machine.operand_bytes
    return larger(larger(products, least) / rate, choose(is_warp_level(kind), 0.0, read))


def _operand_bytes(c: Columns, code: Code, gemm: Gemm, tile: Tile) -> Number:
    """Return bytes that wgmma or tcgen05 read from shared memory in a k-tile.

    Rows of the M side once for each warpgroup beside it, the other side for every 64 (128) rows.
    """
    kind = code.kind
    rows = choose(is_tensor_memory(kind), 128, 64)
    spread = larger(c.num_warps / 4 / larger(tile.m_padded / 64, 1), 1)
    beside = choose(is_warpgroup(kind), spread, 1)
    stored = code.weight_stage_bytes * 8 / (c.block_n * c.block_k)
    weight_bits = choose(is_converted(kind, gemm), 16, stored)
    row_bits = choose(is_converted(kind, gemm), 16, gemm.activation_bits)
    m_bits = choose(c.is_swapped, weight_bits, row_bits)
    n_bits = choose(c.is_swapped, row_bits, weight_bits)
    repeats = tile.m_padded / rows
    bits = tile.m_padded * beside * m_bits + repeats * tile.n_side * n_bits
    return bits * c.block_k / 8


def _fragment_bytes(c: Columns, gemm: Gemm, kind: Number) -> Number:
    """Return bytes that the warps of a mma.sync tile read: columns are dealt to warps first."""
    beside = smaller(c.num_warps, larger(c.block_n / choose(c.block_m <= 16, 8, 16), 1))
    rows = c.block_m * beside * gemm.activation_bits
    columns = c.block_n * (c.num_warps / beside) * gemm.weight_bits
    return (rows + columns) * c.block_k / 8


def _wait(code: Code, step: _Step, machine: Machine, miss_share: Number) -> Number:
    """Return cycles between k-tiles that the memory's latency allows (Little's law)."""
    near, far = assumed("l2_latency"), assumed("memory_latency")
    latency = machine.cycles(near + (far - near) * miss_share)
    return (latency + step.l2) / code.ahead


def _prologue(c: Columns, machine: Machine) -> Number:
    """Return cycles before the first k-tile; a split kernel draws two tickets on top."""
    seconds = assumed("dependent_loads") * assumed("l2_latency") + assumed("memory_latency")
    tickets = choose(c.is_split, 2 * assumed("atomic_latency"), 0.0)
    return machine.cycles(seconds) + machine.cycles(1.0) * tickets


def _epilogue(c: Columns, code: Code, gemm: Gemm, live_rows: Number) -> tuple[Number, Number]:
    """Return a warp's instructions outside the k-loop, and cycles to store the tile."""
    tile = tile_of(c, gemm, code.kind)
    instructions = epilogue_instructions(gemm, tile, c.num_stages)
    stored = live_rows * c.block_n * gemm.output_bytes / gemm.n
    return instructions, stored / assumed("fill_bytes_per_cycle")


def _traffic(
    c: Columns, gemm: Gemm, load: Load, machine: Machine, *, row_tiles: Number, waves: Number
) -> _Traffic:
    """Return what crosses device memory.

    Weights of an active expert once, and again for each later band of row tiles as far as the
    raster's working set is beyond the L2; inputs once, and again for each column of tiles.
    """
    kept = machine.l2_bytes * _L2_SHARE
    each = row_tiles / max(load.active, 1e-9)
    bands = larger(upward(each / c.group_m - 1e-9), 1.0)
    lost = larger(1.0 - kept / (gemm.weight_bytes + c.group_m * c.block_m * gemm.input_bytes), 0.0)
    rereads = (bands - 1.0) * lost
    weights = load.active * gemm.weight_bytes * (1.0 + rereads)
    rows = min(load.rows, load.tokens) if gemm.reads_tokens else load.rows
    across = upward(gemm.n / c.block_n)
    swept = c.group_m * c.block_m * gemm.input_bytes + c.block_n * gemm.k * gemm.weight_bits / 8
    again = (across - 1.0) * larger(1.0 - kept / swept, 0.0)
    inputs = rows * gemm.input_bytes * (1.0 + again)
    output = load.rows * gemm.output_bytes
    stolen = assumed("stolen_share") * smaller(1.0, 1.0 / larger(waves, 1e-9))
    split = (1.0 - stolen) / machine.split_bandwidth + stolen / assumed("remote_bandwidth")
    plain = 1.0 / machine.bandwidth
    # Of the row tiles of an expert the first misses; a chain of waves holds at least one miss.
    share = load.active * (1.0 + rereads) / larger(row_tiles, 1e-9)
    return _Traffic(
        weights=weights * choose(c.is_split, split, plain),
        activations=inputs * plain,
        output=output * plain,
        rereads=rereads,
        miss_share=smaller(larger(share, 1.0 / larger(waves, 1.0)), 1.0),
    )


def _idle_blocks(blocks: Number, occupancy: Number, machine: Machine) -> Number:
    """Return seconds that launched programs beyond the live tiles take, all slots at work."""
    slots = machine.sms * larger(occupancy, 1.0)
    return larger(blocks, 0.0) / slots * assumed("empty_block") / machine.clock


def _padding(c: Columns, code: Code, gemm: Gemm, load: Load, tiles: Number) -> Number:
    """Return products that the instructions make for each one that is wanted."""
    tile = tile_of(c, gemm, code.kind)
    made = tiles * tile.m_padded * tile.n_side * upward(gemm.k / c.block_k) * c.block_k
    return made / max(load.rows * gemm.n * gemm.k, 1e-9)


def whole_blocks(value: Number) -> Number:
    """Return an occupancy as the model uses it: at least one block."""
    return larger(downward(value), 1.0)
