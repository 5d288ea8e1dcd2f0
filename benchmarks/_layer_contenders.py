"""Who is compared: our kernel, torch's grouped GEMM, a loop over experts, and engines where installed.

A contender makes `Step`s: something that can be captured into a CUDA graph, and the tensor it writes.
All read the same tokens, routing and weights (bf16 ones: the same values rounded to bf16). Peers are
told how many rows land on this rank, which an engine could only know by reading it back: in
their favour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor

from rubin_tune.kernels import _megamoe_plan as plan
from rubin_tune.kernels._megamoe_formats import (
    Quantised,
    deinterleave_gate_up,
    dequantise_rows,
)
from rubin_tune.kernels._megamoe_inputs import Inputs, x_group
from rubin_tune.kernels.megamoe import PROVIDES as MEGAMOE
from rubin_tune.search_spaces import Activation, LaunchConfig, Unit
from rubin_tune.tuner.timing import Runnable

from ._layer_case import Case

_BF16 = 2.0**-8
# Roundings of a bf16 composition: weights, gate-up product, activated rows, down product, weighted sum;
# doubled for rows that cancel in the sum.
_BF16_LAYER = 10 * _BF16
# Weights and rows rounded to bf16 (block scales), and the product.
_BF16_GEMM = 3 * _BF16
# DeepGEMM wants every expert's rows to start at a multiple of this.
_DEEP_GEMM_ROWS = 128
_VLLM = "vllm.model_executor.layers.fused_moe.fused_moe"


@cache
def _absent(module: str, name: str) -> str:
    """Say in words why a peer's function cannot be had; "" where it can."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        return f"{package} is not installed here"
    try:
        found = import_module(module)
    except Exception as error:  # noqa: BLE001 - a package that breaks at import is as good as absent
        words = (str(error).strip().splitlines() or [""])[0]
        return f"{package} cannot be imported: {type(error).__name__}: {words}"[:200]
    return "" if hasattr(found, name) else f"this {package} has no {module}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One unit on one draw.

    Attributes:
        launches: Run in order.
        out: Returns what the last run wrote.
        allowed: The largest row error that rounding explains.
        rows: For a GEMM, what it reads in sorted order, and its scale group.
        fused: For gate_up, whether bias and activation are part of it.
        places: For a GEMM whose output is not in sorted order: place of each sorted row in it.
    """

    launches: tuple[Runnable, ...]
    out: Callable[[], Tensor]
    allowed: float
    rows: tuple[Quantised, int] | None = None
    fused: bool = False
    places: Tensor | None = None

    def run(self) -> None:
        """Run once on the current stream."""
        for launch in self.launches:
            launch.run()


@dataclass(slots=True)
class Call:
    """A function as something that can be captured; its tensor is kept alive."""

    function: Callable[[], Tensor]
    result: Tensor | None = None

    def run(self) -> None:
        """Call it."""
        self.result = self.function()

    def out(self) -> Tensor:
        """Return what it returned last."""
        if self.result is None:
            raise RuntimeError("the function has not run yet")
        return self.result


class Contender(Protocol):
    """Somebody who can run the layer, a GEMM, or both."""

    name: str
    kind: str
    """"ours", "peer", or "reference" (not the same function: a yardstick)."""
    quantises: bool
    """Whether tokens are rounded to the activation format on the way in."""

    def refuses(self, case: Case, unit: Unit) -> str:
        """Say in words why it does not run this unit here; "" where it does."""
        ...

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Return the unit, ready to run."""
        ...


