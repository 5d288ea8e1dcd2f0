"""Times predicted from compiler facts, the topology and declared assumptions, with their parts.

`predict` reads one variant's report; `rank` orders a whole space before anything is compiled, from
guessed reports, in one pass of numpy; both are the same formulas (_cost_time.py).

No constant is a least-squares fit to times, but the model was developed against the two recorded
H200 landscapes: "overlap", "memory_latency" within its published range, that copies overlap the
issue of instructions, and which waves miss the L2 were decided with their scores in view.
Scores on those two files are therefore not held out; a landscape recorded later is the fair test.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..db import CompileReport, Prediction
from ..errors import InvalidConfig
from ..kernels._kernel import Work
from ..search_spaces import LaunchConfig, Problem, Unit
from ..topology import Gpu
from ._cost_code import KINDS, Code, Gemm, ahead_of, gemm_of, guess, local_ops_of
from ._cost_machine import ASSUMPTIONS, Machine, assumed, machine_of
from ._cost_numbers import Columns, Number, columns_of, distinct, is_engine, table_of
from ._cost_time import Times, times_of
from ._cost_work import load_of

# Version of the formulas; a prediction of another version is stale.
# 1: issue, MMA, L2, shared memory, spills, latency by waves, device memory; p-norm.
# 2: persistent schedules.
VERSION = 2

Floats = NDArray[np.float64]


def guess_report(problem: Problem, unit: Unit, config: LaunchConfig, gpu: Gpu) -> CompileReport:
    """Return what the compiler will likely say; an empty cubin_sha256 marks a guess."""
    machine = machine_of(gpu)
    gemm = _gemm(problem, unit, is_engine(config))
    c = columns_of(config, is_fp8=gemm.is_promoted, arch=machine.arch)
    return _report(guess(c, gemm, machine), c, machine)


def predict(
    problem: Problem,
    unit: Unit,
    config: LaunchConfig,
    report: CompileReport,
    gpu: Gpu,
    rows_per_expert: Sequence[int] | None = None,
) -> Prediction:
    """Return the time of one variant of one GEMM.

    Args:
        problem: What one rank computes.
        unit: gate_up or down.
        config: The variant.
        report: Its compiler facts, or a guess.
        gpu: The target.
        rows_per_expert: One routing's rows; None = expected over the problem's routing.

    Raises:
        InvalidConfig: a block asks for more than an SM of the GPU has.
    """
    machine = machine_of(gpu)
    gemm = _gemm(problem, unit, is_engine(config))
    c = columns_of(config, is_fp8=gemm.is_promoted, arch=machine.arch)
    occupancy = gpu.occupancy(report.registers, report.shared_bytes, report.threads)
    if occupancy < 1:
        raise InvalidConfig(
            f"{unit.value} {config} asks for {report.shared_bytes} B of shared memory, "
            f"{report.registers} registers and {report.threads} threads a block: "
            f"no SM of {gpu.name} can run it"
        )
    load = load_of(problem, (c.block_m,), rows_per_expert)
    times = times_of(
        c,
        _code(report, c, gemm, machine),
        gemm,
        load,
        machine,
        row_tiles=load.tiles_of(c.block_m),
        grid_tiles=load.grid_of(c.block_m),
        occupancy=float(occupancy),
    )
    extra = machine.split_assumptions() if c.is_split else ()
    return Prediction(
        time_us=float(times.total) * 1e6,
        breakdown=_breakdown(times),
        assumptions=machine.assumptions + extra,
        facts=machine.facts,
    )


def rank(
    problem: Problem,
    unit: Unit,
    configs: Sequence[LaunchConfig],
    gpu: Gpu,
    counts: Sequence[int] | None = None,
) -> Floats:
    """Return predicted microseconds of many configs of one kernel before anything is compiled.

    Args:
        problem: What one rank computes.
        unit: gate_up or down.
        configs: Points of one space.
        gpu: The target.
        counts: One routing's rows per expert; None = expected over the problem's routing.

    Returns:
        One time a config; infinite where a block would not fit an SM.
    """
    if not configs:
        return np.empty(0)
    machine = machine_of(gpu)
    gemm = _gemm(problem, unit, is_engine(configs[0]))
    c, code, occupancy = _guessed(tuple(configs), gemm, gpu)
    blocks = distinct(c.block_m)
    load = load_of(problem, blocks, counts)
    row_tiles, grid_tiles = np.empty(len(configs)), np.empty(len(configs))
    for block in blocks:
        here = c.block_m == block
        row_tiles[here], grid_tiles[here] = load.tiles_of(block), load.grid_of(block)
    times = times_of(
        c,
        code,
        gemm,
        load,
        machine,
        row_tiles=row_tiles,
        grid_tiles=grid_tiles,
        occupancy=np.maximum(occupancy, 1.0),
    )
    found: Floats = np.where(occupancy < 1, np.inf, times.total * 1e6)
    return found


def predict_glue(problem: Problem, work: Work, gpu: Gpu) -> Prediction:
    """Return the time of the kernels around the GEMMs: bytes at memory speed, three launches."""
    machine = machine_of(gpu)
    dram = work.min_bytes / machine.bandwidth
    # Each of route, quantise and combine reads, computes and writes once.
    chain = 3 * (assumed("memory_latency") + 2 * assumed("l2_latency"))
    launch = 3 * assumed("launch")
    breakdown = (
        ("dram_us", dram * 1e6),
        ("latency_us", chain * 1e6),
        ("launch_us", launch * 1e6),
        ("tokens", float(problem.tokens)),
    )
    names = ("memory_latency", "l2_latency", "launch")
    return Prediction(
        time_us=(dram + chain + launch) * 1e6,
        breakdown=breakdown,
        assumptions=tuple(ASSUMPTIONS[name] for name in names),
        facts=machine.facts,
    )


@lru_cache(maxsize=256)
def _gemm_cached(problem: Problem, unit: Unit, is_engine_kernel: bool) -> Gemm:
    return gemm_of(problem, unit, is_engine=is_engine_kernel)


def _gemm(problem: Problem, unit: Unit, is_engine_kernel: bool) -> Gemm:
    return _gemm_cached(problem, unit, is_engine_kernel)


@lru_cache(maxsize=8)
def _guessed(
    configs: tuple[LaunchConfig, ...], gemm: Gemm, gpu: Gpu
) -> tuple[Columns, Code, Floats]:
    """Guess all reports and their occupancy: the same for every token count."""
    machine = machine_of(gpu)
    c = table_of(configs, is_fp8=gemm.is_promoted, arch=machine.arch)
    code = guess(c, gemm, machine)
    shape = c.block_m.shape
    wanted = np.stack(
        [
            np.broadcast_to(np.asarray(column, dtype=np.int64), shape)
            for column in (code.registers, code.shared_bytes, c.num_warps * 32)
        ]
    )
    # One number for each triple: registers stay under 2^10, threads under 2^12.
    keys = (wanted[1] << 22) | (wanted[0] << 12) | wanted[2]
    _, first, where = np.unique(keys, return_index=True, return_inverse=True)
    blocks = [gpu.occupancy(*(int(v) for v in wanted[:, i])) for i in first]
    return c, code, np.array(blocks, dtype=np.float64)[where]


def _report(code: Code, c: Columns, machine: Machine) -> CompileReport:
    return CompileReport(
        target=machine.arch,
        registers=int(code.registers),
        spill_bytes=int(code.spill_bytes),
        shared_bytes=int(code.shared_bytes),
        buffers=int(code.buffers),
        stage_bytes=int(code.stage_bytes),
        weight_stage_bytes=int(code.weight_stage_bytes),
        tmem_columns=int(code.tmem_columns),
        mma_kind=KINDS[int(code.kind)],
        mma_k=int(code.mma_k),
        mma_count=int(code.mma_count),
        loop_instructions=int(code.loop_instructions),
        loop_local_ops=int(code.local_ops),
        threads=int(c.num_warps) * 32,
        cubin_sha256="",
        compile_s=0.0,
    )


def _code(report: CompileReport, c: Columns, gemm: Gemm, machine: Machine) -> Code:
    """Read a report; what it leaves open (no SASS, no matrix instruction found) is guessed."""
    guessed = guess(c, gemm, machine)
    known = report.mma_kind in KINDS[:-1] and report.mma_k > 0
    # A persistent loop's body holds the start and the end of a tile too, so its count is none of a k-tile.
    counted = report.loop_instructions > 0 and not c.is_persistent
    local: Number = report.loop_local_ops if counted else local_ops_of(report.spill_bytes)
    plain = guessed.loop_instructions - guessed.local_ops
    return Code(
        kind=KINDS.index(report.mma_kind) if known else guessed.kind,
        mma_k=report.mma_k if known else guessed.mma_k,
        mma_count=report.mma_count,
        registers=report.registers,
        spill_bytes=report.spill_bytes,
        shared_bytes=report.shared_bytes,
        buffers=report.buffers,
        ahead=ahead_of(c, report.buffers or guessed.buffers),
        stage_bytes=report.stage_bytes,
        weight_stage_bytes=report.weight_stage_bytes,
        tmem_columns=report.tmem_columns,
        loop_instructions=report.loop_instructions if counted else plain + local,
        local_ops=local,
    )


def _breakdown(times: Times) -> tuple[tuple[str, float], ...]:
    """Name the parts: microseconds, then counts and ratios."""
    seconds = (
        ("weights_us", times.weights),
        ("activations_us", times.activations),
        ("output_us", times.output),
        ("dram_us", times.dram),
        ("l2_us", times.l2),
        ("mma_us", times.mma),
        ("issue_us", times.issue),
        ("shared_us", times.shared),
        ("spill_us", times.spill),
        ("latency_us", times.latency),
        ("epilogue_us", times.epilogue),
        ("tail_us", times.tail),
        ("idle_blocks_us", times.idle_blocks),
        ("launch_us", times.launch),
    )
    counts = (
        ("waves", times.waves),
        ("tiles", times.tiles),
        ("occupancy", times.occupancy),
        ("padding", times.padding),
        ("weight_rereads", times.rereads),
    )
    return tuple((n, float(v) * 1e6) for n, v in seconds) + tuple((n, float(v)) for n, v in counts)
