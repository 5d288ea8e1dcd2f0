"""Reads the MoE layer of a model from its Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import InvalidInput
from ._fields import Fields
from .problem import PAIRS, Activation, MoEShape

_EXPECTED = "a Hugging Face config.json of an MoE model"
# One row a quantity: the names that model families use, the most specific first.
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_ACTIVATIONS = {
    "silu": "swiglu",
    "swiglu": "swiglu",
    "swigluoai": "swiglu",
    "gelu": "geglu",
    "gelu_tanh": "geglu",
    "gelu_pytorch_tanh": "geglu",
    "relu2": "relu2",
}


def shape_from_config(config: Mapping[str, object], path: Path) -> MoEShape:
    """Make a shape from the parsed config (multimodal ones keep the layer in text_config).

    Raises:
        CorruptFile: not the config of an MoE model, or values of the wrong type.
        InvalidInput: a quantization that no kernel of ours multiplies.
    """
    outer = Fields(config, path, _EXPECTED)
    own = next(
        (f for f in (outer.inner(k) for k in ("text_config", "language_config")) if f), None
    )
    fields = own if own and not any(outer.has(key) for key in _EXPERTS) else outer
    if not any(fields.has(key) for key in _EXPERTS):
        raise outer.wrong("it names no experts (n_routed_experts, num_experts, num_local_experts)")
    quantization = fields.inner("quantization_config") or outer.inner("quantization_config")
    weights = _weights(fields, outer, quantization)
    shared, shared_width = _shared(fields)
    is_gpt_oss = fields.text("model_type", "").startswith("gpt_oss")
    return MoEShape(
        model=_name(outer, path),
        experts=fields.count(fields.first(*_EXPERTS)),
        top_k=fields.count(fields.first(*_TOP_K)),
        hidden=fields.count(fields.first("routed_expert_hidden_size", "hidden_size")),
        intermediate=fields.count(fields.first(*_WIDTH)),
        shared_experts=shared,
        shared_intermediate=shared_width,
        layers=_moe_layers(fields),
        weights=weights,
        # Weights of gpt-oss are multiplied with bf16 rows; DeepSeek-V4's with mxfp8 ones.
        activations="bf16" if is_gpt_oss else PAIRS[weights][0],
        activation=_activation(fields, is_gpt_oss),
        biases=is_gpt_oss,
        routed_scaling_factor=fields.number("routed_scaling_factor", 1.0),
    )


def _name(outer: Fields, path: Path) -> str:
    given = outer.text("_name_or_path", "").rstrip("/").rpartition("/")[2]
    if given:
        return given.lower()
    return (path.resolve().parent.name if path.name == "config.json" else path.stem).lower()


def _shared(fields: Fields) -> tuple[int, int]:
    width = fields.count(fields.first(*_SHARED_WIDTH), 0)
    return fields.count(fields.first(*_SHARED), 1 if width else 0), width


def _moe_layers(fields: Fields) -> int:
    layers = fields.count("num_hidden_layers")
    dense = fields.table.get("mlp_only_layers") or []
    frequency = fields.table.get("moe_layer_freq")
    if isinstance(frequency, list):  # one entry a layer, 1 = MoE
        return max(1, sum(1 for entry in frequency if entry))
    steps = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq")
    step = fields.count(fields.first(*steps), 1) or 1
    listed = len(dense) if isinstance(dense, list) else 0
    first = fields.count("first_k_dense_replace", 0)
    return max(1, (layers - first) // step - listed)


def _activation(fields: Fields, is_gpt_oss: bool) -> Activation:
    word = fields.text(fields.first("hidden_act", "hidden_activation", "mlp_hidden_act"), "silu")
    if word not in _ACTIVATIONS:
        raise fields.wrong(f"activation is {word!r}: known are {', '.join(_ACTIVATIONS)}")
    limit = fields.number("swiglu_limit", 7.0 if is_gpt_oss else 0.0) or None
    if is_gpt_oss:  # Source: openai/gpt-oss, model.py: swiglu(alpha=1.702, limit=7.0), up + 1
        return Activation(alpha=fields.number("swiglu_alpha", 1.702), limit=limit, up_shift=1.0)
    return Activation(kind=_ACTIVATIONS[word], limit=limit)


def _weights(fields: Fields, outer: Fields, quantization: Fields | None) -> str:
    if fields.text("expert_dtype", outer.text("expert_dtype", "")) == "fp4":
        return "mxfp4"  # DeepSeek-V4: fp8 linears, experts in E2M1 with a scale per 32
    if quantization is None:
        return "bf16"
    method = quantization.text("quant_method", "")
    block = quantization.table.get("weight_block_size")
    if method == "mxfp4":
        return "mxfp4"
    if method == "fp8" and block == [128, 128]:
        return "fp8_block128"
    detail = f" with blocks of {block!r:.40}" if block is not None else ""
    raise InvalidInput(
        f"weights in {str(outer.path)!r} are quantized as {method or 'unnamed'!r}{detail}: must "
        "be bf16 (no quantization_config), fp8 with weight_block_size [128, 128], or mxfp4"
    )