@dataclass(slots=True, kw_only=True)
class Ours:
    """megamoe with given configs; `unfit` says why there are none."""

    name: str
    configs: Mapping[Unit, LaunchConfig]
    unfit: str = ""
    why: str = ""
    kind: str = "ours"
    quantises: bool = True

    def refuses(self, case: Case, unit: Unit) -> str:
        """Without configs it runs nothing."""
        return self.unfit

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Plan the unit."""
        problem = case.problem
        allowed = MEGAMOE.tolerance(problem, unit)
        if unit is Unit.LAYER:
            layer = plan.plan_layer(problem, self.configs, inputs)
            return Step(launches=layer.launches, out=lambda: layer.out, allowed=allowed)
        config = self.configs[unit]
        gemm = plan.plan_unit(problem, unit, config, inputs)
        group = plan.act_group(problem, config)
        if unit is Unit.GATE_UP:
            rows = inputs.rows(permuted=True), x_group(problem)
        else:
            rows = inputs.intermediate(group), group
        return Step(
            launches=(gemm.launch,),
            out=lambda: dequantise_rows(gemm.out.data, gemm.out.scale, group),
            allowed=allowed,
            rows=rows,
            fused=True,
        )


@dataclass(slots=True, kw_only=True)
class GroupedMM:
    """torch._grouped_mm in bf16 between a sort, gathers and a combine, all on the GPU."""

    name: str = "torch._grouped_mm, bf16"
    kind: str = "peer"
    quantises: bool = False

    def refuses(self, case: Case, unit: Unit) -> str:
        """It runs everything."""
        return ""

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Compose the unit."""
        if unit is Unit.LAYER:
            call = Call(lambda: _grouped_layer(case, inputs))
            return Step(launches=(call,), out=call.out, allowed=_BF16_LAYER)
        rows, group = _engine_rows(case, unit, inputs)
        count = case.count(inputs)
        values = _bf16(rows, group)[:count].contiguous()
        weight = case.dense(inputs).weights[unit].transpose(-2, -1)
        ends = inputs.routed.offsets[1:]
        call = Call(lambda: _grouped_mm(values, weight, ends))
        read = Quantised(data=values)
        return Step(launches=(call,), out=call.out, allowed=_BF16_GEMM, rows=(read, 0))


@dataclass(slots=True, kw_only=True)
class Transformers:
    """The grouped path of the installed transformers, over the same weights."""

    name: str = "transformers grouped_mm, bf16"
    kind: str = "peer"
    quantises: bool = False

    def refuses(self, case: Case, unit: Unit) -> str:
        """It has whole layers only."""
        if unit is not Unit.LAYER:
            return "has no GEMM of its own (torch._grouped_mm)"
        return _absent("transformers.integrations.moe", "grouped_mm_experts_forward")

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Call its forward with what it reads of a module."""
        module: Any = import_module("transformers.integrations.moe")
        dense, activation = case.dense(inputs), case.problem.shape.activation
        experts = SimpleNamespace(
            num_experts=case.problem.local_experts,
            has_gate=activation.gated,
            has_bias=dense.biases[Unit.DOWN] is not None,
            has_post_expert_norm=False,
            is_transposed=False,
            _is_expert_parallel=True,
            gate_up_proj=dense.weights[Unit.GATE_UP],
            gate_up_proj_bias=dense.biases[Unit.GATE_UP],
            down_proj=dense.weights[Unit.DOWN],
            down_proj_bias=dense.biases[Unit.DOWN],
            _apply_gate=lambda values: _activate(values, activation),
        )
        # Foreign experts must carry one number, the first that is not local.
        ids = inputs.topk_ids.clamp(max=case.problem.local_experts).long()
        gates = _router_weights(case, inputs).to(torch.bfloat16)
        call = Call(lambda: module.grouped_mm_experts_forward(experts, inputs.x, ids, gates))
        return Step(launches=(call,), out=call.out, allowed=_BF16_LAYER)


@dataclass(slots=True, kw_only=True)
class ExpertLoop:
    """The unfused composition: one expert after the other, each with matmuls of its own."""

    name: str = "unfused, loop over experts, bf16"
    kind: str = "peer"
    quantises: bool = False

    def refuses(self, case: Case, unit: Unit) -> str:
        """It has whole layers only."""
        return "" if unit is Unit.LAYER else "has no grouped GEMM"

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Compose the layer; the number of rows of each expert is known beforehand."""
        offsets = inputs.routed.offsets.tolist()
        call = Call(lambda: _looped_layer(case, inputs, offsets))
        return Step(launches=(call,), out=call.out, allowed=_BF16_LAYER)


