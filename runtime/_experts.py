"""What transformers calls instead of an experts module's own forward (see transformers.py)."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..errors import InvalidInput
from ..kernels._megamoe_formats import deinterleave_gate_up, interleave_gate_up
from ..kernels._megamoe_inputs import Matrix
from ..kernels._megamoe_reference import activate
from ..search_spaces import Activation
from ..topology import Gpu
from ._weights import ExpertWeights, from_fused
from ._workspace import Workspace
from .megamoe import MegaMoE, shape_of
from .table import Table

# Names under which modules keep what their gate needs.
_LIMITS = ("limit", "swiglu_limit")
_ALPHAS = ("alpha", "swiglu_alpha")


# Where a module keeps the forward that it had of its own (accelerate's, say) while it is guarded.
_OWN_FORWARD = "_rubin_tune_own_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One module's layer, and how its weights are put back.

    Attributes:
        layer: What runs.
        undo: Each puts one matrix back into the checkpoint's order.
        addresses: Where the weights were when they were re-laid.
        hooks: To remove with it.
    """

    layer: MegaMoE
    undo: tuple[Callable[[], None], ...]
    addresses: tuple[int, ...]
    hooks: tuple[Any, ...]


@dataclass(slots=True, kw_only=True)
class Served:
    """The function that is registered; it knows the modules that it has served.

    Attributes:
        name: What the implementation is called.
        table: Winners, or None.
        gpu: What to plan for, or None.
        graphs: Replay CUDA graphs for few tokens.
        in_place: Re-lay weights in their own memory.
    """

    name: str
    table: Table | None
    gpu: Gpu | None
    graphs: bool
    in_place: bool
    _held: weakref.WeakKeyDictionary[nn.Module, _Held] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    # One a device: layers of one model run one after the other.
    _workspaces: dict[torch.device, Workspace] = field(default_factory=dict)

    def __call__(
        self, module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
    ) -> Tensor:
        """Run a module's experts: [.., hidden] -> [.., hidden]."""
        held = self._held.get(module)
        if held is None or held.addresses != _addresses(module):
            held = self._take(module, top_k_index.shape[-1])
        rows = hidden_states.reshape(-1, hidden_states.shape[-1])
        out = torch.empty_like(rows)
        held.layer(
            rows,
            top_k_index.reshape(rows.shape[0], -1),
            top_k_weights.reshape(rows.shape[0], -1),
            out=out,
        )
        return out.view(hidden_states.shape)

    def layer_of(self, module: nn.Module) -> MegaMoE | None:
        """Return the layer that serves a module."""
        held = self._held.get(module)
        return None if held is None else held.layer

    def restore(self, module: nn.Module) -> bool:
        """Put a module's weights back into the checkpoint's order; say whether they were in ours."""
        held = self._held.pop(module, None)
        if held is None:
            return False
        for hook in held.hooks:
            hook.remove()
        if held.undo:
            _unguard(module)
        if held.addresses == _addresses(module):
            # Others were put in their place by hand: those are in the checkpoint's order.
            with torch.no_grad():
                for undo in held.undo:
                    undo()
        return True

    def _take(self, module: Any, top_k: int) -> _Held:
        self.restore(module)
        activation = activation_of(module)
        _check(module)
        with torch.inference_mode(False), torch.no_grad():
            if self.in_place:
                weights, undo = _relay(module, activation.gated)
            else:
                weights, undo = _copy(module, activation.gated), ()
        device = weights.down.data.device
        layer = MegaMoE(
            shape_of(weights, top_k, activation),
            weights,
            table=self.table,
            gpu=self.gpu,
            graphs=self.graphs,
            workspace=self._workspaces.setdefault(device, Workspace()),
        )
        hooks = self._guard(module) if undo else ()
        held = _Held(layer=layer, undo=undo, addresses=_addresses(module), hooks=hooks)
        self._held[module] = held
        return held

    def _guard(self, module: Any) -> tuple[Any, ...]:
        """Put the weights back before anybody reads or writes them in the checkpoint's order."""
        reference = weakref.ref(module)

        def put_back(*_: Any) -> None:
            found = reference()
            if found is not None:
                self.restore(found)

        own = module.__dict__.get("forward")
        if own is not None:
            module.__dict__[_OWN_FORWARD] = own
        inner = own or type(module).forward.__get__(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if module.config._experts_implementation != self.name:
                put_back()
            return inner(*args, **kwargs)

        def move(*args: Any, **kwargs: Any) -> Any:
            put_back()
            return module._apply(*args, **kwargs)

        module.__dict__["forward"] = _Guard(forward)
        module.__dict__["_apply"] = _Guard(move)
        return (
            module.register_state_dict_pre_hook(put_back),
            module.register_load_state_dict_pre_hook(put_back),
        )


@dataclass(frozen=True, slots=True)
class _Guard:
    """A function that stands in a module's place for its own; a copy of the module must not share it."""

    run: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "these experts' weights are in rubin_tune's order: call "
            "rubin_tune.runtime.transformers.restore(model) before copying or pickling the model"
        )


def _unguard(module: nn.Module) -> None:
    own = module.__dict__.pop(_OWN_FORWARD, None)
    module.__dict__.pop("_apply", None)
    module.__dict__.pop("forward", None)
    if own is not None:
        module.__dict__["forward"] = own


