"""A layer planned for serving: buffers and launches once, weights bound afterwards.

Layers of one model differ in nothing but their weights. They are planned over weights on "meta", which
have a shape and no memory, so the layers can share the plan's buffers and the plan keeps no weights alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..search_spaces import GEMMS, LaunchConfig, Problem, Unit
from ._kernel import Launch
from ._megamoe_inputs import Inputs, Matrix
from ._megamoe_plan import plan_layer


# Compared by identity: a plan is its buffers.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class ServedPlan:
    """What a step writes before the launches and reads after them.

    Attributes:
        x: bf16 [tokens, hidden], in.
        topk_ids: int32 [tokens, top_k], in: local experts; others are skipped.
        topk_weights: float32 [tokens, top_k], in.
        live_tokens: int32 [1], in: as planned, or fewer.
        out: bf16 [tokens, hidden], live rows only.
        launches: The layer over weights on "meta": cannot run, see `bind`.
        weights: Those weights.
    """

    x: Tensor
    topk_ids: Tensor
    topk_weights: Tensor
    live_tokens: Tensor
    out: Tensor
    launches: tuple[Launch, ...]
    weights: Mapping[Unit, Matrix]

    def bind(self, weights: Mapping[Unit, Matrix]) -> tuple[Launch, ...]:
        """Return the launches over real weights of the planned shapes and formats."""
        bound, units = [], iter(GEMMS)
        for launch in self.launches:
            if launch.is_gemm:
                unit = next(units)
                planned, real = self.weights[unit], weights[unit]
                args = tuple(_bound(arg, planned, real) for arg in launch.args)
                launch = replace(launch, args=args)
            bound.append(launch)
        return tuple(bound)


def plan_served(
    problem: Problem,
    configs: Mapping[Unit, LaunchConfig],
    weights: Mapping[Unit, Matrix],
    device: torch.device,
) -> ServedPlan:
    """Plan a layer for `problem.tokens` live tokens, at most.

    Args:
        problem: The layer and the step.
        configs: Of both GEMMs.
        weights: Only their shapes and dtypes are read.
        device: Where the buffers are made.
    """
    shape = problem.shape
    planned = {unit: _without_memory(matrix) for unit, matrix in weights.items()}
    size = (problem.capacity, shape.top_k)
    inputs = Inputs(
        problem=problem,
        weights=planned,
        x=torch.zeros((problem.capacity, shape.hidden), dtype=torch.bfloat16, device=device),
        topk_ids=torch.zeros(size, dtype=torch.int32, device=device),
        topk_weights=torch.zeros(size, device=device),
        live_tokens=torch.full((1,), problem.tokens, dtype=torch.int32, device=device),
        seed=0,
    )
    layer = plan_layer(problem, configs, inputs)
    return ServedPlan(
        x=inputs.x,
        topk_ids=inputs.topk_ids,
        topk_weights=inputs.topk_weights,
        live_tokens=inputs.live_tokens,
        out=layer.out,
        launches=layer.launches,
        weights=planned,
    )


def _without_memory(matrix: Matrix) -> Matrix:
    def ghost(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.empty_like(tensor, device="meta")

    data = torch.empty_like(matrix.data, device="meta")
    return Matrix(data=data, scale=ghost(matrix.scale), bias=ghost(matrix.bias))


def _bound(arg: Any, planned: Matrix, real: Matrix) -> Any:
    if isinstance(arg, TensorDescriptor):
        if arg.base.device.type != "meta":
            return arg
        return replace(arg, base=real.data.view(arg.base.shape))
    if isinstance(arg, Tensor):
        for name in ("data", "scale", "bias"):
            if arg is getattr(planned, name):
                return getattr(real, name)
    return arg
