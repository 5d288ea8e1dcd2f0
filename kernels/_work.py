"""Floors that every MoE kernel shares: operations and bytes of the two GEMMs and of the glue."""

from __future__ import annotations

from ..search_spaces import Problem, Unit, expected_active_experts, expected_rows
from ._kernel import Work


def gemm_work(problem: Problem, unit: Unit) -> Work:
    """Return the expected work of one GEMM, activations read once, each output written once.

    FLOPs = 2 * rows * N * K. Bytes = active experts * weights[N, K] with scales
    + rows in the activation format + rows of the output (the intermediate in the activation format after
    gate_up, bf16 after down).

    Source: facts, moe-kernels 5.1.
    """
    n, k = problem.gemm(unit)
    rows = expected_rows(problem)
    weights = expected_active_experts(problem) * problem.weights.bytes_of(n, k)
    # A token's row need be read once, however many experts take it.
    read = min(problem.tokens, rows) if unit is Unit.GATE_UP else rows
    out = 2.0 * n
    if unit is Unit.GATE_UP:
        out = float(problem.activations.bytes_of(1, problem.local_intermediate))
    rows_bytes = read * problem.activations.bytes_of(1, k) + rows * out
    return Work(flops=2.0 * rows * n * k, min_bytes=weights + rows_bytes, weight_bytes=weights)


def glue_work(problem: Problem) -> Work:
    """Return the expected work of routing, quantising the input and combining the output.

    Bytes = tokens with a local expert, bf16 [T, H], read and written in the activation format; rows [R, H]
    bf16 read by the combine and [T, H] bf16 written; expert ids read.
    """
    rows, hidden = expected_rows(problem), problem.shape.hidden
    tokens = min(problem.tokens, rows)
    quantised = 2 * tokens * hidden + tokens * problem.activations.bytes_of(1, hidden)
    combined = 2 * rows * hidden + 2 * tokens * hidden
    ids = 4 * problem.tokens * problem.shape.top_k
    return Work(flops=2.0 * rows * hidden, min_bytes=quantised + combined + ids, weight_bytes=0.0)
