"""`MegaMoE`: the tuned layer as a torch module, forward only.

    from rubin_tune.runtime import MegaMoE, Table
    layer = MegaMoE.from_tensors(tensors, "model.layers.3.mlp.experts.", top_k=8, table=Table.load(path))
    y = layer(hidden, topk_ids, topk_weights)

The first step with a token count plans it: chooses the configs, allocates buffers, compiles, and for few
tokens captures a CUDA graph of the layer's launches. Later steps with that count allocate nothing and
never wait for the GPU, so they can be captured in a CUDA graph of the caller's (call `plan` before). Steps of
up to 256 tokens are padded to one of 16 sizes, so few graphs are ever made.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..db.silicon import silicon_of
from ..db.table_file import problem_keys
from ..errors import InvalidInput
from ..kernels._megamoe_inputs import Matrix
from ..kernels._megamoe_serve import ServedPlan
from ..kernels.megamoe import PROVIDES
from ..search_spaces import (
    GEMMS,
    PAIRS,
    Activation,
    LaunchConfig,
    Layout,
    MoEShape,
    Problem,
    Unit,
    parse_routing,
)
from ..topology import Gpu, detect_gpu
from ._checkpoints import from_tensors
from ._step import Step
from ._weights import ExpertWeights, from_experts, from_fused
from ._workspace import SMALL_TOKENS, Workspace, padded
from .choices import Look
from .table import Table

# More tokens than this are run in pieces, so that buffers stay bounded.
DEFAULT_CAPACITY = 16384
# What a sweep assumes where nobody names a routing (tuner/request.py).
DEFAULT_ROUTING = "lognormal:0.5"


class MegaMoE(nn.Module):
    """The routed experts of one layer on one rank: gate_up, activation, down, weighted sum.

    Args:
        shape: The whole layer, before sharding.
        weights: The rank's experts, in our layout.
        layout: How the layer is sharded.
        first_expert: Global number of this rank's expert 0; routes to other ranks' experts add nothing.
        table: Winners to launch; None = the kernel's own configs.
        gpu: What the kernel's own configs and the table's silicon go by; None = the weights' GPU.
        routing: The routing whose winners are meant, as --routing spells it.
        capacity: Tokens of the largest step; more are run in pieces.
        graphs: Replay CUDA graphs of up to 256 tokens: launching five kernels from Python takes longer
            than running them.
        workspace: Buffers to share with other layers of the same stream; None = own ones.

    Raises:
        InvalidInput: weights that do not fit the shape, or a capacity below 1.
    """

    def __init__(
        self,
        shape: MoEShape,
        weights: ExpertWeights,
        *,
        layout: Layout | None = None,
        first_expert: int = 0,
        table: Table | None = None,
        gpu: Gpu | None = None,
        routing: str = DEFAULT_ROUTING,
        capacity: int = DEFAULT_CAPACITY,
        graphs: bool = True,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__()
        if capacity < 1:
            raise InvalidInput(f"capacity is {capacity}: must be at least 1")
        self.problem = Problem(
            shape=shape, layout=layout or Layout(), routing=parse_routing(routing), tokens=1
        )
        _check_fit(self.problem, weights)
        self.first_expert, self.capacity, self.graphs = first_expert, capacity, graphs
        self.table, self.workspace = table, workspace or Workspace()
        for unit, matrix in weights.matrices.items():
            for name in ("data", "scale", "bias"):
                tensor = getattr(matrix, name)
                held = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
                self.register_parameter(f"{unit.value}_{name}", held)
        self._gpu = gpu
        self._steps: weakref.WeakKeyDictionary[ServedPlan, Step] = weakref.WeakKeyDictionary()
        self._look: dict[Unit, Look] | None = None
        self._code, self._where = "", torch.device("cpu")
        self._reset()

    @classmethod
    def from_fused(
        cls,
        gate_up: Tensor,
        down: Tensor,
        *,
        top_k: int,
        activation: Activation | None = None,
        transposed: bool = False,
        interleaved: bool = False,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        gate_up_scale: Tensor | None = None,
        down_scale: Tensor | None = None,
        **options: Any,
    ) -> MegaMoE:
        """Return a layer from fused tensors (`_weights.from_fused`) that holds all of its experts."""
        activation = activation or Activation()
        weights = from_fused(
            gate_up,
            down,
            transposed=transposed,
            interleaved=interleaved,
            gated=activation.gated,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            gate_up_scale=gate_up_scale,
            down_scale=down_scale,
        )
        return cls(shape_of(weights, top_k, activation), weights, **options)

    @classmethod
    def from_experts(
        cls,
        w1: Sequence[Tensor],
        w3: Sequence[Tensor],
        w2: Sequence[Tensor],
        *,
        top_k: int,
        activation: Activation | None = None,
        scales: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]] = ((), (), ()),
        **options: Any,
    ) -> MegaMoE:
        """Return a layer from one gate, up and down matrix an expert; `scales` of w1, w3 and w2."""
        weights = from_experts(
            w1, w3, w2, w1_scale=scales[0], w3_scale=scales[1], w2_scale=scales[2]
        )
        return cls(shape_of(weights, top_k, activation or Activation()), weights, **options)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        *,
        top_k: int,
        activation: Activation | None = None,
        activations: str | None = None,
        interleaved: bool | None = None,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> MegaMoE:
        """Return a layer from a checkpoint's tensors (`_checkpoints.from_tensors`).

        `activations` is the format of rows; None = bf16 for gpt-oss, else the usual one of the weights.
        """
        weights = from_tensors(tensors, prefix, device=device, interleaved=interleaved)
        shape = shape_of(weights, top_k, activation or Activation(), activations)
        return cls(shape, weights, **options)

    def forward(
        self,
        hidden: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted sum over each token's experts.

        Args:
            hidden: bfloat16 [tokens, hidden].
            topk_ids: Integers [tokens, top_k], global expert numbers; a number that is no expert of
                this rank adds nothing.
            topk_weights: Floating-point [tokens, top_k].
            out: bfloat16 [tokens, hidden] to write; None = a buffer that the next step of this layer, or
                of one that shares its workspace, overwrites.

        Raises:
            InvalidInput: shapes or dtypes do not fit, a gradient is wanted, or the stream is being
                captured and this token count was not planned.
        """
        self._check(hidden, topk_ids, topk_weights, out)
        tokens = hidden.shape[0]
        if tokens <= self.capacity:
            if tokens == 0:
                return hidden.new_empty(hidden.shape) if out is None else out
            step = self._step(tokens)
            return step.run(hidden, topk_ids, topk_weights, out)
        if out is None:
            out = torch.empty_like(hidden)
        for first in range(0, tokens, self.capacity):
            piece = slice(first, first + self.capacity)
            self.forward(hidden[piece], topk_ids[piece], topk_weights[piece], out=out[piece])
        return out

    def plan(self, tokens: int) -> dict[Unit, LaunchConfig]:
        """Prepare steps of a token count; return the configs that they launch.

        Raises:
            InvalidInput: a token count below 1 or above the capacity.
        """
        if not 1 <= tokens <= self.capacity:
            raise InvalidInput(f"tokens is {tokens}: must be 1 to the capacity of {self.capacity}")
        self._step(tokens)
        return self.configs(padded(tokens))[0]

    def configs(self, tokens: int) -> tuple[dict[Unit, LaunchConfig], str]:
        """Return what is launched for a token count, and why (as a table's look-up says it)."""
        problem, gpu = self.problem.at(tokens), self._silicon()
        own = {unit: PROVIDES.default(problem, unit, gpu) for unit in GEMMS}
        if self.table is None:
            return own, "default: no table was given"
        chosen, words = self._chosen(tokens)
        for unit in GEMMS:
            config = chosen.setdefault(unit, own[unit])
            if not PROVIDES.space(problem, unit, gpu).contains(config):
                return own, f"default: the table's {unit.value} config is not legal here"
        if len({PROVIDES.coupling(config) for config in chosen.values()}) > 1:
            return own, "default: the table's configs of the two GEMMs do not fit together"
        return chosen, words

    def _chosen(self, tokens: int) -> tuple[dict[Unit, LaunchConfig], str]:
        """Return what the table says: the layer's winner, else the winner of each GEMM, where there are any."""
        looks = self._looks()
        layer = looks[Unit.LAYER](tokens)
        if layer.config:
            return {unit: _part(layer.config, unit) for unit in GEMMS}, f"layer {layer.why}"
        found = {unit: looks[unit](tokens) for unit in GEMMS}
        configs = {
            unit: LaunchConfig.of(dict(choice.config))
            for unit, choice in found.items()
            if choice.config
        }
        return configs, "; ".join(f"{unit.value} {choice.why}" for unit, choice in found.items())

    def _looks(self) -> dict[Unit, Look]:
        if self._look is None:
            if self.table is None:
                raise InvalidInput("there is no table to look configs up in")
            keys = problem_keys(self.problem, silicon_of(self._silicon()))
            self._look = {
                unit: self.table.bind(PROVIDES.name, keys, unit=unit.value)
                for unit in (Unit.LAYER, *GEMMS)
            }
        return self._look

    @property
    def matrices(self) -> dict[Unit, Matrix]:
        """The weights, as the kernel's plans take them."""
        return {
            unit: Matrix(
                data=getattr(self, f"{unit.value}_data"),
                scale=getattr(self, f"{unit.value}_scale"),
                bias=getattr(self, f"{unit.value}_bias"),
            )
            for unit in GEMMS
        }

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.get_parameter("gate_up_data").device

    def extra_repr(self) -> str:
        """Say what the layer is, for print()."""
        problem = self.problem
        return (
            f"experts={problem.local_experts}, top_k={problem.shape.top_k}, "
            f"hidden={problem.shape.hidden}, intermediate={problem.local_intermediate}, "
            f"weights={problem.shape.weights}"
        )

    def _apply(self, *args: Any, **kwargs: Any) -> MegaMoE:
        # Moved weights have other addresses: what was planned reads the old ones.
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._reset()
        return self

    def __getstate__(self) -> dict[str, Any]:
        # What is planned belongs to this module's memory: copies plan anew.
        fresh = {"_steps": weakref.WeakKeyDictionary(), "workspace": Workspace(), "_look": None}
        return {**self.__dict__, **fresh}

    def _reset(self) -> None:
        self._steps.clear()
        self._where = self.device
        self._look = None
        table = "" if self.table is None else self.table.content_hash
        forms = [str(None if p is None else p.dtype) for p in self._parameters.values()]
        self._code = "|".join((self.problem.key, str(self.device), table, *forms))

    def _step(self, tokens: int) -> Step:
        planned = min(padded(tokens), self.capacity)
        pads = planned != tokens
        code = f"{self._code}|padded" if pads else self._code
        plan = self.workspace.find(code, planned)
        step = None if plan is None else self._steps.get(plan)
        if step is not None:
            return step
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise InvalidInput(
                f"{tokens} tokens are not planned and the stream is being captured: call "
                f"plan({tokens}) or run one such step before the capture"
            )
        # Buffers made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            plan = self.workspace.plan(code, planned, lambda: self._make(planned))
            graph = self.graphs and planned <= SMALL_TOKENS
            step = Step(
                plan, self.matrices, first_expert=self.first_expert, graph=graph, padded=pads
            )
        self._steps[plan] = step
        return step

    def _make(self, tokens: int) -> ServedPlan:
        configs, _ = self.configs(tokens)
        problem = self.problem.at(tokens)
        return PROVIDES.serve(problem, configs, self.matrices, device=self.device)

    def _silicon(self) -> Gpu:
        if self._gpu is None:
            index = self.device.index or 0 if self.device.type == "cuda" else 0
            self._gpu = detect_gpu(index)
        if self._gpu is None:
            raise InvalidInput(
                "no CUDA GPU is present: say what to plan for with gpu=load_gpu(NAME)"
            )
        return self._gpu

    def _check(self, hidden: Tensor, ids: Tensor, weights: Tensor, out: Tensor | None) -> None:
        shape = self.problem.shape
        if hidden.dim() != 2 or hidden.shape[1] != shape.hidden:
            raise InvalidInput(f"hidden is {list(hidden.shape)}: must be [tokens, {shape.hidden}]")
        if hidden.dtype != torch.bfloat16:
            raise InvalidInput(f"hidden is {hidden.dtype}: must be torch.bfloat16")
        if hidden.device != self._where:
            raise InvalidInput(
                f"hidden is on {hidden.device}: must be on {self._where}, as the weights"
            )
        wanted = (hidden.shape[0], shape.top_k)
        for name, given in (("topk_ids", ids), ("topk_weights", weights)):
            if given.shape != wanted:
                raise InvalidInput(f"{name} is {list(given.shape)}: must be {list(wanted)}")
        if ids.dtype.is_floating_point or ids.dtype is torch.bool:
            raise InvalidInput(f"topk_ids is {ids.dtype}: must be integers")
        if out is not None and (out.shape != hidden.shape or out.dtype != hidden.dtype):
            raise InvalidInput(
                f"out is {out.dtype} {list(out.shape)}: must be {hidden.dtype} {list(hidden.shape)}"
            )
        if torch.is_grad_enabled() and (hidden.requires_grad or weights.requires_grad):
            raise InvalidInput("MegaMoE has no backward: run it under torch.no_grad()")


