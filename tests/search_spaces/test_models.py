"""Model presets, Hugging Face configs, TOML files of one's own, and formats."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.errors import CorruptFile, InvalidInput, UnknownName
from rubin_tune.search_spaces import (
    GEMMS,
    Activation,
    Layout,
    MoEShape,
    Problem,
    load_model,
    model_names,
    parse_routing,
    with_formats,
)

ROOT = Path(__file__).parents[2]
SHARED = ROOT / "../shared/data/models.toml"

# Config files of Hugging Face, cut down to the keys that say something about the MoE layer.
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "routed_scaling_factor": 2.5,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "swiglu_limit": 7.0,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 43,
    "swiglu_limit": 10.0,
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
MINIMAX = {
    "model_type": "minimax_m2",
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_local_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "shared_intermediate_size": 0,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
GLM_AIR = {
    "model_type": "glm4_moe",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 46,
    "first_k_dense_replace": 1,
}


def write(path: Path, value: object) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)


def layer(shape: MoEShape) -> tuple[object, ...]:
    """What a config.json can say of a preset."""
    return (
        *(shape.experts, shape.top_k, shape.hidden, shape.intermediate, shape.shared_experts),
        *(shape.layers, shape.weights, shape.activations, shape.activation, shape.biases),
    )


@pytest.mark.parametrize("model", model_names())
def test_every_preset_makes_a_problem(model: str) -> None:
    shape = load_model(model)
    one = Problem(shape=shape, layout=Layout(), routing=parse_routing("lognormal:0.5"), tokens=8)
    assert all(n > 0 and k > 0 for n, k in map(one.gemm, GEMMS))


def test_presets_are_those_of_the_shared_data() -> None:
    if not SHARED.exists():
        pytest.skip("the shared data folder is not beside this checkout")
    shared = tomllib.loads(SHARED.read_text(encoding="utf-8"))
    assert set(model_names()) >= set(shared)
    for name, row in shared.items():
        shape = load_model(name)
        for key in ("experts", "top_k", "hidden", "intermediate", "shared_experts", "weights"):
            assert getattr(shape, key) == row[key], (name, key)
        assert shape.activations == row["activations"]
        assert shape.layers == row["layers"] - row.get("dense_layers", 0)
        assert shape.also == tuple(row.get("also", ()))
        assert shape.shared_intermediate == row.get("shared_intermediate", 0)
        if "swiglu_limit" in row:
            assert shape.activation.limit == row["swiglu_limit"]
        assert shape.padded_intermediate == 0  # padding is another kernel's choice


def test_details_of_the_activation_are_known() -> None:
    assert load_model("gpt-oss-120b").activation == Activation(
        alpha=1.702, limit=7.0, up_shift=1.0
    )
    assert load_model("gpt-oss-20b").biases
    assert load_model("deepseek-v4-flash").activation.limit == 10.0
    assert load_model("Qwen3-30B-A3B").activation == Activation()


def test_near_names_are_offered() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .*deepseek-v4.1-flash") as caught:
        load_model("deepseek-v41-flash")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("deepseek-v3", DEEPSEEK_V3),
        ("qwen3-30b-a3b", QWEN3_MOE),
        ("mixtral-8x7b", MIXTRAL),
        ("gpt-oss-120b", GPT_OSS),
        ("deepseek-v4-flash", DEEPSEEK_V4),
        ("minimax-m2.5", MINIMAX),
        ("glm-4.5-air", GLM_AIR),
    ],
)
def test_huggingface_configs_give_the_presets(
    tmp_path: Path, model: str, config: dict[str, Any]
) -> None:
    own = load_model(write(tmp_path / "config.json", config))
    assert layer(own) == layer(load_model(model))
    assert own.routed_scaling_factor == config.get("routed_scaling_factor", 1.0)


def test_a_folder_is_named_after_itself(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    write(folder / "config.json", QWEN3_MOE)
    assert load_model(str(folder)).model == "my-model"


def test_nested_text_configs_are_found(tmp_path: Path) -> None:
    config = {"vision_config": {"hidden_size": 1152}, "text_config": QWEN3_MOE}
    config["text_config"] = {**QWEN3_MOE, "shared_expert_intermediate_size": 512}
    shape = load_model(write(tmp_path / "config.json", config))
    assert (shape.hidden, shape.shared_experts, shape.shared_intermediate) == (2048, 1, 512)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({"decoder_sparse_step": 2}, 24),
        ({"mlp_only_layers": [0, 1]}, 46),
        ({"moe_layer_freq": [0] * 8 + [1] * 40}, 40),
        ({"first_k_dense_replace": 3}, 45),
    ],
)
def test_dense_layers_are_not_counted(tmp_path: Path, change: dict[str, Any], layers: int) -> None:
    path = write(tmp_path / "config.json", {**QWEN3_MOE, **change})
    assert load_model(path).layers == layers


@pytest.mark.parametrize(
    ("act", "kind"), [("silu", "swiglu"), ("gelu_pytorch_tanh", "geglu"), ("relu2", "relu2")]
)
def test_activation_functions_are_read(tmp_path: Path, act: str, kind: str) -> None:
    shape = load_model(write(tmp_path / "config.json", {**QWEN3_MOE, "hidden_act": act}))
    assert shape.activation.kind == kind
    assert shape.activation.gated == (kind != "relu2")


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "fp8"},
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {},
    ],
)
def test_weights_that_no_kernel_multiplies_are_refused(
    tmp_path: Path, quantization: dict[str, Any]
) -> None:
    path = write(tmp_path / "config.json", {**QWEN3_MOE, "quantization_config": quantization})
    with pytest.raises(InvalidInput, match="quantized as"):
        load_model(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        "{}",
        "{" * 100_000,
        '{"num_experts": 8',
        json.dumps(DEEPSEEK_V3)[:-40],
        json.dumps({"num_experts": None, "hidden_size": 8}),
        '{"text_config": []}',
        *(
            json.dumps({**QWEN3_MOE, "num_experts": v})
            for v in (0, -8, 1.5, "8", True, [8], 1 << 40)
        ),
        json.dumps({**QWEN3_MOE, "num_experts": float("nan")}),
        json.dumps({**QWEN3_MOE, "num_experts_per_tok": 129}),
        json.dumps({**QWEN3_MOE, "hidden_size": float("inf")}),
        json.dumps({**QWEN3_MOE, "hidden_act": 3}),
        json.dumps({**QWEN3_MOE, "hidden_act": "mish"}),
        json.dumps({**QWEN3_MOE, "quantization_config": "fp8"}),
        json.dumps({**QWEN3_MOE, "quantization_config": {"quant_method": 8}}),
        json.dumps({**QWEN3_MOE, "_name_or_path": 8}),
        json.dumps({**QWEN3_MOE, "routed_scaling_factor": -1}),
        json.dumps({**QWEN3_MOE, "swiglu_limit": float("nan")}),
        '{"num_experts": ' + "9" * 5000 + "}",
        "\x00" * 64,
    ],
)
def test_corrupt_configs_are_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_model(write(tmp_path / "config.json", text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("name", ["config.json", "model.toml"])
def test_bytes_and_huge_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptFile):
        load_model(str(tmp_path / name))
    (tmp_path / name).write_bytes(b" " * (5 << 20))
    with pytest.raises(CorruptFile, match="4 MiB"):
        load_model(str(tmp_path / name))


@pytest.mark.parametrize("name", ["missing.json", "no/such/config.json", "a\x00b", "x" * 5000])
def test_names_that_are_no_files_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        load_model(name)


TOML = 'experts = 16\ntop_k = 2\nhidden = 512\nintermediate = 256\nweights = "fp8"\n'


@pytest.mark.parametrize("text", [TOML, f"[mine]\n{TOML}"])
def test_a_toml_of_ones_own(tmp_path: Path, text: str) -> None:
    shape = load_model(write(tmp_path / "mine.toml", text + "padded_intermediate = 384\n"))
    assert (shape.model, shape.weights, shape.activations) == (
        "mine",
        "fp8_block128",
        "fp8_block128",
    )
    assert shape.padded_intermediate == 384


@pytest.mark.parametrize(
    "text",
    [
        "",
        "experts = ",
        TOML + "expert = 3",
        TOML.replace("16", "-16"),
        TOML.replace("16", "nan"),
        TOML.replace("16", '"16"'),
        TOML.replace("fp8", "int3"),
        TOML + 'activation = "tanh"',
        TOML + "biases = 1",
        TOML + 'also = ["int3"]',
        TOML + "layers = 3\ndense_layers = 3",
        TOML + "swiglu_limit = -1.0",
        f"[a]\n{TOML}[b]\n{TOML}",
    ],
)
def test_corrupt_tomls_are_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_model(write(tmp_path / "mine.toml", text))
    assert "\n" not in str(caught.value)


def test_a_slip_in_a_key_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="did you mean experts"):
        load_model(write(tmp_path / "mine.toml", TOML + "expert = 3"))


def test_formats_change_with_what_checkpoints_exist() -> None:
    bf16 = load_model("qwen3-30b-a3b")
    fp8 = with_formats(bf16, "fp8", None)
    assert (fp8.weights, fp8.activations) == ("fp8_block128", "fp8_block128")
    assert with_formats(fp8, "bf16", None) == bf16
    assert with_formats(bf16, None, None) == bf16


def test_activations_change_within_the_pairs() -> None:
    flash = load_model("deepseek-v4.1-flash")
    assert with_formats(flash, None, "bf16").activations == "bf16"
    assert with_formats(flash, "mxfp4", None) == flash
    assert with_formats(load_model("gpt-oss-20b"), "mxfp4", None).activations == "bf16"


@pytest.mark.parametrize(
    ("weights", "activations", "words"),
    [
        ("mxfp4", None, "has bf16 and fp8 weights"),
        ("int3", None, "has bf16 and fp8 weights"),
        ("fp8", "mxfp8", "with fp8 weights it must be fp8"),
        (None, "fp8", "with bf16 weights it must be bf16"),
    ],
)
def test_formats_that_the_model_lacks_are_refused(
    weights: str | None, activations: str | None, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        with_formats(load_model("qwen3-30b-a3b"), weights, activations)
