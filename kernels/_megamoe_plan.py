"""Launch plans of megamoe: from a problem, a config and tensors to ready launches.

Grids and buffers are sized for the problem's capacity; counts stay on the device. Whatever changes
with the number of tokens is passed unspecialised, so one compiled kernel serves a whole token
ladder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..errors import InvalidConfig
from ..search_spaces import LaunchConfig, Problem, Unit
from ._kernel import Launch
from ._megamoe_formats import MX_GROUP, Quantised
from ._megamoe_gemm import grouped_gemm
from ._megamoe_glue import (
    combine,
    count_routes,
    place_experts,
    place_routes,
    quantise_rows,
    route,
)
from ._megamoe_inputs import (
    Inputs,
    Matrix,
    Routed,
    Schedule,
    empty_routed,
    empty_rows,
    empty_schedule,
    row_capacity,
    x_group,
)

# The first half of a matrix whose columns are split ends at a multiple of every legal block_n.
SPLIT_GRANULE = 256
# More SM ids than any GPU has: ids need not be dense.
SM_IDS = 1024
# Source: facts, hardware: the same from sm_90 to sm_107 (sm_107: without oversized mode).
REGISTERS_PER_SM = 65536
SHARED_BYTES_PER_SM = 228 * 1024
# More than so many persistent programs on an SM gain nothing over one a tile.
MOST_RESIDENT = 4
# What is only compiled or interpreted has no SMs; so few that each walks over several tiles.
OFFLINE_PROGRAMS = 3
# Columns of a program in glue: a whole token where there are many; less for more programs where few.
GLUE_COLUMNS = (4096, 2048, 1024, 512)
FEW_COLUMNS = 512
# Lanes that may stand idle past the last column before narrower programs are better.
IDLE_LANES = 1.07
ROUTE_CHUNK = 1024
# Above so many routes (of the capacity) two more launches cost less than reading all routes an expert.
FEW_ROUTES = 2048
# FP fusion explicitly, because triton 3.10 changes its default. Every program waits for the launch before
# (`follow`), so it may take its place on an SM while that one drains.
OPTIONS = {"enable_fp_fusion": True, "launch_pdl": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPlan:
    """One GEMM, ready, and what it writes."""

    launch: Launch
    out: Quantised


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """A whole layer, ready, and what it writes: out bf16 [capacity, hidden]."""

    launches: tuple[Launch, ...]
    routed: Routed
    out: Tensor


def act_group(problem: Problem, config: LaunchConfig) -> int:
    """Return how many elements of the intermediate share a scale (0 = none)."""
    if problem.activations.name == "mxfp8":
        return MX_GROUP
    return config.integer("act_group") if problem.activations.scale_columns else 0


def split_column(n: int, block_n: int) -> int:
    """Return the first of n columns that belongs to the second half, a multiple of block_n.

    It does not depend on block_n unless n is that small: halves are placed in memory once.
    """
    granule = SPLIT_GRANULE if n > SPLIT_GRANULE else block_n
    return max(1, round(n / 2 / granule)) * granule


def is_permuted(config: LaunchConfig) -> bool:
    """Say whether gate_up reads its rows sorted by expert (TMA) or in token order (pointers)."""
    return config["load"] == "tma"


def is_persistent(config: LaunchConfig) -> bool:
    """Say whether programs walk over tiles."""
    return config.get("schedule", "tiles") == "persistent"


def check(problem: Problem, unit: Unit, config: LaunchConfig) -> None:
    """Refuse a config that the kernel would compute wrongly or not at all.

    Raises:
        InvalidConfig: with the rule that it breaks.
    """
    n, k = problem.gemm(unit)
    block_n, block_k = config.integer("block_n"), config.integer("block_k")
    group = act_group(problem, config)
    if block_n > SPLIT_GRANULE:
        raise InvalidConfig(f"block_n is {block_n}: must be at most {SPLIT_GRANULE}")
    if unit is Unit.GATE_UP and group:
        width = block_n // 2 if problem.shape.activation.gated else block_n
        if width % group:
            raise InvalidConfig(
                f"block_n {block_n} makes {width} output columns a tile: must be a multiple of "
                f"act_group = {group}"
            )
    if problem.weights.name == "fp8_block128":
        limit = group if unit is Unit.DOWN else 128
        if block_k > limit:
            raise InvalidConfig(
                f"block_k is {block_k}: must be at most {limit}, the elements under one scale"
            )
    if problem.weights.name == "mxfp4" and (k % MX_GROUP or block_k % MX_GROUP):
        raise InvalidConfig(f"k {k} and block_k {block_k} must be multiples of {MX_GROUP}")
    if config["load"] == "tma":
        row_bits = (k * problem.weights.bits, k * problem.activations.bits)
        if any(bits % 128 for bits in row_bits):
            raise InvalidConfig(f"load is 'tma': rows of {k} elements are no multiple of 16 bytes")
    if config["split"] == "domains" and is_persistent(config):
        raise InvalidConfig("split is 'domains': its tickets are drawn by programs of one tile")
    if config["split"] == "domains" and n <= block_n:
        raise InvalidConfig(f"split is 'domains': {n} columns are one tile of {block_n}")


def plan_gemm(
    problem: Problem,
    unit: Unit,
    config: LaunchConfig,
    *,
    rows: Quantised,
    weights: Matrix,
    routed: Routed,
    schedule: Schedule,
    row_weights: Tensor | None,
) -> GemmPlan:
    """Return one GEMM over given buffers; its output is allocated here."""
    check(problem, unit, config)
    n, k = problem.gemm(unit)
    device = rows.data.device
    group = act_group(problem, config)
    out = _empty_output(problem, unit, group, device)
    tma = config["load"] == "tma"
    split = config["split"] == "domains"
    block_m, block_n = config.integer("block_m"), config.integer("block_n")
    block_k = config.integer("block_k")
    stored_k = weights.data.shape[-1]
    x, w = rows.data, weights.data
    if tma:
        x = _descriptor(x, (block_m, block_k))
        w = _descriptor(w.view(-1, stored_k), (block_n, block_k * stored_k // k))
    tiles = schedule.tile_expert.shape[0] * -(-n // block_n)
    args = (
        x, rows.scale, w, weights.scale, weights.bias, row_weights, out.data, out.scale,
        routed.routes, routed.offsets,
        schedule.tile_expert, schedule.tile_row, schedule.live_tiles,
        _sm_domains(device) if split else None,
        torch.zeros(3, dtype=torch.int32, device=device) if split else None,
        n, k, split_column(n, block_n) if split else None,
    )  # fmt: skip
    launch = Launch(
        fn=grouped_gemm,
        grid=(_programs(problem, config, device, tiles),),
        args=args,
        kwargs={
            **_constants(problem, unit, config),
            "num_warps": config.integer("num_warps"),
            "num_stages": config.integer("num_stages"),
            **OPTIONS,
        },
        is_gemm=True,
    )
    return GemmPlan(launch=launch, out=out)


def _programs(problem: Problem, config: LaunchConfig, device: torch.device, tiles: int) -> int:
    """Return the programs of a GEMM: one a tile, or as many as the GPU holds at once."""
    if not is_persistent(config):
        return tiles
    if device.type != "cuda":
        return min(tiles, OFFLINE_PROGRAMS)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return min(tiles, sms * _resident(problem, config))


def _resident(problem: Problem, config: LaunchConfig) -> int:
    """Guess how many programs one SM holds, by registers and buffers; at worst some wait for others."""
    block_m, block_n = config.integer("block_m"), config.integer("block_n")
    threads = 32 * config.integer("num_warps")
    bits = block_m * problem.activations.bits + block_n * problem.weights.bits
    buffers = config.integer("num_stages") * config.integer("block_k") * bits // 8
    # Scaling each k-tile's product holds a second set of accumulators.
    sets = 2 if problem.weights.name == "fp8_block128" else 1
    registers = min(255, 72 + sets * block_m * block_n // threads)
    by_registers = REGISTERS_PER_SM // (registers * threads)
    return max(1, min(by_registers, SHARED_BYTES_PER_SM // buffers, MOST_RESIDENT))


def _constants(problem: Problem, unit: Unit, config: LaunchConfig) -> dict[str, object]:
    """Return the constexprs of `grouped_gemm`."""
    _, k = problem.gemm(unit)
    group = act_group(problem, config)
    gate_up = unit is Unit.GATE_UP
    block_k = config.integer("block_k")
    activation = problem.shape.activation
    return {
        "WEIGHTS": problem.weights.name,
        "ACTIVATIONS": problem.activations.name,
        "X_GROUP": x_group(problem) if gate_up else group,
        "BLOCK_M": config.integer("block_m"),
        "BLOCK_N": config.integer("block_n"),
        "BLOCK_K": block_k,
        "GROUP_M": config.integer("group_m"),
        "SWAP_AB": bool(config["swap_ab"]),
        "TMA": config["load"] == "tma",
        "SPLIT": config["split"] == "domains",
        "PERSISTENT": is_persistent(config),
        "EVEN_K": k % block_k == 0,
        "TOP_K": problem.shape.top_k,
        "GATE_UP": gate_up,
        "KIND": activation.kind,
        "ALPHA": float(activation.alpha),
        "LIMIT": activation.limit,
        "SHIFT": float(activation.up_shift),
        "OUT_GROUP": group if gate_up else 0,
    }


def plan_unit(problem: Problem, unit: Unit, config: LaunchConfig, inputs: Inputs) -> GemmPlan:
    """Return one GEMM over inputs that glue has already prepared."""
    if unit is Unit.GATE_UP:
        rows = inputs.rows(is_permuted(config))
    else:
        rows = inputs.intermediate(act_group(problem, config))
    return plan_gemm(
        problem,
        unit,
        config,
        rows=rows,
        weights=inputs.weights[unit],
        routed=inputs.routed,
        schedule=inputs.schedule(config.integer("block_m")),
        row_weights=_row_weights(problem, unit, inputs),
    )


def plan_layer(
    problem: Problem, configs: Mapping[Unit, LaunchConfig], inputs: Inputs
) -> LayerPlan:
    """Return route, quantise, gate_up, down and combine over buffers of the layer's own."""
    gate_up, down = configs[Unit.GATE_UP], configs[Unit.DOWN]
    routing = _plan_route(problem, configs, inputs)
    permuted = is_permuted(gate_up)
    count = row_capacity(problem) if permuted else problem.capacity
    rows = empty_rows(problem, count, problem.shape.hidden, x_group(problem), str(inputs.device))
    first = plan_gemm(
        problem,
        Unit.GATE_UP,
        gate_up,
        rows=rows,
        weights=inputs.weights[Unit.GATE_UP],
        routed=routing.routed,
        schedule=routing.schedules[Unit.GATE_UP],
        row_weights=_row_weights(problem, Unit.GATE_UP, inputs),
    )
    second = plan_gemm(
        problem,
        Unit.DOWN,
        down,
        rows=first.out,
        weights=inputs.weights[Unit.DOWN],
        routed=routing.routed,
        schedule=routing.schedules[Unit.DOWN],
        row_weights=None,
    )
    out = torch.empty_like(inputs.x)
    launches = (
        *routing.launches,
        _quantise_launch(problem, inputs, routing.routed, rows, permuted=permuted),
        first.launch,
        second.launch,
        _combine_launch(problem, inputs, routing.routed, second.out.data, out),
    )
    return LayerPlan(launches=launches, routed=routing.routed, out=out)


