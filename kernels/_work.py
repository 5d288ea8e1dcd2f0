"""Floors that every MoE kernel shares: operations and bytes of the two GEMMs and of the glue."""

from __future__ import annotations

from ..search_spaces import (
    WEIGHT_FORMATS,
    Problem,
    Unit,
    expected_active_experts,
    expected_rows,
)
from ._kernel import Work


def gemm_work(problem: Problem, unit: Unit) -> Work:
    """Return the expected work of one GEMM, activations read once, each output written once.

    FLOPs = 2 * rows * N * K. Bytes = active experts * weights[N, K] with scales
    + rows in the activation format + rows of the output (the intermediate in the activation format after
    gate_up, bf16 after down).

    Source: facts, moe-kernels 5.1.
    """
    rows = expected_rows(problem)
    columns, depth = problem.gemm(unit)
    weights = expected_active_experts(problem) * problem.weights.bytes_of(columns, depth)
    inputs = rows * problem.activations.bytes_of(1, depth)
    if unit is Unit.GATE_UP:
        outputs = rows * problem.activations.bytes_of(1, problem.local_intermediate)
        inputs = min(inputs, problem.tokens * problem.activations.bytes_of(1, depth))
    else:
        outputs = rows * WEIGHT_FORMATS["bf16"].bytes_of(1, columns)
    return Work(
        flops=2.0 * rows * columns * depth,
        min_bytes=weights + inputs + outputs,
        weight_bytes=weights,
    )


def glue_work(problem: Problem) -> Work:
    """Return the expected work of routing, quantising the input and combining the output.

    Bytes = tokens [T, H] bf16 read and written in the activation format, rows [R, H] bf16 read by the
    combine, [T, H] bf16 written, ids and weights read.
    """
    rows = expected_rows(problem)
    hidden = problem.shape.hidden
    wide = WEIGHT_FORMATS["bf16"].bytes_of(1, hidden)
    narrow = problem.activations.bytes_of(1, hidden)
    quantise = problem.tokens * (wide + narrow)
    combine = rows * wide + problem.tokens * wide
    ids = problem.tokens * problem.shape.top_k * (4 + 4)
    return Work(
        flops=2.0 * rows * hidden,
        min_bytes=quantise + combine + ids,
        weight_bytes=0.0,
    )
