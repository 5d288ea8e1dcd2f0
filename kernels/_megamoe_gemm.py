# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The grouped GEMM of megamoe: one Triton source for both GEMMs, every format and every axis.

Rows are token-expert pairs sorted by expert without padding. A tile of the schedule is (expert,
first row); it ends at the expert's last row or after BLOCK_M rows. All matrices are contiguous;
the grid is sized for the capacity and programs beyond the live tiles leave at once.

Weights are [experts, n, k] (mxfp4: [experts, n, k/2], low nibble first). Gated w13 has its rows
interleaved, gate 0, up 0, gate 1, up 1, ..., so that one tile holds both halves of its output
columns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# The largest finite e4m3 number.
E4M3_MAX = tl.constexpr(448.0)
# Whether this process imported triton with TRITON_INTERPRET=1. The interpreter of 3.9 multiplies
# bf16 wrongly, truncates to bf16, loses the carry when it rounds to e4m3 and has no SM ids. So
# there dots of bf16 are made in float32 (float16 where scaled), numbers are rounded before they
# are cast, domains come from the program id.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def follow():
    """Wait until the launch before this one is complete, then let the next one's programs start.

    Every program of every kernel begins with this. Launched with `launch_pdl`, a program then takes its
    place on an SM while the launch before drains, and no launch is two ahead: a program that runs has all
    launches before it complete, since the one before waited too. Launched without, it does nothing.
    """
    if not INTERPRETED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def to_e8m0(amax):
    """Return the exponent byte of the smallest power of two >= amax / 448, and 1 / that power."""
    bits = (amax / E4M3_MAX).to(tl.int32, bitcast=True)
    exponent = tl.minimum(tl.maximum((bits + 0x7FFFFF) >> 23, 1), 253)
    return exponent.to(tl.uint8), ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _round_bits(value, DROPPED: tl.constexpr):
    """Round float32 to nearest even with DROPPED bits fewer."""
    bits = value.to(tl.int32, bitcast=True)
    bits += (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
    return (bits & (-1 << DROPPED)).to(tl.float32, bitcast=True)


@triton.jit
def to_bf16(value):
    """Round float32 to bf16."""
    if INTERPRETED:
        value = _round_bits(value, 16)
    return value.to(tl.bfloat16)


@triton.jit
def to_e4m3(value):
    """Round float32 to e4m3, saturating."""
    value = tl.minimum(tl.maximum(value, -E4M3_MAX), E4M3_MAX)
    if INTERPRETED:
        # Below 2^-6 the grid is 2^-9: adding 1.5 * 2^14 leaves 2^-9 as float32's last bit.
        small = (value + 24576.0) - 24576.0
        value = tl.where(tl.abs(value) < 0.015625, small, _round_bits(value, 20))
    return value.to(tl.float8e4nv)


@triton.jit
def store_quantised(
    value, out, out_scale, rows, row_live, column0, width,
    FORMAT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Store float32 `value` [ROWS, COLUMNS] in columns column0.. of `out` [*, width], with scales.

    `value` is 0 in columns at or beyond `width`.
    """
    columns = column0 + tl.arange(0, COLUMNS)
    live = row_live[:, None] & (columns < width)[None, :]
    places = out + rows.to(tl.int64)[:, None] * width + columns[None, :]
    if FORMAT == "bf16":
        tl.store(places, to_bf16(value), mask=live)
    else:
        groups = tl.reshape(value, (ROWS, COLUMNS // GROUP, GROUP))
        amax = tl.max(tl.abs(groups), axis=2)
        if FORMAT == "mxfp8":
            scale, inverse = to_e8m0(amax)
        else:
            scale = tl.maximum(amax, 1e-10) / E4M3_MAX
            inverse = 1.0 / scale
        stored = tl.reshape(to_e4m3(groups * inverse[:, :, None]), (ROWS, COLUMNS))
        tl.store(places, stored, mask=live)
        scales = tl.cdiv(width, GROUP)
        index = column0 // GROUP + tl.arange(0, COLUMNS // GROUP)
        tl.store(
            out_scale + rows.to(tl.int64)[:, None] * scales + index[None, :],
            scale,
            mask=row_live[:, None] & (index < scales)[None, :],
        )


@triton.jit
def activate(
    gate, up, KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr, SHIFT: tl.constexpr
):
    """Return the gated activation in float32."""
    if LIMIT is not None:
        gate = tl.minimum(gate, LIMIT)
        up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
    if KIND == "swiglu":
        hot = gate * tl.sigmoid(ALPHA * gate)
    else:
        # gelu in its tanh form: (1 + tanh(z)) / 2 = sigmoid(2 z)
        hot = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return hot * (up + SHIFT)


@triton.jit
def swizzle(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return (m, n) of a tile: bands of GROUP_M row tiles, row tiles first within a band."""
    per_band = GROUP_M * tiles_n
    band = tile // per_band
    height = tl.minimum(tiles_m - band * GROUP_M, GROUP_M)
    within = tile - band * per_band
    return band * GROUP_M + within % height, within // height


@triton.jit
def take_ticket(sm_domain, tickets, tiles_m, tiles_first, tiles_second):
    """Return (half, tile within the half) for this program, or tile -1 when nothing is left.

    A program takes from the half of its own locality domain, then steals from the other. `tickets`
    holds a counter for each half and one of programs that have drawn; the last to draw sets all
    three back to 0, so a launch finds them as it needs them. There are at least as many programs
    as tiles, and only a program that found both halves empty draws none: so every tile is taken
    exactly once.
    """
    if INTERPRETED:
        half = tl.program_id(0) % 2
    else:
        sm = tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=True, pack=1
        )
        half = tl.load(sm_domain + sm)
    own = tiles_m * tl.where(half == 0, tiles_first, tiles_second)
    tile = tl.atomic_add(tickets + half, 1)
    if tile >= own:
        half = 1 - half
        own = tiles_m * tl.where(half == 0, tiles_first, tiles_second)
        tile = tl.atomic_add(tickets + half, 1)
        tile = tl.where(tile < own, tile, -1)
    drawn = tl.atomic_add(tickets + 2, 1)
    if drawn == tl.num_programs(0) - 1:
        tl.atomic_xchg(tickets, 0)
        tl.atomic_xchg(tickets + 1, 0)
        tl.atomic_xchg(tickets + 2, 0)
    return half, tile


@triton.jit
def multiply_tile(
    pid_m, pid_n,
    x, x_scale, w, w_scale, bias, row_weights, out, out_scale,
    routes, offsets, tile_expert, tile_row, n, k,
    WEIGHTS: tl.constexpr, ACTIVATIONS: tl.constexpr, X_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SWAP_AB: tl.constexpr, TMA: tl.constexpr, EVEN_K: tl.constexpr, TOP_K: tl.constexpr,
    GATE_UP: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr, LIMIT: tl.constexpr,
    SHIFT: tl.constexpr, OUT_GROUP: tl.constexpr,
):  # fmt: skip
    """Compute and store one tile of `grouped_gemm`, whose arguments these are."""
    GATED: tl.constexpr = GATE_UP and KIND != "relu2"
    expert = tl.load(tile_expert + pid_m).to(tl.int64)
    row0 = tl.load(tile_row + pid_m)
    row_end = tl.load(offsets + expert + 1)
    rows = row0 + tl.arange(0, BLOCK_M)
    row_live = rows < row_end
    # Rows and columns past the end read the last one again: always valid memory, never stored.
    source = tl.minimum(rows, row_end - 1)
    if GATE_UP and not TMA:
        source = tl.load(routes + source) // TOP_K
    source = source.to(tl.int64)
    column0 = pid_n * BLOCK_N
    columns = column0 + tl.arange(0, BLOCK_N)
    w_rows = expert * n + tl.minimum(columns, n - 1)

    PACK: tl.constexpr = 2 if WEIGHTS == "mxfp4" else 1
    ks = tl.arange(0, BLOCK_K)
    kws = tl.arange(0, BLOCK_K // PACK)
    if not TMA:
        x_places = x + source[:, None] * k + ks[None, :]
        w_places = w + w_rows[:, None] * (k // PACK) + kws[None, :]
    if WEIGHTS == "fp8_block128":
        k_blocks = tl.cdiv(k, 128)
        x_scales = x_scale + source * tl.cdiv(k, X_GROUP)
        # A tile spans at most two blocks of weight rows: gate and up, or two neighbours.
        TWO: tl.constexpr = GATED or BLOCK_N > 128
        if GATED:
            blocks = tl.cdiv(n // 2, 128)
            s0_places = w_scale + (expert * 2 * blocks + column0 // 256) * k_blocks
            s1_places = s0_places + blocks * k_blocks
            in_second = tl.arange(0, BLOCK_N) % 2 == 1
        else:
            blocks = tl.cdiv(n, 128)
            s0_places = w_scale + (expert * blocks + column0 // 128) * k_blocks
            s1_places = (
                w_scale + (expert * blocks + tl.minimum(column0 // 128 + 1, blocks - 1)) * k_blocks
            )
            in_second = tl.arange(0, BLOCK_N) >= 128
    if WEIGHTS == "mxfp4":
        groups = tl.arange(0, BLOCK_K // 32)
        ws_places = w_scale + w_rows[:, None] * (k // 32) + groups[None, :]
        if ACTIVATIONS == "mxfp8":
            xs_places = x_scale + source[:, None] * (k // 32) + groups[None, :]

    if SWAP_AB:
        acc = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)

    for step in range(0, tl.cdiv(k, BLOCK_K)):
        k0 = step * BLOCK_K
        if TMA:
            x_tile = x.load([row0, k0])
            w_tile = w.load([(expert * n).to(tl.int32) + column0, k0 // PACK])
        elif EVEN_K:
            x_tile = tl.load(x_places + k0)
            w_tile = tl.load(w_places + k0 // PACK)
        else:
            x_tile = tl.load(x_places + k0, mask=(k0 + ks < k)[None, :], other=0.0)
            w_live = (k0 // PACK + kws < k // PACK)[None, :]
            if PACK == 2:
                w_tile = tl.load(w_places + k0 // PACK, mask=w_live, other=0)
            else:
                w_tile = tl.load(w_places + k0, mask=w_live, other=0.0)

        if WEIGHTS == "mxfp4":
            if EVEN_K:
                ws = tl.load(ws_places + k0 // 32)
            else:
                group_live = (k0 // 32 + groups < k // 32)[None, :]
                ws = tl.load(ws_places + k0 // 32, mask=group_live, other=0)
            if ACTIVATIONS == "mxfp8":
                if EVEN_K:
                    xs = tl.load(xs_places + k0 // 32)
                else:
                    xs = tl.load(xs_places + k0 // 32, mask=group_live, other=0)
                if SWAP_AB:
                    acc = tl.dot_scaled(
                        w_tile, ws, "e2m1", x_tile.T, xs, "e4m3", acc, fast_math=True
                    )
                else:
                    acc = tl.dot_scaled(
                        x_tile, xs, "e4m3", w_tile.T, ws, "e2m1", acc, fast_math=True
                    )
            elif INTERPRETED:
                x_half = x_tile.to(tl.float32).to(tl.float16)
                if SWAP_AB:
                    acc = tl.dot_scaled(w_tile, ws, "e2m1", x_half.T, None, "fp16", acc)
                else:
                    acc = tl.dot_scaled(x_half, None, "fp16", w_tile.T, ws, "e2m1", acc)
            elif SWAP_AB:
                acc = tl.dot_scaled(
                    w_tile, ws, "e2m1", x_tile.T, None, "bf16", acc, fast_math=True
                )
            else:
                acc = tl.dot_scaled(
                    x_tile, None, "bf16", w_tile.T, ws, "e2m1", acc, fast_math=True
                )
        elif WEIGHTS == "fp8_block128":
            xs = tl.load(x_scales + k0 // X_GROUP)
            s0 = tl.load(s0_places + k0 // 128)
            if TWO:
                s1 = tl.load(s1_places + k0 // 128)
                column_scale = tl.where(in_second, s1, s0)
            else:
                xs = xs * s0
            # Scales are multiplied with each other first: a register's column is known at compile time, so
            # few products are left and each accumulator costs one fused multiply-add.
            if SWAP_AB:
                scale = xs[None, :]
                if TWO:
                    scale = scale * column_scale[:, None]
                acc += tl.dot(w_tile, x_tile.T) * scale
            else:
                scale = xs[:, None]
                if TWO:
                    scale = scale * column_scale[None, :]
                acc += tl.dot(x_tile, w_tile.T) * scale
        else:
            if INTERPRETED:
                x_tile = x_tile.to(tl.float32)
                w_tile = w_tile.to(tl.float32)
            if SWAP_AB:
                acc = tl.dot(w_tile, x_tile.T, acc, input_precision="ieee")
            else:
                acc = tl.dot(x_tile, w_tile.T, acc, input_precision="ieee")

    if SWAP_AB:
        acc = tl.trans(acc)
    if row_weights is not None:
        route = tl.load(routes + rows, mask=row_live, other=0)
        acc = acc * tl.load(row_weights + route)[:, None]
    if bias is not None:
        acc += tl.load(bias + w_rows)[None, :]
    if GATE_UP:
        WIDTH: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
        if GATED:
            gate, up = tl.split(tl.reshape(acc, (BLOCK_M, WIDTH, 2)))
            value = activate(gate, up, KIND, ALPHA, LIMIT, SHIFT)
            out_n = n // 2
        else:
            positive = tl.maximum(acc, 0.0)
            value = positive * positive
            out_n = n
        out_columns = pid_n * WIDTH + tl.arange(0, WIDTH)
        value = tl.where((out_columns < out_n)[None, :], value, 0.0)
        store_quantised(
            value, out, out_scale, rows, row_live, pid_n * WIDTH, out_n,
            ACTIVATIONS, OUT_GROUP, BLOCK_M, WIDTH,
        )  # fmt: skip
    else:
        places = out + rows.to(tl.int64)[:, None] * n + columns[None, :]
        live = row_live[:, None] & (columns < n)[None, :]
        tl.store(places, to_bf16(acc), mask=live)


@triton.jit
def grouped_gemm(
    x, x_scale, w, w_scale, bias, row_weights, out, out_scale,
    routes, offsets, tile_expert, tile_row, live_tiles, sm_domain, tickets,
    n, k, half,
    WEIGHTS: tl.constexpr, ACTIVATIONS: tl.constexpr, X_GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SWAP_AB: tl.constexpr, TMA: tl.constexpr, SPLIT: tl.constexpr, PERSISTENT: tl.constexpr,
    EVEN_K: tl.constexpr, TOP_K: tl.constexpr, GATE_UP: tl.constexpr, KIND: tl.constexpr, ALPHA: tl.constexpr,
    LIMIT: tl.constexpr, SHIFT: tl.constexpr, OUT_GROUP: tl.constexpr,
):  # fmt: skip
    """Multiply every expert's rows with its weights: rows x k times [n, k] transposed.

    Args:
        x: Pointer or TMA descriptor of rows [*, k]; gate_up with pointers reads them in token
            order.
        x_scale: fp8_block128 float32 [*, k / X_GROUP]; mxfp8 uint8 [*, k / 32]; bf16 None.
        w: Pointer or TMA descriptor of weights, [experts, n, k] or, as a descriptor, [experts * n,
            k].
        w_scale: fp8_block128 float32, one a 128 x 128 block of the matrices before interleaving:
            gated gate_up [experts, 2, n/2/128, k/128], else [experts, n/128, k/128], rounded up;
            mxfp4 uint8 [experts, n, k / 32]; bf16 None.
        bias: float32 [experts, n], interleaved like w, or None.
        row_weights: float32 by route, multiplied with the accumulator (the routed weight stands on
            the input), or None.
        out: gate_up: rows of n/2 (non-gated: n) in the activation format; down: bf16 rows of n.
        out_scale: Scales of out, or None.
        routes: int32, route (token * TOP_K + slot) of each row.
        offsets: int32 [experts + 1], first row of each expert.
        tile_expert: int32, expert of each row tile.
        tile_row: int32, first row of each row tile.
        live_tiles: int32 [1].
        sm_domain: int32, locality domain by SM id (SPLIT), or None.
        tickets: int32 [3], 0 (SPLIT), or None.
        n: Rows of the weight matrix.
        k: Columns of the weight matrix.
        half: First column of n that belongs to the second half, a multiple of BLOCK_N (SPLIT).
        WEIGHTS: Weight format.
        ACTIVATIONS: Activation format.
        X_GROUP: Elements along k that share a scale of x (fp8_block128).
        BLOCK_M: Rows a tile.
        BLOCK_N: Weight rows a tile; gate and up count separately.
        BLOCK_K: Elements a step.
        GROUP_M: Row tiles a band of the raster.
        SWAP_AB: Weights stand on the M side of the instruction.
        TMA: x and w are descriptors, x is in row order.
        SPLIT: Columns in two halves, each served first by its own locality domain.
        PERSISTENT: A program walks over tiles, as many apart as there are programs; loads of the next tile
            are in flight during the epilogue. Else a program has one tile.
        EVEN_K: BLOCK_K divides k.
        TOP_K: Experts a token.
        GATE_UP: Fuse bias, activation and requantisation; else store plain bf16 rows.
        KIND: Activation.
        ALPHA: Activation parameter.
        LIMIT: Activation parameter.
        SHIFT: Activation parameter.
        OUT_GROUP: Output elements that share a scale.
    """
    follow()
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles_m = tl.load(live_tiles)
    if PERSISTENT:
        tl.assume(k > 0)
        for tile in tl.range(
            tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True
        ):
            pid_m, pid_n = swizzle(tile, tiles_m, tiles_n, GROUP_M)
            multiply_tile(
                pid_m, pid_n, x, x_scale, w, w_scale, bias, row_weights, out, out_scale,
                routes, offsets, tile_expert, tile_row, n, k,
                WEIGHTS, ACTIVATIONS, X_GROUP, BLOCK_M, BLOCK_N, BLOCK_K, SWAP_AB, TMA, EVEN_K, TOP_K,
                GATE_UP, KIND, ALPHA, LIMIT, SHIFT, OUT_GROUP,
            )  # fmt: skip
    else:
        if SPLIT:
            first = half // BLOCK_N
            which, tile = take_ticket(sm_domain, tickets, tiles_m, first, tiles_n - first)
            if tile < 0:
                return
            pid_m, pid_n = swizzle(
                tile, tiles_m, tl.where(which == 0, first, tiles_n - first), GROUP_M
            )
            pid_n += which * first
        else:
            tile = tl.program_id(0)
            if tile >= tiles_m * tiles_n:
                return
            pid_m, pid_n = swizzle(tile, tiles_m, tiles_n, GROUP_M)
        multiply_tile(
            pid_m, pid_n, x, x_scale, w, w_scale, bias, row_weights, out, out_scale,
            routes, offsets, tile_expert, tile_row, n, k,
            WEIGHTS, ACTIVATIONS, X_GROUP, BLOCK_M, BLOCK_N, BLOCK_K, SWAP_AB, TMA, EVEN_K, TOP_K,
            GATE_UP, KIND, ALPHA, LIMIT, SHIFT, OUT_GROUP,
        )  # fmt: skip