def _part(config: Mapping[str, int | str | bool], unit: Unit) -> LaunchConfig:
    """Return one GEMM's part of a layer's config: a config for both, or all with the unit's name before."""
    before = f"{unit.value}."
    own = {k.removeprefix(before): v for k, v in config.items() if k.startswith(before)}
    return LaunchConfig.of(own or dict(config))


@functools.cache
def _present(index: int) -> Gpu | None:
    return detect_gpu(index)


def shape_of(
    weights: ExpertWeights, top_k: int, activation: Activation, activations: str | None = None
) -> MoEShape:
    """Return the layer of which some weights are all the experts.

    Without `activations` rows are bf16 beside mxfp4 weights with biases, which is gpt-oss.

    Raises:
        InvalidInput: more experts a token than there are.
    """
    biases = weights.gate_up.bias is not None
    usual = "bf16" if biases and weights.form == "mxfp4" else PAIRS[weights.form][0]
    return MoEShape(
        model="served",
        experts=weights.experts,
        top_k=top_k,
        hidden=weights.hidden,
        intermediate=weights.intermediate,
        weights=weights.form,
        activations=activations or usual,
        activation=activation,
        biases=biases,
    )


def _check_fit(problem: Problem, weights: ExpertWeights) -> None:
    shape = problem.shape
    wanted = {
        "experts": (weights.experts, problem.local_experts),
        "hidden": (weights.hidden, shape.hidden),
        "intermediate": (weights.intermediate, problem.local_intermediate),
        "format": (weights.form, shape.weights),
        "gated": (weights.gated, shape.activation.gated),
        "biases": (weights.gate_up.bias is not None, shape.biases),
    }
    for name, (given, asked) in wanted.items():
        if given != asked:
            raise InvalidInput(
                f"{name} of the weights is {given!r}: must be {asked!r}, as the shape's"
            )
    if (weights.gate_up.bias is None) != (weights.down.bias is None):
        raise InvalidInput("only one of the two matrices has a bias: must be both or none")
