"""What megamoe must compute, in float64 on the very numbers that the kernels read."""

from __future__ import annotations

import torch
from torch import Tensor

from ..search_spaces import Activation, Problem, Unit
from ._megamoe_formats import Quantised, dequantise_rows, dequantise_weight
from ._megamoe_inputs import Inputs, Routed, x_group


def activate(values: Tensor, activation: Activation) -> Tensor:
    """Return what stands between the GEMMs; gated values have gate and up columns interleaved."""
    if activation.kind == "relu2":
        return values.clamp(min=0).square()
    gate, up = values[:, 0::2], values[:, 1::2]
    if activation.limit is not None:
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(-activation.limit, activation.limit)
    if activation.kind == "swiglu":
        hot = gate * torch.sigmoid(activation.alpha * gate)
    else:
        hot = torch.nn.functional.gelu(gate, approximate="tanh")
    return hot * (up + activation.up_shift)


def grouped(problem: Problem, unit: Unit, inputs: Inputs, rows: Tensor, routed: Routed) -> Tensor:
    """Return float64 rows x their experts' weights, plus bias; `rows` are live, in row order."""
    n, _ = problem.gemm(unit)
    matrix = inputs.weights[unit]
    out = torch.zeros((rows.shape[0], n), dtype=torch.float64, device=rows.device)
    offsets = routed.offsets.tolist()
    for expert in range(problem.local_experts):
        place = slice(offsets[expert], offsets[expert + 1])
        if place.start == place.stop:
            continue
        out[place] = rows[place] @ weight_of(problem, unit, inputs, expert).T
        if matrix.bias is not None:
            out[place] += matrix.bias[expert].double()
    return out


def weight_of(problem: Problem, unit: Unit, inputs: Inputs, expert: int) -> Tensor:
    """Return one expert's weights in float64 [n, k], interleaved as they are stored."""
    matrix, form = inputs.weights[unit], problem.weights
    data = matrix.data[expert]
    scale = None if matrix.scale is None else matrix.scale[expert]
    if scale is None or scale.dim() == 2:
        return dequantise_weight(data, scale, form)
    halves = [dequantise_weight(data[half::2], scale[half], form) for half in (0, 1)]
    return torch.stack(halves, dim=1).flatten(0, 1)


def live_rows(routed: Routed) -> int:
    """Return the number of rows (reads the device)."""
    return int(routed.offsets[-1])


def unit_rows(problem: Problem, unit: Unit, inputs: Inputs, rows: Quantised, group: int) -> Tensor:
    """Return the float64 output rows of one GEMM, live rows only; `rows` in row order."""
    routed = inputs.routed
    count = live_rows(routed)
    scale = None if rows.scale is None else rows.scale[:count]
    values = dequantise_rows(rows.data[:count], scale, group)
    if unit is Unit.DOWN:
        return grouped(problem, unit, inputs, values, routed)
    return gate_up_rows(problem, inputs, values)


def gate_up_rows(problem: Problem, inputs: Inputs, values: Tensor) -> Tensor:
    """Return activated float64 rows for given rows of x, in row order."""
    routed = inputs.routed
    if problem.shape.weight_on_input:
        routes = routed.routes[: values.shape[0]].long()
        values = values * inputs.topk_weights.flatten()[routes].double()[:, None]
    return activate(
        grouped(problem, Unit.GATE_UP, inputs, values, routed), problem.shape.activation
    )


def layer_rows(problem: Problem, inputs: Inputs) -> Tensor:
    """Return float64 [live tokens, hidden] of the layer; the intermediate is not rounded."""
    routed = inputs.routed
    count = live_rows(routed)
    rows = inputs.rows(permuted=True)
    scale = None if rows.scale is None else rows.scale[:count]
    values = dequantise_rows(rows.data[:count], scale, x_group(problem))
    done = grouped(problem, Unit.DOWN, inputs, gate_up_rows(problem, inputs, values), routed)
    routes = routed.routes[:count].long()
    if not problem.shape.weight_on_input:
        done = done * inputs.topk_weights.flatten()[routes].double()[:, None]
    live = int(inputs.live_tokens[0])
    out = torch.zeros((live, done.shape[1]), dtype=torch.float64, device=done.device)
    out.index_add_(0, routes // problem.shape.top_k, done)
    return out * problem.shape.routed_scaling_factor


def row_error(found: Tensor, expected: Tensor) -> float:
    """Return the largest |found - expected| / |expected| over rows; inf where not finite.

    Norms are 2-norms. A row whose reference is 0 must be 0.
    """
    if expected.numel() == 0:
        return 0.0
    found = found.double()
    if not bool(torch.isfinite(found).all()):
        return float("inf")
    size = expected.norm(dim=1)
    gap = (found - expected).norm(dim=1)
    # Nothing may be added where nothing is: any gap over a zero row is infinite.
    ratio = torch.where(gap == 0, gap, gap / size)
    return float(ratio.max())
