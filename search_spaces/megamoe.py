"""The space of our own kernel: one grouped GEMM of a layer, for a problem and a GPU.

Every constraint is a fact about the format, the instruction or the GPU that makes a point
impossible or certainly lost; the doubtful (spills, occupancy) is left to the compiler's report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidConfig
from .config import LaunchConfig, Value
from .problem import Problem, Unit
from .routing import expected_active_experts, expected_rows
from .space import Constraint, Parameter, Point, Space, integer

if TYPE_CHECKING:  # only attributes of the GPU are read
    from ..topology import Gpu

# Largest num_stages worth trying. Source: facts, hardware 5.2: 8 is the last that fits 227 KB at
# 128x128x128 on sm_103; packed FP4 in 327 KB leaves room for 12 on sm_107 at 128x128x128.
_MOST_STAGES = {90: 6, 100: 8, 103: 8, 107: 12}
# float32 accumulators in one block. Source: facts, moe-kernels 4.6.
_MOST_ACCUMULATORS = 128 * 256
# Fewer outputs than this leave a second warpgroup idle; 16x256 with 8 warps is the smallest tile
# that tuned tables use. Source: facts, moe-kernels 3.2.
_LEAST_8_WARPS = 16 * 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What the constraints ask of the problem and the GPU.

    Attributes:
        n: Rows of one expert's weight matrix.
        k: Elements along which it is multiplied.
        shared_bytes: Shared memory that one block can have at most.
    """

    unit: Unit
    gated: bool
    weights: str
    activations: str
    n: int
    k: int
    arch: int
    domains: int
    shared_bytes: int

    @property
    def scaled(self) -> bool:
        """Whether the product is a `tl.dot_scaled`."""
        return self.weights == "mxfp4"

    @property
    def native_scaled(self) -> bool:
        """Whether the tensor cores apply the scales themselves."""
        return self.scaled and self.activations == "mxfp8" and self.arch >= 100

    @property
    def padded_fp4(self) -> bool:
        """Whether FP4 takes a byte an element in shared memory.

        Source: facts, hardware 5.2: padded on sm_100 and sm_103, packed on sm_107; and 5.3b:
        packed on sm_90, which converts on the way to the tensor cores.
        """
        return self.native_scaled and self.arch < 107

    @property
    def weight_bits(self) -> int:
        """Bits of a weight in shared memory."""
        if self.scaled:
            return 8 if self.padded_fp4 else 4
        return 16 if self.weights == "bf16" else 8

    @property
    def activation_bits(self) -> int:
        """Bits of an activation in shared memory."""
        return 16 if self.activations == "bf16" else 8

    def stage_bytes(self, point: Point) -> int:
        """Bytes of one pipeline buffer, scales left out: less than the compiler will ask for."""
        bits = integer(point, "block_m") * self.activation_bits
        bits += integer(point, "block_n") * self.weight_bits
        return bits * integer(point, "block_k") // 8


def space(problem: Problem, unit: Unit, gpu: Gpu) -> Space:
    """Return the space of one GEMM.

    Raises:
        InvalidInput: the unit is no GEMM.
    """
    target = _target(problem, unit, gpu)
    return Space(
        name=f"megamoe {unit.value} on {gpu.name}",
        parameters=tuple(_parameters(target)),
        constraints=tuple(_constraints(target)),
        seeds=tuple(_seeds(target)),
    )


