"""Our kernels as an experts implementation of transformers 5.

    from rubin_tune.runtime.transformers import register
    register(table="tables/megamoe-qwen3-30b-a3b.json")
    model.set_experts_implementation("rubin_tune")

Importing this module imports neither transformers nor torch.

A model's gate_up weights are re-laid (gate and up rows interleaved, transposed ones made K-major) in their
own memory at the first step, so nothing is held twice: while "rubin_tune" is chosen, `gate_up_proj` holds its
rows in our order. They are put back when another implementation is called and before the module is moved,
saved or loaded (`to`, `state_dict`, `load_state_dict`); `restore(model)` does so at once. Whoever holds the
parameters' memory past those doors (a state dict taken before the step, an adapter to merge) calls `restore`
first, or registers with `in_place=False`, which keeps a second copy of the gate_up weights instead.

Forward only. Served are experts modules with the weights gate_up_proj and down_proj (or up_proj and
down_proj with relu^2) in bfloat16 on one GPU, with SwiGLU (also clamped, as gpt-oss and DeepSeek-V4 have it)
or tanh-GELU; what the activation is, is found by asking the module itself. Others are refused in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidInput
from .table import Table

if TYPE_CHECKING:
    from torch import nn

    from ..topology import Gpu
    from ._experts import Served

NAME = "rubin_tune"


def register(
    *,
    table: Table | str | Path | None = None,
    name: str = NAME,
    gpu: Gpu | None = None,
    graphs: bool = True,
    in_place: bool = True,
) -> None:
    """Offer our kernels to transformers' `set_experts_implementation`.

    Args:
        table: Winners to launch, or where to load them from; None = the kernels' own configs.
        name: What the implementation is called.
        gpu: What to plan for; None = the GPU on which a model's weights lie.
        graphs: Replay CUDA graphs of up to 256 tokens.
        in_place: Re-lay the weights in their own memory; False = keep a second copy.

    Raises:
        InvalidInput: transformers is not installed, or has no experts interface.
        CorruptFile: the table cannot be read.
    """
    try:
        from transformers.integrations.moe import ExpertsInterface
    except ImportError as error:
        raise InvalidInput(
            f"transformers has no experts interface here ({error}): install transformers >= 5"
        ) from error
    import torch

    from ._experts import Served

    found = Table.load(table) if isinstance(table, str | Path) else table
    served = Served(name=name, table=found, gpu=gpu, graphs=graphs, in_place=in_place)
    _SERVED[name] = served
    # A compiled model calls it between its graphs: what it launches is compiled already.
    entry = torch.compiler.disable(served.__call__)  # type: ignore[no-untyped-call]
    ExpertsInterface.register(name, entry)


def restore(model: nn.Module) -> int:
    """Put the weights of a model's experts back into the checkpoint's order; return of how many modules."""
    return sum(served.restore(module) for served in _SERVED.values() for module in model.modules())


def why(module: nn.Module, tokens: int) -> str:
    """Say from where the configs of an experts module are for a token count.

    Raises:
        InvalidInput: the module has not been run by our kernels yet.
    """
    for served in _SERVED.values():
        layer = served.layer_of(module)
        if layer is not None:
            return layer.configs(tokens)[1]
    raise InvalidInput(f"{type(module).__name__} has not been run by rubin_tune: run a step first")


_SERVED: dict[str, Served] = {}
