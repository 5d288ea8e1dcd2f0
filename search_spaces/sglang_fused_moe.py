"""The space of SGLang's fused-MoE Triton kernel, with that engine's semantics.

Unlike vLLM's, its two GEMMs may have configs of their own (`_down` files) as long as they share BLOCK_SIZE_M:
both read one alignment of the routes. A k-tile must lie within one scale block, and nothing is clamped.
Parameters are spelled as vLLM's (`fused_moe.ENGINE_NAMES`).
Source: facts, engines 1.4 and 2.2 (SGLang 0.5.23, fused_moe_triton_config.py and its tuners).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import InvalidInput
from .config import LaunchConfig, Value
from .problem import Problem, Unit
from .space import Constraint, Parameter, Point, Space, integer

if TYPE_CHECKING:  # only attributes of the GPU are read
    from ..topology import Gpu

# The grid of SGLang's tuners (1,920 points), and beside it what its defaults take: block_k 32 and group_m 8.
_AXES: tuple[tuple[str, tuple[Value, ...], str], ...] = (
    ("block_m", (16, 32, 64, 128, 256), "tokens of a tile, the same in both GEMMs"),
    ("block_n", (32, 64, 128, 256), "weight rows of a tile"),
    ("block_k", (32, 64, 128, 256), "elements of a k-tile"),
    ("group_m", (1, 8, 16, 32, 64), "token tiles that share a weight tile in the L2"),
    ("num_warps", (4, 8), "warps of a block"),
    ("num_stages", (2, 3, 4, 5), "pipeline stages (buffers: one less)"),
)
_BLOCK = 128


def space(problem: Problem, unit: Unit, gpu: Gpu) -> Space:
    """Return the space of one GEMM.

    Raises:
        InvalidInput: the unit is no GEMM, or the engine's kernel has no such format.
    """
    problem.gemm(unit)
    is_fp8 = _is_fp8(problem)
    return Space(
        name=f"sglang_fused_moe {unit.value} on {gpu.name}",
        parameters=tuple(Parameter(name=n, values=v, meaning=m) for n, v, m in _AXES),
        constraints=tuple(_constraints(is_fp8, gpu.shared_memory_limit("default"))),
        seeds=tuple(_rule(problem, tokens) for tokens in (1, 1024)),
    )


def default(problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
    """Return what the engine launches when it finds no table.

    Raises:
        InvalidInput: the unit is no GEMM, or the engine's kernel has no such format.
    """
    problem.gemm(unit)
    _is_fp8(problem)
    return _rule(problem, problem.tokens)


def _constraints(is_fp8: bool, limit: int) -> list[Constraint]:
    element = 1 if is_fp8 else 2

    def fits(point: Point) -> bool:
        rows = integer(point, "block_m") + integer(point, "block_n")
        stage = rows * integer(point, "block_k") * element
        return (integer(point, "num_stages") - 1) * stage <= limit

    shared = Constraint(
        name="shared memory",
        reason=f"the buffers alone are over the {limit} bytes that the engine's blocks can have",
        on=("block_m", "block_n", "block_k", "num_stages"),
        holds=fits,
    )
    if not is_fp8:
        return [shared]
    scaled = Constraint(
        name="fp8 scale block",
        reason="one weight scale covers 128 elements of K, and scales are applied per k-tile",
        on=("block_k",),
        holds=lambda point: _BLOCK % integer(point, "block_k") == 0,
    )
    return [scaled, shared]


def _is_fp8(problem: Problem) -> bool:
    weights = problem.shape.weights
    if weights not in ("bf16", "fp8_block128"):
        raise InvalidInput(
            f"weights of {problem.shape.model!r} are {weights}: SGLang's fused-MoE kernel must have "
            "bf16 or fp8; tune megamoe instead"
        )
    return weights == "fp8_block128"


def _rule(problem: Problem, tokens: int) -> LaunchConfig:
    """Return `get_default_config` of SGLang 0.5.23; what it leaves out is Triton's 4 warps, 3 stages."""
    if _is_fp8(problem):
        tile = {"block_m": 64, "block_n": _BLOCK, "block_k": _BLOCK, "group_m": 32}
    elif tokens <= problem.local_experts:
        tile = {"block_m": 16, "block_n": 32, "block_k": 64, "group_m": 1}
    else:
        tile = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8}
    return LaunchConfig.of(tile, num_warps=4, num_stages=3)
