"""Our own MoE layer: two grouped GEMMs in Triton with their glue, one source for sm_90 to sm_107.

route -> quantise_rows -> gate_up GEMM (bias, activation and requantisation fused) -> down GEMM ->
combine. Rows are sorted by expert on the GPU; nothing is read back. Shared experts are not part of
the layer yet: they see every token, so they are a dense MLP beside it, which the engine runs.

Numerics: float32 accumulators; fp8_block128 multiplies each k-tile by its scales in float32; MX
formats scale inside the dot; routed weights multiply in float32 at the combine (or the
accumulator, where the model puts them on the input).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidInput
from ..search_spaces import (
    GEMMS,
    LaunchConfig,
    Problem,
    Space,
    Unit,
    expected_rows,
)
from ..search_spaces import megamoe as spaces
from ..topology import Gpu
from . import _megamoe_inputs as inputs_of
from . import _megamoe_plan as plan
from . import _megamoe_verify as verifying
from ._kernel import Launch, Work
from ._megamoe_inputs import Inputs, Matrix
from ._megamoe_serve import ServedPlan, plan_served
from ._work import gemm_work, glue_work

# The files whose text ends in the cubins or decides how they are launched.
_SOURCES = ("_megamoe_gemm.py", "_megamoe_glue.py", "_megamoe_plan.py")


class MegaMoE:
    """The contract of `_kernel.Kernel`."""

    name = "megamoe"
    serves_engine = ""

    def require(self, evaluator: str) -> None:
        """Need nothing beside triton."""

    def source_hash(self) -> str:
        """Return the hash of every file that ends in the cubins."""
        found = hashlib.sha256()
        for source in _SOURCES:
            found.update(Path(__file__).with_name(source).read_bytes())
        return found.hexdigest()[:16]

    def units(self) -> tuple[Unit, ...]:
        """Return the two GEMMs."""
        return GEMMS

    def space(self, problem: Problem, unit: Unit, gpu: Gpu) -> Space:
        """Return the space of one GEMM."""
        return spaces.space(problem, unit, gpu)

    def default(self, problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
        """Return the config that is launched when nothing is known."""
        return spaces.default(problem, unit, gpu)

    def coupling(self, config: LaunchConfig) -> str:
        """Both GEMMs must agree on the scale groups of the rows between them."""
        return str(config.get("act_group", 0))

    def glue(self, unit: Unit, config: LaunchConfig) -> str:
        """TMA loads of gate_up want its rows permuted; pointers gather them in token order."""
        return str(config["load"]) if unit is Unit.GATE_UP else ""

    def work(self, problem: Problem, unit: Unit) -> Work:
        """Return the expected work; shared experts are left out, as in the layer."""
        if unit is Unit.GLUE:
            return glue_work(problem)
        if unit is not Unit.LAYER:
            return gemm_work(problem, unit)
        parts = [gemm_work(problem, gemm) for gemm in GEMMS]
        weights = sum(part.weight_bytes for part in parts)
        # Only x, the weights and the output must touch memory: all between could stay on the chip.
        edges = 2 * 2 * min(problem.tokens, expected_rows(problem)) * problem.shape.hidden
        return Work(
            flops=sum(part.flops for part in parts),
            min_bytes=weights + edges,
            weight_bytes=weights,
            nvlink_bytes=_nvlink_bytes(problem),
        )

    def make_inputs(self, problem: Problem, *, device: str, seed: int) -> Inputs:
        """Return random weights, tokens and a routing from the problem's distribution."""
        return inputs_of.make_inputs(problem, device=device, seed=seed)

    def rotate(self, inputs: Any, problem: Problem, *, seed: int) -> Inputs:
        """Return other tokens and another routing over the same weights."""
        return inputs_of.draw(problem, inputs.weights, device=str(inputs.device), seed=seed)

    def launches(
        self, problem: Problem, unit: Unit, config: LaunchConfig, inputs: Any
    ) -> tuple[Launch, ...]:
        """Return one GEMM over rows that glue has prepared, or the glue, or the layer.

        Glue and layer take this one config for both GEMMs.
        """
        if unit is Unit.GLUE:
            return plan.plan_glue(problem, dict.fromkeys(GEMMS, config), inputs)
        if unit is Unit.LAYER:
            return self.layer(problem, dict.fromkeys(GEMMS, config), inputs)
        return (plan.plan_unit(problem, unit, config, inputs).launch,)

    def layer(
        self, problem: Problem, configs: Mapping[Unit, LaunchConfig], inputs: Any
    ) -> tuple[Launch, ...]:
        """Return route, quantise, gate_up, down and combine.

        Raises:
            InvalidInput: the configs disagree on the scale groups between the GEMMs.
        """
        self._check_coupling(configs)
        return plan.plan_layer(problem, configs, inputs).launches

    def serve(
        self,
        problem: Problem,
        configs: Mapping[Unit, LaunchConfig],
        weights: Mapping[Unit, Matrix],
        *,
        device: torch.device,
    ) -> ServedPlan:
        """Return the layer with buffers of its own, for weights shaped like the given ones.

        Raises:
            InvalidInput: the configs disagree on the scale groups between the GEMMs.
        """
        self._check_coupling(configs)
        return plan_served(problem, configs, weights, device)

    def _check_coupling(self, configs: Mapping[Unit, LaunchConfig]) -> None:
        first, second = (self.coupling(configs[unit]) for unit in GEMMS)
        if first != second:
            raise InvalidInput(
                f"act_group is {first} in gate_up and {second} in down: must be equal in one layer"
            )

    def verify(
        self, problem: Problem, unit: Unit, config: LaunchConfig, *, device: str, seed: int
    ) -> float:
        """Return the largest row error over several routings (see `_megamoe_verify`)."""
        return verifying.verify(problem, unit, config, device=device, seed=seed)

    def tolerance(self, problem: Problem, unit: Unit) -> float:
        """Return the largest error that rounding explains (derived in `_megamoe_verify`)."""
        return verifying.tolerance(problem, unit)


def _nvlink_bytes(problem: Problem) -> float:
    """Return what one rank must send: its tokens once to each rank that has an expert of theirs.

    Uniform routing; what comes back is as many bf16 rows. Source: facts, moe-kernels 5 (dispatch,
    combine).
    """
    ranks = problem.layout.expert_ranks
    if ranks == 1:
        return 0.0
    own = problem.tokens / ranks
    hidden = problem.shape.hidden
    reached = (ranks - 1) * (1 - (1 - 1 / ranks) ** problem.shape.top_k)
    return own * reached * (problem.activations.bytes_of(1, hidden) + 2 * hidden)


PROVIDES = MegaMoE()