@dataclass(slots=True, kw_only=True)
class DenseMatmul:
    """One dense bf16 matmul of as many FLOPs: how fast a GEMM can be here, no peer."""

    name: str = "dense matmul of the same FLOPs, bf16"
    kind: str = "reference"
    quantises: bool = False
    least_tokens: int = 4096

    def refuses(self, case: Case, unit: Unit) -> str:
        """It says something only where operations are the bound."""
        if unit is Unit.LAYER:
            return "is one GEMM"
        if case.problem.tokens < self.least_tokens:
            return f"under {self.least_tokens} tokens weights are the bound, and it reads one expert's"
        return ""

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Multiply all rows by the first expert's weights."""
        rows, group = _engine_rows(case, unit, inputs)
        values = _bf16(rows, group)[: case.count(inputs)].contiguous()
        weight = case.dense(inputs).weights[unit][0].T
        call = Call(lambda: values @ weight)
        return Step(launches=(call,), out=call.out, allowed=_BF16_GEMM)


@dataclass(slots=True, kw_only=True)
class Vllm:
    """vLLM's Triton kernel with the configs that the database knows for it, else its own default."""

    configs: Mapping[Unit, LaunchConfig]
    why: str
    name: str = "vLLM fused_moe"
    kind: str = "peer"
    quantises: bool = True
    made: dict[object, Any] = field(default_factory=dict)

    def refuses(self, case: Case, unit: Unit) -> str:
        """It needs the package, plain formats and no biases."""
        absent = _absent(_VLLM, "fused_experts")
        if absent:
            return absent
        shape = case.problem.shape
        if shape.weights not in ("bf16", "fp8_block128") or shape.biases:
            return "its Triton kernel has neither mxfp4 nor biases"
        if shape.activation.kind != "swiglu" or shape.activation.alpha != 1.0:
            return "its layer has plain silu only"
        return ""

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Launch its GEMM as it would, or call its layer."""
        if unit is Unit.LAYER:
            return self._layer(case, inputs)
        kernel: Any = import_module("rubin_tune.kernels.fused_moe").PROVIDES
        engine = import_module("rubin_tune.kernels._fused_moe_inputs")
        routes = inputs.routed.routes[: case.count(inputs)].long()
        rows, group = _engine_rows(case, unit, inputs)
        given = (
            inputs.rows(permuted=False)
            if unit is Unit.GATE_UP
            else _by_route(rows, routes, inputs)
        )
        ids = torch.where(inputs.topk_ids < case.problem.local_experts, inputs.topk_ids, -1)
        weights = self._weights(case, inputs)
        mine = engine.Inputs(
            weights=weights,
            rows={unit: (given.data, given.scale)},
            topk_ids=ids,
            topk_weights=inputs.topk_weights,
        )
        launches = kernel.launches(case.problem, unit, self.configs[unit], mine)
        out = launches[-1].args[2]
        return Step(
            launches=launches,
            out=lambda: out[:, 0],
            allowed=kernel.tolerance(case.problem, unit),
            rows=(rows, group),
            places=routes,
        )

    def _weights(self, case: Case, inputs: Inputs) -> dict[Unit, tuple[Tensor, Tensor | None]]:
        key = id(inputs.weights)
        if key not in self.made:
            self.made = {key: {unit: engine_weight(case, unit, inputs) for unit in inputs.weights}}
        found: dict[Unit, tuple[Tensor, Tensor | None]] = self.made[key]
        return found

    def _layer(self, case: Case, inputs: Inputs) -> Step:
        module: Any = import_module(_VLLM)
        config: Any = import_module("vllm.model_executor.layers.fused_moe.config")
        weights = self._weights(case, inputs)
        (w1, s1), (w2, s2) = weights[Unit.GATE_UP], weights[Unit.DOWN]
        options: dict[str, Any] = {}
        if s1 is not None:
            options["quant_config"] = config.fp8_w8a8_moe_quant_config(
                w1_scale=s1, w2_scale=s2, block_shape=[128, 128]
            )
        experts, local = case.problem.shape.experts, case.problem.local_experts
        if local < experts:
            numbers = torch.arange(experts, dtype=torch.int32, device=inputs.device)
            options["expert_map"] = torch.where(numbers < local, numbers, -1)
            options["global_num_experts"] = experts
        gates = _router_weights(case, inputs)
        call = Call(
            lambda: module.fused_experts(inputs.x, w1, w2, gates, inputs.topk_ids, **options)
        )
        # Beside our own roundings it stores the gate-up product in bf16.
        allowed = MEGAMOE.tolerance(case.problem, Unit.LAYER) + 2 * _BF16
        return Step(launches=(call,), out=call.out, allowed=allowed)


@dataclass(slots=True, kw_only=True)
class DeepGemm:
    """DeepGEMM's contiguous grouped fp8 GEMM: rows padded to 128 an expert, scales laid out before."""

    name: str = "DeepGEMM"
    kind: str = "peer"
    quantises: bool = True

    def refuses(self, case: Case, unit: Unit) -> str:
        """It needs the package and fp8, and has no layer on this GPU."""
        absent = _absent("deep_gemm", "m_grouped_fp8_gemm_nt_contiguous")
        if absent:
            return absent
        if unit is Unit.LAYER:
            return "has no layer for sm_90"
        return "" if case.problem.weights.name == "fp8_block128" else "is compared in fp8 only"

    def step(self, case: Case, unit: Unit, inputs: Inputs) -> Step:
        """Pad and lay out outside the step; multiply in it."""
        module: Any = import_module("deep_gemm")
        rows, group = _engine_rows(case, unit, inputs)
        count = case.count(inputs)
        places, experts = _padded(inputs, count)
        data = torch.zeros(
            (len(experts), rows.data.shape[1]), dtype=rows.data.dtype, device=inputs.device
        )
        data.view(torch.uint8)[places] = rows.data[:count].view(torch.uint8)
        given = rows.scale
        if given is None:
            raise RuntimeError("fp8 rows have no scales")
        scale = torch.ones((len(experts), given.shape[1]), device=inputs.device)
        scale[places] = given[:count]
        lay_out = getattr(module, "get_mn_major_tma_aligned_tensor", None)
        scale = lay_out(scale) if lay_out else scale
        weight, weight_scale = engine_weight(case, unit, inputs)
        out = torch.empty(
            (len(experts), weight.shape[1]), dtype=torch.bfloat16, device=inputs.device
        )

        def multiply() -> Tensor:
            module.m_grouped_fp8_gemm_nt_contiguous(
                (data, scale), (weight, weight_scale), out, experts
            )
            return out

        call = Call(multiply)
        return Step(
            launches=(call,), out=call.out, allowed=2.0**-7, rows=(rows, group), places=places
        )


