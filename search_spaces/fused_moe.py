"""The space of vLLM's own fused-MoE Triton kernel, with that engine's semantics.

One config serves both GEMMs, so both units have the same space. What the engine edits at launch is
canonicalised here: two configs that it launches alike are one.
Source: facts, engines 1.1 and 2.1 (vLLM 0.33, fused_moe.py and benchmark_moe.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..errors import InvalidInput
from .config import LaunchConfig, Value
from .problem import Problem, Unit
from .space import Constraint, Parameter, Point, Space, integer

if TYPE_CHECKING:  # only attributes of the GPU are read
    from ..topology import Gpu

# How the engine spells each parameter.
ENGINE_NAMES = {
    "block_m": "BLOCK_SIZE_M",
    "block_n": "BLOCK_SIZE_N",
    "block_k": "BLOCK_SIZE_K",
    "group_m": "GROUP_SIZE_M",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
_OWN_NAMES = {theirs: ours for ours, theirs in ENGINE_NAMES.items()}
_MEANINGS = {
    "block_m": "tokens of a tile",
    "block_n": "weight rows of a tile",
    "block_k": "elements of a k-tile",
    "group_m": "token tiles that share a weight tile in the L2",
    "num_warps": "warps of a block",
    "num_stages": "pipeline stages (buffers: one less)",
}
# Source: vLLM 0.33, benchmarks/kernels/benchmark_moe.py, 1,920 points.
_GRID: dict[str, tuple[Value, ...]] = {
    "block_m": (16, 32, 64, 128, 256),
    "block_n": (32, 64, 128, 256),
    "block_k": (64, 128, 256),
    "group_m": (1, 16, 32, 64),
    "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}
# block_shape of the block-scaled checkpoints: 128 rows and 128 columns share a scale.
_BLOCK = 128


def space(problem: Problem, unit: Unit, gpu: Gpu) -> Space:
    """Return the space of one GEMM.

    Raises:
        InvalidInput: the unit is no GEMM, or the engine's kernel has no such format.
    """
    problem.gemm(unit)
    is_fp8 = _is_fp8(problem)
    limit = gpu.shared_memory_limit("default")
    element = 1 if is_fp8 else 2

    def fits(point: Point) -> bool:
        block_k = min(integer(point, "block_k"), _BLOCK) if is_fp8 else integer(point, "block_k")
        rows = integer(point, "block_m") + integer(point, "block_n")
        return (integer(point, "num_stages") - 1) * rows * block_k * element <= limit

    shared = Constraint(
        name="shared memory",
        reason=f"the buffers alone are over the {limit} bytes that the engine's blocks can have",
        on=("block_m", "block_n", "block_k", "num_stages"),
        holds=fits,
    )
    return Space(
        name=f"fused_moe {unit.value} on {gpu.name}",
        parameters=_parameters(_GRID),
        constraints=(shared,),
        canonical=_clamped if is_fp8 else _unchanged,
        seeds=tuple(_rule(problem, tokens) for tokens in (1, 16, 64, 256, 1024, 4096)),
    )


def default(problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
    """Return what the engine launches when it finds no table.

    Raises:
        InvalidInput: the unit is no GEMM, or the engine's kernel has no such format.
    """
    problem.gemm(unit)
    return _rule(problem, problem.tokens)


def from_landscape_grid(header: Mapping[str, object]) -> Space:
    """Return the space that a recorded landscape's header declares.

    Raises:
        InvalidInput: no grid, or one of unknown parameters or values.
    """
    grid = header.get("grid")
    if not isinstance(grid, Mapping) or not grid:
        raise InvalidInput("the landscape's header has no 'grid': must hold lists of values")
    own: dict[str, tuple[Value, ...]] = {}
    for name, values in grid.items():
        if name not in _OWN_NAMES:
            known = ", ".join(_OWN_NAMES)
            raise InvalidInput(f"the landscape's grid has {name!r:.40}: must be one of {known}")
        if not isinstance(values, list) or not values or not all(_is_count(v) for v in values):
            raise InvalidInput(
                f"values of {name} in the landscape's grid are {values!r:.40}: must be integers"
            )
        own[_OWN_NAMES[name]] = tuple(values)
    missing = [theirs for theirs, ours in _OWN_NAMES.items() if ours not in own]
    if missing:
        raise InvalidInput(f"the landscape's grid has no {', '.join(missing)}: must have all")
    return Space(
        name=f"fused_moe recorded on {header.get('gpu', 'an unnamed GPU')}",
        parameters=_parameters(own),
        canonical=_clamped_to(own["block_k"]) if header.get("dtype") == "fp8" else _unchanged,
    )


def from_engine(values: Mapping[str, object]) -> LaunchConfig:
    """Return a config from a row of the engine's table; keys that it ignores are dropped.

    Raises:
        InvalidInput: a parameter is missing or no integer.
    """
    found: dict[str, Value] = {"num_warps": 4, "num_stages": 3}  # Triton's defaults
    for theirs, ours in _OWN_NAMES.items():
        value = values.get(theirs, found.get(ours))
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput(f"{theirs} is {value!r:.40}: must be an integer")
        found[ours] = value
    return LaunchConfig.of(found)


def to_engine(config: LaunchConfig) -> dict[str, int]:
    """Return a row of the engine's table."""
    return {theirs: config.integer(ours) for ours, theirs in ENGINE_NAMES.items()}


def _is_fp8(problem: Problem) -> bool:
    weights = problem.shape.weights
    if weights not in ("bf16", "fp8_block128"):
        raise InvalidInput(
            f"weights of {problem.shape.model!r} are {weights}: vLLM's fused_moe kernel must have "
            "bf16 or fp8; tune megamoe instead"
        )
    return weights == "fp8_block128"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _parameters(grid: Mapping[str, tuple[Value, ...]]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, values=values, meaning=_MEANINGS[name])
        for name, values in grid.items()
    )


def _unchanged(config: LaunchConfig) -> LaunchConfig:
    return config


def _clamped(config: LaunchConfig) -> LaunchConfig:
    """Apply the engine's silent BLOCK_SIZE_K = min(BLOCK_SIZE_K, min(block_shape))."""
    return config.replace(block_k=_BLOCK) if config.integer("block_k") > _BLOCK else config


def _clamped_to(values: tuple[Value, ...]) -> Callable[[LaunchConfig], LaunchConfig]:
    """Clamp as the engine does, where the clamped value is on the axis."""
    return _clamped if _BLOCK in values else _unchanged


def _rule(problem: Problem, tokens: int) -> LaunchConfig:
    """Return `get_default_config` of vLLM 0.33 for that many tokens entering the layer."""
    if _is_fp8(problem):
        return LaunchConfig.of(
            block_m=16 if tokens <= 64 else 64,
            block_n=64 if tokens <= 8 else _BLOCK,
            block_k=_BLOCK,
            group_m=1 if tokens <= 16 else 32,
            num_warps=4,
            num_stages=4 if tokens <= 4 else 3,
        )
    steps = ((32, 16), (96, 32), (512, 64))
    return LaunchConfig.of(
        block_m=next((m for most, m in steps if tokens <= most), 128),
        block_n=64 if tokens <= 64 else 128,
        block_k=128 if tokens <= 64 else 64,
        group_m=16 if tokens // problem.local_experts > 128 else 1,
        num_warps=4 if tokens <= 128 else 8,
        num_stages=4 if tokens <= 32 else 3,
    )