def plan_glue(
    problem: Problem, configs: Mapping[Unit, LaunchConfig], inputs: Inputs
) -> tuple[Launch, ...]:
    """Return route, quantise and combine; the combined rows hold nothing in particular."""
    routing = _plan_route(problem, configs, inputs)
    permuted = is_permuted(configs[Unit.GATE_UP])
    count = row_capacity(problem) if permuted else problem.capacity
    device = str(inputs.device)
    hidden = problem.shape.hidden
    rows = empty_rows(problem, count, hidden, x_group(problem), device)
    done = torch.empty((row_capacity(problem), hidden), dtype=torch.bfloat16, device=device)
    return (
        *routing.launches,
        _quantise_launch(problem, inputs, routing.routed, rows, permuted=permuted),
        _combine_launch(problem, inputs, routing.routed, done, torch.empty_like(inputs.x)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoutePlan:
    launches: tuple[Launch, ...]
    routed: Routed
    schedules: dict[Unit, Schedule]


def _plan_route(
    problem: Problem, configs: Mapping[Unit, LaunchConfig], inputs: Inputs
) -> _RoutePlan:
    device = str(inputs.device)
    routed = empty_routed(problem, device)
    blocks = {unit: configs[unit].integer("block_m") for unit in (Unit.GATE_UP, Unit.DOWN)}
    schedules = {
        unit: empty_schedule(problem, block_m, device) for unit, block_m in blocks.items()
    }
    make = _few_routes if _has_few_routes(problem) else _many_routes
    tiles = tuple(
        tensor
        for schedule in schedules.values()
        for tensor in (schedule.tile_expert, schedule.tile_row, schedule.live_tiles)
    )
    launches = make(problem, inputs, routed, tiles, tuple(blocks.values()))
    return _RoutePlan(launches=launches, routed=routed, schedules=schedules)


def _few_routes(
    problem: Problem,
    inputs: Inputs,
    routed: Routed,
    tiles: tuple[Tensor, ...],
    blocks: tuple[int, ...],
) -> tuple[Launch, ...]:
    experts = problem.local_experts
    args = (
        inputs.topk_ids, inputs.live_tokens, routed.routes, routed.inverse, routed.offsets,
        *tiles, row_capacity(problem), 0, experts, problem.shape.top_k, *blocks,
    )  # fmt: skip
    return (Launch(fn=route, grid=(experts,), args=args, kwargs=_route_options(experts)),)


def _many_routes(
    problem: Problem,
    inputs: Inputs,
    routed: Routed,
    tiles: tuple[Tensor, ...],
    blocks: tuple[int, ...],
) -> tuple[Launch, ...]:
    experts, top_k = problem.local_experts, problem.shape.top_k
    options = _route_options(experts)
    chunks = -(-inputs.topk_ids.numel() // ROUTE_CHUNK)
    shape = (chunks, triton.next_power_of_2(experts + 1))
    table = torch.empty(shape, dtype=torch.int32, device=inputs.device)
    starts = torch.empty_like(table)
    ids, live = inputs.topk_ids, inputs.live_tokens
    steps = {"BINS": options["BINS"], "STEP": 16, "num_warps": 4, **OPTIONS}
    return (
        Launch(
            fn=count_routes,
            grid=(chunks,),
            args=(ids, live, table, 0, experts, top_k),
            kwargs=options,
        ),
        Launch(
            fn=place_experts,
            grid=(experts,),
            args=(table, starts, routed.offsets, *tiles, chunks, experts, *blocks),
            kwargs=steps,
        ),
        Launch(
            fn=place_routes,
            grid=(experts, chunks),
            args=(ids, live, starts, routed.routes, routed.inverse, 0, experts, top_k),
            kwargs=options,
        ),
    )


def _route_options(experts: int) -> dict[str, object]:
    return {
        "BINS": triton.next_power_of_2(experts + 1),
        "CHUNK": ROUTE_CHUNK,
        "num_warps": 4,
        **OPTIONS,
    }


def _has_few_routes(problem: Problem) -> bool:
    return row_capacity(problem) <= FEW_ROUTES


def _glue_columns(problem: Problem) -> int:
    """Return the columns of one program of glue."""
    hidden = problem.shape.hidden
    if _has_few_routes(problem):
        return FEW_COLUMNS
    filled = (b for b in GLUE_COLUMNS if -(-hidden // b) * b <= IDLE_LANES * hidden)
    return next(filled, GLUE_COLUMNS[-1])


def _quantise_launch(
    problem: Problem, inputs: Inputs, routed: Routed, rows: Quantised, *, permuted: bool
) -> Launch:
    hidden = problem.shape.hidden
    block = _glue_columns(problem)
    return Launch(
        fn=quantise_rows,
        grid=(problem.capacity, -(-hidden // block)),
        args=(
            inputs.x, rows.data, rows.scale, routed.inverse if permuted else None,
            inputs.live_tokens, hidden,
        ),
        kwargs={
            "TOP_K": problem.shape.top_k,
            "PERMUTE": permuted,
            "FORMAT": problem.activations.name,
            "GROUP": x_group(problem),
            "EAGER": _has_few_routes(problem),
            "BLOCK": block,
            # 16 elements a thread: 16 bytes of fp8 in one store.
            "num_warps": max(1, block // 512),
            **OPTIONS,
        },
    )  # fmt: skip


def _combine_launch(
    problem: Problem, inputs: Inputs, routed: Routed, rows: Tensor, out: Tensor
) -> Launch:
    hidden = problem.shape.hidden
    block = _glue_columns(problem)
    return Launch(
        fn=combine,
        grid=(problem.capacity, -(-hidden // block)),
        args=(
            rows, routed.inverse, inputs.topk_weights, out, inputs.live_tokens, hidden,
            float(problem.shape.routed_scaling_factor),
        ),
        kwargs={
            "TOP_K": problem.shape.top_k,
            "WEIGHTED": not problem.shape.weight_on_input,
            "BLOCK": block,
            # 8 elements a thread: 16 bytes of bf16 in one load a slot.
            "num_warps": block // 256,
            **OPTIONS,
        },
    )  # fmt: skip


def _row_weights(problem: Problem, unit: Unit, inputs: Inputs) -> Tensor | None:
    """Return the routed weights where the layer puts them on its input rows.

    (w x) W = w (x W): the GEMM multiplies its accumulator, before bias and activation.
    """
    if unit is Unit.GATE_UP and problem.shape.weight_on_input:
        return inputs.topk_weights
    return None


def _empty_output(problem: Problem, unit: Unit, group: int, device: torch.device) -> Quantised:
    rows = row_capacity(problem)
    if unit is Unit.GATE_UP:
        return empty_rows(problem, rows, problem.local_intermediate, group, str(device))
    size = (rows, problem.shape.hidden)
    return Quantised(data=torch.empty(size, dtype=torch.bfloat16, device=device))


def _descriptor(matrix: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(block))


def _sm_domains(device: torch.device) -> Tensor:
    """Return the locality domain of each SM id: the lower and the upper half of the SMs.

    Which SM really stands in which domain is asked from the GPU by a later issue; any table is
    correct, a true one is fast.
    """
    sms = SM_IDS
    if device.type == "cuda":
        sms = torch.cuda.get_device_properties(device).multi_processor_count
    table = torch.arange(SM_IDS, device=device) >= sms // 2
    return table.to(torch.int32)