def _router_weights(case: Case, inputs: Inputs) -> Tensor:
    """Return the routed weights as an engine's router hands them over, the layer's factor included."""
    return inputs.topk_weights * case.problem.shape.routed_scaling_factor


def engine_weight(case: Case, unit: Unit, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
    """Return weights [experts, n, k] with gate rows before up rows, and scales [experts, n/128, k/128]."""
    matrix = inputs.weights[unit]
    gated = unit is Unit.GATE_UP and case.problem.shape.activation.gated
    data = matrix.data
    if gated:
        # Bytes: fp8 has no gather.
        data = deinterleave_gate_up(data.view(torch.uint8)).view(data.dtype)
    scale = matrix.scale
    return data, scale.flatten(1, 2) if scale is not None and gated else scale


def _engine_rows(case: Case, unit: Unit, inputs: Inputs) -> tuple[Quantised, int]:
    """Return what an engine's GEMM reads, in sorted order, with the scale group engines use."""
    group = x_group(case.problem)
    return (inputs.rows(True) if unit is Unit.GATE_UP else inputs.intermediate(group)), group


def _by_route(rows: Quantised, routes: Tensor, inputs: Inputs) -> Quantised:
    """Return sorted rows where their routes are."""
    data = torch.zeros_like(rows.data)
    data.view(torch.uint8)[routes] = rows.data[: len(routes)].view(torch.uint8)
    if rows.scale is None:
        return Quantised(data=data)
    scale = torch.ones_like(rows.scale)
    scale[routes] = rows.scale[: len(routes)]
    return Quantised(data=data, scale=scale)


def _padded(inputs: Inputs, count: int) -> tuple[Tensor, Tensor]:
    """Return the place of each sorted row among padded rows, and the expert of each (-1: padding)."""
    offsets = inputs.routed.offsets.long()
    counts = offsets.diff()
    blocks = (counts + _DEEP_GEMM_ROWS - 1) // _DEEP_GEMM_ROWS * _DEEP_GEMM_ROWS
    firsts = torch.cumsum(blocks, 0) - blocks
    row = torch.arange(count, device=inputs.device)
    expert = torch.searchsorted(offsets, row, right=True) - 1
    places = firsts[expert] + row - offsets[expert]
    experts = torch.full((int(blocks.sum()),), -1, dtype=torch.int32, device=inputs.device)
    experts[places] = expert.int()
    return places, experts


def _bf16(rows: Quantised, group: int) -> Tensor:
    return dequantise_rows(rows.data, rows.scale, group).to(torch.bfloat16)


def _grouped_mm(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    # The public name came with torch 2.10; both are one operator.
    multiply: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    found: Tensor = multiply(rows, weight, offs=ends)
    return found


def _activate(values: Tensor, activation: Activation) -> Tensor:
    """Return activated rows; columns are gate, then up."""
    if activation.kind == "relu2":
        return values.relu().square()
    gate, up = values.chunk(2, dim=-1)
    if activation.limit is not None:
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(-activation.limit, activation.limit)
    if activation.up_shift:
        up = up + activation.up_shift
    if activation.kind == "geglu":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    if activation.alpha == 1.0:
        return torch.nn.functional.silu(gate) * up
    return gate * torch.sigmoid(activation.alpha * gate) * up


def _sorted_routes(case: Case, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return the experts of the local rows, their routes, and the end of each expert's rows."""
    experts = case.problem.local_experts
    key, order = torch.sort(inputs.topk_ids.flatten())
    numbers = inputs.once(
        "numbers", lambda: torch.arange(experts, dtype=key.dtype, device=key.device)
    )
    ends = torch.searchsorted(key, numbers, right=True, out_int32=True)
    count = case.count(inputs)
    return key[:count], order[:count], ends


def _grouped_layer(case: Case, inputs: Inputs) -> Tensor:
    if not case.count(inputs):
        return torch.zeros_like(inputs.x)
    problem, dense = case.problem, case.dense(inputs)
    experts, order, ends = _sorted_routes(case, inputs)
    tokens = order // problem.shape.top_k
    hot = inputs.x.index_select(0, tokens)
    for unit in (Unit.GATE_UP, Unit.DOWN):
        hot = _grouped_mm(hot, dense.weights[unit].transpose(-2, -1), ends)
        bias = dense.biases[unit]
        if bias is not None:
            hot = hot + bias[experts]
        if unit is Unit.GATE_UP:
            hot = _activate(hot, problem.shape.activation)
    return _scaled(case, _combined(case, inputs, hot, order, tokens))


def _combined(case: Case, inputs: Inputs, rows: Tensor, order: Tensor, tokens: Tensor) -> Tensor:
    """Add rows by their tokens: a gather and a batched product where every route is local."""
    count, width = inputs.topk_ids.shape
    if len(order) == count * width:
        numbers = inputs.once("routes", lambda: torch.arange(len(order), device=order.device))
        place = torch.empty_like(order)
        place[order] = numbers
        gates = inputs.topk_weights.to(rows.dtype)[:, None, :]
        return torch.bmm(gates, rows[place].view(count, width, -1))[:, 0]
    gates = inputs.topk_weights.flatten()[order][:, None]
    out = torch.zeros((count, rows.shape[1]), dtype=torch.float32, device=rows.device)
    return out.index_add_(0, tokens, rows * gates).to(rows.dtype)


def _looped_layer(case: Case, inputs: Inputs, offsets: list[int]) -> Tensor:
    problem, dense = case.problem, case.dense(inputs)
    _, order, _ = _sorted_routes(case, inputs)
    tokens = order // problem.shape.top_k
    gates = inputs.topk_weights.flatten()[order][:, None]
    out = torch.zeros(inputs.x.shape, dtype=torch.float32, device=inputs.device)
    for expert in range(problem.local_experts):
        mine = slice(offsets[expert], offsets[expert + 1])
        if mine.start == mine.stop:
            continue
        hot = inputs.x[tokens[mine]]
        for unit in (Unit.GATE_UP, Unit.DOWN):
            hot = hot @ dense.weights[unit][expert].T
            bias = dense.biases[unit]
            if bias is not None:
                hot = hot + bias[expert]
            if unit is Unit.GATE_UP:
                hot = _activate(hot, problem.shape.activation)
        out.index_add_(0, tokens[mine], hot * gates[mine])
    return _scaled(case, out).to(inputs.x.dtype)


def _scaled(case: Case, out: Tensor) -> Tensor:
    factor = case.problem.shape.routed_scaling_factor
    return out if factor == 1.0 else out * factor
