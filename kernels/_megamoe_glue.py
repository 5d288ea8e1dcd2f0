# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The kernels around the GEMMs: sort routes by expert, permute and quantise rows, combine.

For few tokens time is a chain of dependent loads, so what can be asked for at once is: loads reach
over the whole capacity and masks that depend on the live tokens come after.

None of them reads anything back to the host, uses an atomic or depends on the order in which
programs run: the same input gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ._megamoe_gemm import follow, store_quantised, to_bf16


@triton.jit
def _schedule(
    tile_expert, tile_row, live_tiles, counts, bins, expert, experts, first_row, block,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Write one expert's row tiles of `block` rows; the last expert writes the number of all."""
    tiles = (counts + block - 1) // block
    first = tl.sum(tl.where(bins < expert, tiles, 0))
    own = tl.sum(tl.where(bins == expert, tiles, 0))
    for start in range(0, own, WIDTH):
        tile = start + tl.arange(0, WIDTH)
        live = tile < own
        tl.store(tile_expert + first + tile, tl.zeros_like(tile) + expert, mask=live)
        tl.store(tile_row + first + tile, first_row + tile * block, mask=live)
    if expert == experts - 1:
        tl.store(live_tiles, first + own)


@triton.jit
def _local(topk_ids, places, total, readable, first_expert, experts):
    """Return the local expert of each route below `total`, and whether there is one.

    Places below `readable` are read.
    """
    own = tl.load(topk_ids + places, mask=places < readable, other=-1) - first_expert
    return own, (places < total) & (own >= 0) & (own < experts)


@triton.jit(
    do_not_specialize=[
        "capacity",
        "first_expert",
        "experts",
        "top_k",
        "gate_up_block_m",
        "down_block_m",
    ]
)
def route(
    topk_ids, live_tokens, routes, inverse, offsets,
    gate_up_expert, gate_up_row, gate_up_tiles, down_expert, down_row, down_tiles,
    capacity, first_expert, experts, top_k, gate_up_block_m, down_block_m,
    BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sort the routes of live tokens by local expert, stably; one program an expert.

    Every program counts all routes, so none waits for another.

    Args:
        topk_ids: int32 [capacity, top_k], global expert of each route; others' experts and -1 are
            skipped.
        live_tokens: int32 [1].
        routes: int32 out, route (token * top_k + slot) of each row.
        inverse: int32 out [capacity, top_k], row of each live route, -1 where the expert is not
            local.
        offsets: int32 out [experts + 1], first row of each expert.
        gate_up_expert: int32 out, expert of each row tile of the gate_up GEMM.
        gate_up_row: int32 out, first row of each of these tiles.
        gate_up_tiles: int32 out [1], their number.
        down_expert: The same for the down GEMM.
        down_row: The same for the down GEMM.
        down_tiles: The same for the down GEMM.
        capacity: Routes of a full step.
        first_expert: Global number of local expert 0.
        experts: Local experts, also the number of programs.
        top_k: Experts a token.
        gate_up_block_m: Rows a tile of the gate_up GEMM.
        down_block_m: Rows a tile of the down GEMM.
        BINS: A power of two above `experts`.
        CHUNK: Routes read at a time.
    """
    follow()
    expert = tl.program_id(0)
    total = tl.load(live_tokens) * top_k
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), dtype=tl.int32)
    for start in range(0, capacity, CHUNK):
        places = start + tl.arange(0, CHUNK)
        own, local = _local(topk_ids, places, total, capacity, first_expert, experts)
        counts += tl.histogram(tl.where(local, own, BINS - 1), BINS)
    counts = tl.where(bins < experts, counts, 0)
    first_row = tl.sum(tl.where(bins < expert, counts, 0))
    tl.store(offsets + expert, first_row)
    if expert == experts - 1:
        tl.store(offsets + experts, tl.sum(counts))
    _schedule(
        gate_up_expert, gate_up_row, gate_up_tiles, counts, bins, expert, experts, first_row,
        gate_up_block_m, 128,
    )  # fmt: skip
    _schedule(
        down_expert, down_row, down_tiles, counts, bins, expert, experts, first_row,
        down_block_m, 128,
    )  # fmt: skip
    row = first_row
    for start in range(0, capacity, CHUNK):
        places = start + tl.arange(0, CHUNK)
        own, local = _local(topk_ids, places, total, capacity, first_expert, experts)
        mine = (local & (own == expert)).to(tl.int32)
        rows = row + tl.cumsum(mine, 0) - 1
        tl.store(routes + rows, places, mask=mine == 1)
        tl.store(inverse + places, rows, mask=mine == 1)
        if expert == 0:
            tl.store(inverse + places, tl.zeros_like(places) - 1, mask=(places < total) & ~local)
        row += tl.sum(mine)


@triton.jit(do_not_specialize=["first_expert", "experts", "top_k"])
def count_routes(
    topk_ids, live_tokens, table, first_expert, experts, top_k,
    BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count the live routes of each local expert, chunk by chunk: large steps, one program a chunk.

    Args:
        topk_ids: int32 [capacity, top_k].
        live_tokens: int32 [1].
        table: int32 out [chunks, BINS].
        first_expert: Global number of local expert 0.
        experts: Local experts.
        top_k: Experts a token.
        BINS: A power of two above `experts`.
        CHUNK: Routes a chunk.
    """
    follow()
    chunk = tl.program_id(0)
    total = tl.load(live_tokens) * top_k
    bins = tl.arange(0, BINS)
    places = chunk * CHUNK + tl.arange(0, CHUNK)
    own, local = _local(topk_ids, places, total, total, first_expert, experts)
    counts = tl.histogram(tl.where(local, own, BINS - 1), BINS)
    tl.store(table + chunk * BINS + bins, tl.where(bins < experts, counts, 0))


@triton.jit(do_not_specialize=["chunks", "experts", "gate_up_block_m", "down_block_m"])
def place_experts(
    table, starts, offsets,
    gate_up_expert, gate_up_row, gate_up_tiles, down_expert, down_row, down_tiles,
    chunks, experts, gate_up_block_m, down_block_m,
    BINS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Turn counts by chunk into first rows and tile schedules; one program an expert.

    Args:
        table: int32 [chunks, BINS], from `count_routes`.
        starts: int32 out [chunks, BINS], row of an expert's first route in each chunk.
        offsets: int32 out [experts + 1].
        gate_up_expert: As in `route`, and so the five after it.
        gate_up_row: int32 out.
        gate_up_tiles: int32 out [1].
        down_expert: int32 out.
        down_row: int32 out.
        down_tiles: int32 out [1].
        chunks: Chunks of the capacity.
        experts: Local experts, also the number of programs.
        gate_up_block_m: Rows a tile of the gate_up GEMM.
        down_block_m: Rows a tile of the down GEMM.
        BINS: A power of two above `experts`.
        STEP: Chunks read at a time.
    """
    follow()
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), dtype=tl.int32)
    for first in range(0, chunks, STEP):
        lines = first + tl.arange(0, STEP)
        block = tl.load(
            table + lines[:, None] * BINS + bins[None, :], mask=(lines < chunks)[:, None], other=0
        )
        counts += tl.sum(block, axis=0)
    first_row = tl.sum(tl.where(bins < expert, counts, 0))
    tl.store(offsets + expert, first_row)
    if expert == experts - 1:
        tl.store(offsets + experts, tl.sum(counts))
    _schedule(
        gate_up_expert, gate_up_row, gate_up_tiles, counts, bins, expert, experts, first_row,
        gate_up_block_m, 128,
    )  # fmt: skip
    _schedule(
        down_expert, down_row, down_tiles, counts, bins, expert, experts, first_row,
        down_block_m, 128,
    )  # fmt: skip
    row = first_row
    for first in range(0, chunks, STEP):
        lines = first + tl.arange(0, STEP)
        own = tl.load(table + lines * BINS + expert, mask=lines < chunks, other=0)
        before = tl.cumsum(own, 0) - own
        tl.store(starts + lines * BINS + expert, row + before, mask=lines < chunks)
        row += tl.sum(own)


@triton.jit(do_not_specialize=["first_expert", "experts", "top_k"])
def place_routes(
    topk_ids, live_tokens, starts, routes, inverse, first_expert, experts, top_k,
    BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write rows and their inverse, stably; one program an expert and chunk.

    Args:
        topk_ids: int32 [capacity, top_k].
        live_tokens: int32 [1].
        starts: int32 [chunks, BINS], from `place_experts`.
        routes: int32 out, route of each row.
        inverse: int32 out [capacity, top_k], row of each live route, -1 where the expert is not local.
        first_expert: Global number of local expert 0.
        experts: Local experts.
        top_k: Experts a token.
        BINS: A power of two above `experts`.
        CHUNK: Routes a chunk.
    """
    follow()
    expert = tl.program_id(0)
    chunk = tl.program_id(1)
    total = tl.load(live_tokens) * top_k
    if chunk * CHUNK >= total:
        return
    places = chunk * CHUNK + tl.arange(0, CHUNK)
    own, local = _local(topk_ids, places, total, total, first_expert, experts)
    mine = (local & (own == expert)).to(tl.int32)
    rows = tl.load(starts + chunk * BINS + expert) + tl.cumsum(mine, 0) - 1
    tl.store(routes + rows, places, mask=mine == 1)
    tl.store(inverse + places, rows, mask=mine == 1)
    if expert == 0:
        tl.store(inverse + places, tl.zeros_like(places) - 1, mask=(places < total) & ~local)


@triton.jit
def quantise_rows(
    x, out, out_scale, inverse, live_tokens, width,
    TOP_K: tl.constexpr, PERMUTE: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    EAGER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store bf16 tokens in the activation format, in token order or in row order.

    A token is read once, also where it goes to several rows.

    Args:
        x: bf16 [tokens, width].
        out: Rows in the activation format.
        out_scale: Their scales, or None.
        inverse: int32 [tokens, TOP_K], row of each route, -1 where the expert is not local (PERMUTE), or None.
        live_tokens: int32 [1].
        width: Columns.
        TOP_K: Experts a token.
        PERMUTE: A token goes to the row of each of its routes; else to its own row.
        FORMAT: Activation format.
        GROUP: Elements that share a scale.
        EAGER: Ask for a token before it is known to live: right where the capacity is small.
        BLOCK: Columns a program.
    """
    follow()
    token = tl.program_id(0)
    live = tl.load(live_tokens)
    if not EAGER:  # noqa: SIM102 decided when compiling
        if token >= live:
            return
    column0 = tl.program_id(1) * BLOCK
    columns = column0 + tl.arange(0, BLOCK)
    place = x + token.to(tl.int64) * width + columns
    value = tl.load(place, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    if PERMUTE:
        for slot in tl.static_range(TOP_K):
            row = tl.load(inverse + token * TOP_K + slot)
            rows = tl.where(token < live, row, -1) + tl.arange(0, 1)
            store_quantised(
                value, out, out_scale, rows, rows >= 0, column0, width, FORMAT, GROUP, 1, BLOCK
            )
    else:
        rows = token + tl.arange(0, 1)
        store_quantised(
            value, out, out_scale, rows, rows < live, column0, width, FORMAT, GROUP, 1, BLOCK
        )


@triton.jit(do_not_specialize=["factor"])
def combine(
    rows, inverse, weights, out, live_tokens, width, factor,
    TOP_K: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add a token's rows in the order of its slots, in float32.

    Args:
        rows: bf16 [rows, width], unweighted outputs of the down GEMM.
        inverse: int32 [capacity, TOP_K], row of each route, -1 = another rank's.
        weights: float32 [capacity, TOP_K].
        out: bf16 [capacity, width].
        live_tokens: int32 [1].
        width: Columns.
        factor: Multiplies the sum.
        TOP_K: Experts a token.
        WEIGHTED: Multiply by the routed weights here (else the input carried them).
        BLOCK: Columns a program.
    """
    follow()
    token = tl.program_id(0)
    live_width = tl.where(token < tl.load(live_tokens), width, 0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    # Unrolled, so that the loads of all slots are in flight together.
    for slot in tl.static_range(TOP_K):
        row = tl.load(inverse + token * TOP_K + slot)
        place = rows + row.to(tl.int64) * width + columns
        read_width = tl.where(row >= 0, live_width, 0)
        value = tl.load(place, mask=columns < read_width, other=0.0).to(tl.float32)
        if WEIGHTED:
            value = value * tl.load(weights + token * TOP_K + slot)
        total += value
    place = out + token.to(tl.int64) * width + columns
    tl.store(place, to_bf16(total * factor), mask=columns < live_width)