def activation_of(module: Any) -> Activation:
    """Return the activation whose values are those of the module's own.

    Raises:
        InvalidInput: it is none that our kernels have.
    """
    line = torch.linspace(-10.0, 10.0, 81)
    if not module.has_gate:
        if torch.allclose(module.act_fn(line), line.clamp(min=0).square(), rtol=1e-3, atol=1e-4):
            return Activation(kind="relu2")
        raise _refusal(module, "its activation is not relu^2")
    gate, up = (part.flatten() for part in torch.meshgrid(line, line * 0.9 + 0.3, indexing="ij"))
    mixed = torch.stack((gate, up), dim=1)
    # With one gate and one up column a row, concatenated and interleaved are the same.
    theirs = module._apply_gate(mixed).flatten().double()
    for candidate in _candidates(module):
        ours = activate(mixed.double(), candidate).flatten()
        if torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4):
            return candidate
    raise _refusal(module, "its activation is none of swiglu (clamped or not) and tanh-GELU")


def _candidates(module: Any) -> Iterator[Activation]:
    limits = [None, *(getattr(module, name, None) for name in _LIMITS)]
    alphas = [1.0, *(getattr(module, name, None) for name in _ALPHAS)]
    yield Activation(kind="geglu")
    for limit, alpha, shift in itertools.product(limits, alphas, (0.0, 1.0)):
        if alpha is not None and (limit is None or limit > 0):
            # As the kernel spells them: plain numbers.
            yield Activation(
                alpha=float(alpha), limit=None if limit is None else float(limit), up_shift=shift
            )


def _check(module: Any) -> None:
    if getattr(module, "has_post_expert_norm", False):
        raise _refusal(module, "it normalises each expert's output")
    for name in _names(module):
        parameter = getattr(module, name)
        if not isinstance(parameter, Tensor) or parameter.dim() != 3:
            raise _refusal(module, f"its {name} is no tensor [experts, .., ..]")
        if parameter.dtype != torch.bfloat16:
            raise _refusal(module, f"its {name} is {parameter.dtype}, not torch.bfloat16")
        if not parameter.is_contiguous():
            raise _refusal(module, f"its {name} is not contiguous")


def _refusal(module: Any, why: str) -> InvalidInput:
    return InvalidInput(
        f"experts {type(module).__name__} cannot be run by rubin_tune: {why}; choose another "
        "experts implementation"
    )


def _names(module: Any) -> tuple[str, str]:
    return ("gate_up_proj" if module.has_gate else "up_proj"), "down_proj"


def _addresses(module: Any) -> tuple[int, ...]:
    return tuple(getattr(module, name).data_ptr() for name in _names(module))


def _relay(module: Any, gated: bool) -> tuple[ExpertWeights, tuple[Callable[[], None], ...]]:
    """Bring a module's weights into our layout, in place; return how to undo it."""
    up_name, down_name = _names(module)
    mixes = gated and module.is_concatenated
    transposed = module.is_transposed

    def ours(one: Tensor) -> Tensor:
        one = one.mT if transposed else one
        return interleave_gate_up(one) if mixes else one

    def theirs(one: Tensor) -> Tensor:
        one = deinterleave_gate_up(one) if mixes else one
        return one.mT if transposed else one

    up, down = getattr(module, up_name).data, getattr(module, down_name).data
    undo: list[Callable[[], None]] = []
    if mixes or transposed:
        up = _rewrite(up, ours, transposed, undo, theirs)
    if transposed:
        down = _rewrite(down, lambda one: one.mT, transposed, undo, lambda one: one.mT)
    bias = _bias(module, f"{up_name}_bias")
    if bias is not None and mixes:
        bias = interleave_gate_up(bias)
    weights = ExpertWeights(
        gate_up=Matrix(data=up, scale=None, bias=bias),
        down=Matrix(data=down, scale=None, bias=_bias(module, f"{down_name}_bias")),
        gated=gated,
    )
    return weights, tuple(undo)


def _copy(module: Any, gated: bool) -> ExpertWeights:
    up_name, down_name = _names(module)
    return from_fused(
        getattr(module, up_name).data,
        getattr(module, down_name).data,
        transposed=module.is_transposed,
        interleaved=not module.is_concatenated,
        gated=gated,
        gate_up_bias=_bias(module, f"{up_name}_bias"),
        down_bias=_bias(module, f"{down_name}_bias"),
    )


def _rewrite(
    stored: Tensor,
    change: Callable[[Tensor], Tensor],
    transposed: bool,
    undo: list[Callable[[], None]],
    back: Callable[[Tensor], Tensor],
) -> Tensor:
    """Rewrite one expert after the other in its own memory; return the memory in its new shape."""
    experts, rows, columns = stored.shape
    view = stored.view(experts, columns, rows) if transposed else stored
    _each(stored, view, change)
    undo.append(lambda: _each(view, stored, back))
    return view


def _each(source: Tensor, target: Tensor, change: Callable[[Tensor], Tensor]) -> None:
    for expert in range(source.shape[0]):
        # One batch of one, as the functions of kernels/_megamoe_formats.py take them.
        one = change(source[expert : expert + 1]).clone(memory_format=torch.contiguous_format)
        target[expert].copy_(one[0])


def _bias(module: Any, name: str) -> Tensor | None:
    found = getattr(module, name, None) if getattr(module, "has_bias", False) else None
    return None if found is None else found.detach().float().contiguous()