def default(problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
    """Return the config that is launched when nothing is known, by rows of an active expert.

    Raises:
        InvalidConfig: the space is empty.
    """
    found = space(problem, unit, gpu)
    rows = expected_rows(problem) / max(expected_active_experts(problem), 1.0)
    target = _target(problem, unit, gpu)
    wanted = _rule(target, rows)
    for stages in range(wanted.integer("num_stages"), 1, -1):
        config = wanted.replace(num_stages=stages)
        # Some compilers give every stage a buffer (triton 3.6 on sm_90): a default must fit whichever it is.
        fits = stages * target.stage_bytes(config) <= target.shared_bytes
        if fits and found.contains(config):
            return config
    return _nearest(found, wanted)


def _target(problem: Problem, unit: Unit, gpu: Gpu) -> _Target:
    n, k = problem.gemm(unit)
    # The L1 that oversized blocks cost is the cost model's matter.
    mode = "oversized" if gpu.has_oversized_shared_memory else "default"
    return _Target(
        unit=unit,
        gated=problem.shape.activation.gated,
        weights=problem.shape.weights,
        activations=problem.shape.activations,
        n=n,
        k=k,
        arch=gpu.arch,
        domains=gpu.domains,
        shared_bytes=gpu.shared_memory_limit(mode),
    )


def _parameters(target: _Target) -> Iterator[Parameter]:
    stages = max(most for arch, most in _MOST_STAGES.items() if arch <= max(target.arch, 90))
    groups = {"fp8_block128": (64, 128), "mxfp8": (32,), "bf16": (0,)}[target.activations]
    splits = ("none", "domains") if target.domains > 1 else ("none",)
    gate_up = " (gate and up together)" if target.unit is Unit.GATE_UP and target.gated else ""
    axes: tuple[tuple[str, tuple[Value, ...], str], ...] = (
        ("block_m", (16, 32, 64, 128, 256), "tokens of a tile"),
        ("block_n", (32, 64, 128, 256), f"weight rows of a tile{gate_up}"),
        ("block_k", (32, 64, 128, 256), "elements of a k-tile"),
        ("num_warps", (4, 8), "warps of a block"),
        ("num_stages", tuple(range(2, stages + 1)), "pipeline stages (buffers: one less)"),
        ("group_m", (1, 4, 8, 16, 32), "token tiles that share a weight tile in the L2"),
        ("swap_ab", (False, True), "weights are the M operand of the matrix instruction"),
        ("load", ("pointers", "tma"), "how tiles reach shared memory"),
        ("split", splits, "weight columns by locality domain"),
        (
            "schedule",
            ("tiles", "persistent"),
            "a program a tile, or programs that walk over tiles",
        ),
        ("act_group", groups, "elements that share a scale of the intermediate (0: no scale)"),
    )
    for name, values, meaning in axes:
        yield Parameter(name=name, values=values, meaning=meaning)


def _constraints(target: _Target) -> Iterator[Constraint]:
    yield from _format_constraints(target)
    yield from _tile_constraints(target)
    yield from _load_constraints(target)
    yield Constraint(
        name="pipeline depth",
        reason=f"more buffers than k-tiles of K = {target.k} are never filled",
        on=("block_k", "num_stages"),
        holds=lambda p: (
            integer(p, "num_stages") - 1 <= max(1, -(-target.k // integer(p, "block_k")))
        ),
        soft=True,
    )
    yield Constraint(
        name="shared memory",
        reason=f"the buffers alone are over the {target.shared_bytes} bytes a block can have",
        on=("block_m", "block_n", "block_k", "num_stages"),
        holds=lambda p: (
            (integer(p, "num_stages") - 1) * target.stage_bytes(p) <= target.shared_bytes
        ),
    )
    if target.domains > 1:
        yield Constraint(
            name="two halves",
            reason=f"a split by domain needs at least two tiles along N = {target.n}",
            on=("block_n", "split"),
            holds=lambda p: p["split"] == "none" or target.n > integer(p, "block_n"),
        )
    yield from _schedule_constraints(target)


def _schedule_constraints(target: _Target) -> Iterator[Constraint]:
    """Yield what programs that walk over tiles demand."""
    if target.domains > 1:
        yield Constraint(
            name="one schedule",
            reason="a split by domain hands out its tiles by tickets, to programs of one tile",
            on=("split", "schedule"),
            holds=lambda p: p["split"] == "none" or p["schedule"] == "tiles",
        )
    yield Constraint(
        name="tiles to overlap",
        reason="a persistent loop needs two buffers to load the next tile during an epilogue",
        on=("num_stages", "schedule"),
        holds=lambda p: p["schedule"] == "tiles" or integer(p, "num_stages") >= 3,
    )


def _format_constraints(target: _Target) -> Iterator[Constraint]:
    """Yield what the scales' granularity demands."""
    if target.weights == "fp8_block128":
        yield Constraint(
            name="fp8 scale block",
            reason="one weight scale covers 128 elements of K, and scales are applied per k-tile",
            on=("block_k",),
            holds=lambda p: integer(p, "block_k") in (64, 128),
        )
    if target.scaled:
        yield Constraint(
            name="mx scale group",
            reason="scaled products need two whole groups of 32 along K in a k-tile",
            on=("block_k",),
            holds=lambda p: integer(p, "block_k") >= 64,
        )
    if target.activations == "bf16":
        return
    if target.unit is Unit.GATE_UP:
        width = 2 if target.gated else 1
        yield Constraint(
            name="requantised group",
            reason="a tile must hold whole scale groups of the intermediate it writes",
            on=("block_n", "act_group"),
            holds=lambda p: integer(p, "block_n") // width % integer(p, "act_group") == 0,
        )
    elif target.activations == "fp8_block128":
        yield Constraint(
            name="activation scale group",
            reason="one scale of the intermediate must cover a k-tile",
            on=("block_k", "act_group"),
            holds=lambda p: integer(p, "act_group") % integer(p, "block_k") == 0,
        )


def _tile_constraints(target: _Target) -> Iterator[Constraint]:
    """Yield what the matrix instructions and the accumulators demand."""
    yield Constraint(
        name="swap for few tokens",
        reason="swapping only helps where tokens are too few for the M side: block_m at most 64, "
        "and weight rows of at least one instruction: block_n at least 64",
        on=("swap_ab", "block_m", "block_n"),
        holds=lambda p: (
            not p["swap_ab"] or (integer(p, "block_m") <= 64 and integer(p, "block_n") >= 64)
        ),
        soft=True,
    )
    if target.native_scaled:
        # Source: facts, hardware 5.1 and 5.3b: 64 rows fall back to bf16 instructions.
        yield Constraint(
            name="scaled MMA rows",
            reason="the scaled matrix instruction has 128 rows on its M side",
            on=("swap_ab", "block_m", "block_n"),
            holds=lambda p: _m_side(p) >= 128,
        )
    if target.scaled:
        # Source: facts, hardware 5.4.
        yield Constraint(
            name="compile time",
            reason="a scaled product of 256 rows on the M side compiles for over 8 minutes",
            on=("swap_ab", "block_m", "block_n"),
            holds=lambda p: _m_side(p) <= 128,
        )
    yield Constraint(
        name="accumulators",
        reason=f"a block holds at most {_MOST_ACCUMULATORS} float32 accumulators",
        on=("block_m", "block_n"),
        holds=lambda p: _area(p) <= _MOST_ACCUMULATORS,
    )
    yield Constraint(
        name="warps for the tile",
        reason=f"8 warps need a tile of at least {_LEAST_8_WARPS} outputs to have work",
        on=("block_m", "block_n", "num_warps"),
        holds=lambda p: integer(p, "num_warps") < 8 or _area(p) >= _LEAST_8_WARPS,
        soft=True,
    )
    if target.arch < 100:  # later ones accumulate in tensor memory
        yield Constraint(
            name="accumulator registers",
            reason="accumulators alone would take all of a thread's 255 registers",
            on=("block_m", "block_n", "num_warps"),
            holds=lambda p: _area(p) // (integer(p, "num_warps") * 32) < 255,
        )


def _load_constraints(target: _Target) -> Iterator[Constraint]:
    """Yield what tensor maps demand."""
    if not _has_tma(target):
        yield Constraint(
            name="tma strides",
            reason=f"rows of K = {target.k} elements do not start where tensor maps can reach",
            on=("load",),
            holds=lambda p: p["load"] == "pointers",
        )
    elif target.padded_fp4:
        # Source: facts, hardware 5.5: 16U4_ALIGN16B tensor maps.
        yield Constraint(
            name="tma box",
            reason="a tensor map of padded FP4 has an inner box of 128 elements",
            on=("load", "block_k"),
            holds=lambda p: p["load"] == "pointers" or integer(p, "block_k") % 128 == 0,
        )


def _has_tma(target: _Target) -> bool:
    """Whether both operands' rows are strided as tensor maps demand: by 16 bytes.

    Padded FP4 needs whole boxes of 128 elements and strides of 32 bytes.
    Source: facts, hardware 5.5.
    """
    if target.padded_fp4:
        return target.k % 128 == 0
    bits = {"bf16": 16, "fp8_block128": 8, "mxfp4": 4}[target.weights]
    return target.k * bits % 128 == 0 and target.k * target.activation_bits % 128 == 0


def _m_side(point: Point) -> int:
    return integer(point, "block_n" if point["swap_ab"] else "block_m")


def _area(point: Point) -> int:
    return integer(point, "block_m") * integer(point, "block_n")


def _rule(target: _Target, rows: float) -> LaunchConfig:
    """Return a good guess for an active expert with `rows` rows; it may not be legal yet.

    Source: facts, moe-kernels 3.2 (what tuned tables choose) and 4.1 (knobs by regime).
    """
    block_m = next((m for m in (16, 32, 64) if rows <= m), 128)
    large = rows > 256
    swap_ab = block_m <= 64 and target.arch >= 100
    # Over 128 gate-and-up rows an fp8 tile would change act_group between token counts.
    wide = large and target.weights == "bf16"
    block_k = 64 if wide or _down_of_fp8(target) else 128
    narrow = block_m == 16 and target.weights == "bf16" and not swap_ab
    return LaunchConfig.of(
        block_m=block_m,
        block_n=64 if narrow else 256 if wide else 128,
        block_k=block_k,
        num_warps=8 if block_m == 128 else 4,
        num_stages=4 if target.arch < 100 else 6,
        group_m=8 if large else 1,
        swap_ab=swap_ab,
        load="pointers",
        split="none",
        schedule="tiles",
        act_group={"fp8_block128": 64, "mxfp8": 32, "bf16": 0}[target.activations],
    )


def _down_of_fp8(target: _Target) -> bool:
    return target.unit is Unit.DOWN and target.activations == "fp8_block128"


def _seeds(target: _Target) -> Iterator[LaunchConfig]:
    """Yield what tuned tables of others choose, translated to this space.

    Source: facts, moe-kernels 3.2 (Hopper and Blackwell rows), hardware 5.2 and 5.3b (sm_107).
    """
    groups = {"fp8_block128": (64, 128), "mxfp8": (32,), "bf16": (0,)}[target.activations]
    tiles = (
        # block_m, block_n, block_k, num_warps, num_stages, group_m
        (16, 64, 64, 4, 5, 1),
        (16, 64, 128, 4, 4, 1),
        (16, 128, 128, 4, 4, 1),
        (16, 256, 128, 8, 2, 1),
        (32, 128, 128, 4, 4, 1),
        (64, 128, 64, 4, 3, 1),
        (64, 128, 128, 4, 4, 8),
        (64, 256, 128, 8, 3, 8),
        (128, 128, 64, 8, 4, 8),
        (128, 128, 128, 8, 4, 8),
        (128, 256, 64, 8, 4, 8),
        (128, 256, 128, 8, 4, 16),
        (16, 128, 256, 4, 6, 1),
        (32, 128, 256, 4, 6, 1),
        (128, 128, 128, 4, 8, 8),
        (128, 256, 128, 8, 11, 8),
    )
    for block_m, block_n, block_k, num_warps, num_stages, group_m in tiles:
        base = LaunchConfig.of(
            block_m=block_m,
            block_n=block_n,
            block_k=block_k,
            num_warps=num_warps,
            num_stages=num_stages,
            group_m=group_m,
            load="pointers",
            split="none",
            schedule="tiles",
        )
        for swap_ab in (False, True):
            for act_group in groups:
                yield base.replace(swap_ab=swap_ab, act_group=act_group)


def _nearest(found: Space, wanted: LaunchConfig) -> LaunchConfig:
    """Return the legal point closest to a config that is on the axes."""
    legal: Iterable[LaunchConfig] = found.legal()
    if not legal:
        raise InvalidConfig(f"{found.name} has no legal config: no tile fits this problem")
    here = found.encode(wanted)
    return min(legal, key=lambda c: float(np.abs(found.encode(c) - here).sum()))
