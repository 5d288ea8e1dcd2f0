"""The space of our own kernel: properties for every model, layout, GPU and unit."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import (
    GEMMS,
    VLLM_LADDER,
    Activation,
    LaunchConfig,
    Problem,
    Space,
    Unit,
    load_model,
    megamoe,
    model_names,
    parse_layout,
    parse_routing,
    with_formats,
)
from rubin_tune.topology import gpu_names, load_gpu

ROUTING = parse_routing("lognormal:0.5")
# Each format on each kind of GPU, and widths that are ragged after sharding.
CASES = [
    (model, layout, gpu)
    for model, layout in (
        ("deepseek-v4.1-flash", "dep8"),
        ("deepseek-v4.1-flash", "tp4"),
        ("gpt-oss-120b", "single"),
        ("deepseek-v3", "dep8"),
        ("qwen3-30b-a3b", "single"),
    )
    for gpu in ("vr200", "gb300", "h200")
]


def make(model: str, layout: str, gpu: str, tokens: int = 64) -> Problem:
    shape = load_model(model)
    return Problem(
        shape=shape,
        layout=parse_layout(layout, shape, load_gpu(gpu)),
        routing=ROUTING,
        tokens=tokens,
    )


@cache
def space(model: str, layout: str, gpu: str, unit: Unit) -> Space:
    return megamoe.space(make(model, layout, gpu), unit, load_gpu(gpu))


SPACES = st.builds(
    lambda case, unit: space(*case, unit), st.sampled_from(CASES), st.sampled_from(GEMMS)
)


@st.composite
def points(draw: st.DrawFn) -> tuple[Space, LaunchConfig]:
    found = draw(SPACES)
    return found, draw(st.sampled_from(found.legal()))


@given(points())
@settings(max_examples=150, deadline=None)
def test_a_legal_point_obeys_every_rule(
    point: tuple[Space, LaunchConfig],
) -> None:
    found, config = point
    assert all(rule.holds(config) for rule in found.constraints)
    assert found.canonical(config) == config
    assert found.contains(config)
    assert found.why_not(config) is None


@given(points())
@settings(max_examples=60, deadline=None)
def test_a_legal_point_spells_itself_and_moves_to_legal_points(
    point: tuple[Space, LaunchConfig],
) -> None:
    found, config = point
    assert found.parse(str(config).split(), found.legal()[0]) == config
    near = found.neighbours(config)
    assert near
    assert config not in near
    assert all(found.contains(other) for other in near)


@given(SPACES, st.data())
@settings(max_examples=100, deadline=None)
def test_a_grid_point_is_legal_or_a_rule_says_why(found: Space, data: st.DataObject) -> None:
    config = LaunchConfig.of(
        {p.name: data.draw(st.sampled_from(p.values)) for p in found.parameters}
    )
    assert (found.why_not(config) is None) == (config in set(found.legal()))


@pytest.mark.parametrize(("model", "layout", "gpu"), CASES)
@pytest.mark.parametrize("unit", GEMMS)
def test_spaces_are_large_but_listed_at_once(
    model: str, layout: str, gpu: str, unit: Unit
) -> None:
    found = megamoe.space(make(model, layout, gpu), unit, load_gpu(gpu))
    start = time.perf_counter()
    legal = found.legal()
    assert time.perf_counter() - start < 2
    assert 800 <= len(legal) <= 50_000
    assert found.size == len(legal) + found.duplicates + sum(n for _, n in found.removed())
    assert len(found.seeds) >= 5
    assert all(found.contains(seed) for seed in found.seeds)


def test_points_are_told_apart_by_their_encoding() -> None:
    found = space("deepseek-v4.1-flash", "dep8", "vr200", Unit.GATE_UP)
    rows = np.array([found.encode(c) for c in found.legal()])
    assert len(np.unique(rows, axis=0)) == len(found.legal())


@pytest.mark.parametrize("gpu", gpu_names())
@pytest.mark.parametrize("model", model_names())
def test_the_default_is_legal_and_its_units_fit_together(model: str, gpu: str) -> None:
    device, shape = load_gpu(gpu), load_model(model)
    formats = [with_formats(shape, weights, None) for weights in (shape.weights, *shape.also)]
    if shape.weights == "mxfp4":
        formats += [with_formats(shape, None, a) for a in ("bf16", "mxfp8")]
    for chosen in formats:
        for layout in ("dep8", "tp2"):
            sharded = parse_layout(layout, chosen, device)
            for tokens in (1, 64, 4096):
                one = Problem(shape=chosen, layout=sharded, routing=ROUTING, tokens=tokens)
                both = [megamoe.default(one, unit, device) for unit in GEMMS]
                for unit, config in zip(GEMMS, both, strict=True):
                    assert megamoe.space(one, unit, device).contains(config)
                assert both[0]["act_group"] == both[1]["act_group"]


def test_the_default_grows_with_the_rows_of_an_expert() -> None:
    device = load_gpu("h200")
    one = make("qwen3-30b-a3b", "single", "h200")
    rows = [
        megamoe.default(one.at(tokens), Unit.GATE_UP, device).integer("block_m")
        for tokens in VLLM_LADDER
    ]
    assert rows == sorted(rows)
    assert (rows[0], rows[-1]) == (16, 128)


def test_scaled_products_keep_128_rows_on_the_m_side() -> None:
    for gpu in ("vr200", "gb300"):
        for config in space("deepseek-v4.1-flash", "dep8", gpu, Unit.DOWN).legal():
            side = config["block_n"] if config["swap_ab"] else config["block_m"]
            assert side == 128
    hopper = space("deepseek-v4.1-flash", "dep8", "h200", Unit.DOWN).legal()
    assert any(not c["swap_ab"] and c["block_m"] == 16 for c in hopper)


def test_packed_fp4_leaves_room_for_more_stages_on_rubin() -> None:
    deepest = {
        gpu: max(
            c.integer("num_stages")
            for c in space("deepseek-v4.1-flash", "dep8", gpu, Unit.GATE_UP).legal()
            if (c["block_m"], c["block_n"], c["block_k"]) == (128, 256, 128)
        )
        for gpu in ("vr200", "gb300")
    }
    # Source: facts, hardware 5.2: stages of 32,768 B in 327 KB and of 49,152 B in 227 KB.
    assert deepest == {"vr200": 11, "gb300": 5}


@pytest.mark.parametrize(
    ("gpu", "tile", "bytes_a_stage"),
    # Source: facts, hardware 5.2 (stage 103 / 107) and 5.3b.
    [
        ("gb300", (128, 128, 128), 32_768),
        ("vr200", (128, 128, 128), 24_576),
        ("gb300", (128, 256, 128), 49_152),
        ("vr200", (128, 256, 128), 32_768),
        ("vr200", (16, 128, 128), 10_240),
    ],
)
def test_stages_are_as_large_as_compiled_ones(
    gpu: str, tile: tuple[int, int, int], bytes_a_stage: int
) -> None:
    problem = make("deepseek-v4.1-flash", "dep8", gpu)
    target = megamoe._target(problem, Unit.GATE_UP, load_gpu(gpu))
    point = dict(zip(("block_m", "block_n", "block_k"), tile, strict=True))
    assert target.stage_bytes(point) == bytes_a_stage


def test_splitting_by_domain_needs_domains() -> None:
    rubin = space("qwen3-30b-a3b", "single", "vr200", Unit.GATE_UP)
    assert rubin.parameter("split").values == ("none", "domains")
    hopper = space("qwen3-30b-a3b", "single", "h200", Unit.GATE_UP)
    assert hopper.parameter("split").values == ("none",)


def test_persistent_programs_have_buffers_to_overlap_and_no_tickets() -> None:
    legal = space("qwen3-30b-a3b", "single", "vr200", Unit.DOWN).legal()
    persistent = [config for config in legal if config["schedule"] == "persistent"]
    assert {config["split"] for config in persistent} == {"none"}
    assert min(config.integer("num_stages") for config in persistent) == 3
    assert {config["split"] for config in legal} == {"none", "domains"}


def test_fp8_tiles_match_their_scales() -> None:
    for config in space("deepseek-v3", "dep8", "h200", Unit.GATE_UP).legal():
        assert config.integer("block_n") // 2 % config.integer("act_group") == 0
        assert config["block_k"] in (64, 128)
    for config in space("deepseek-v3", "dep8", "h200", Unit.DOWN).legal():
        assert config.integer("act_group") % config.integer("block_k") == 0


def test_tensor_maps_of_padded_fp4_need_whole_boxes() -> None:
    def loads(layout: str, gpu: str) -> set[object]:
        return {c["load"] for c in space("deepseek-v4.1-flash", layout, gpu, Unit.DOWN).legal()}

    assert loads("dep8", "gb300") == {"pointers", "tma"}
    assert loads("tp4", "gb300") == {"pointers"}  # 576 elements: no whole number of boxes
    assert loads("tp4", "vr200") == {"pointers", "tma"}


def test_no_pipeline_is_deeper_than_its_loop() -> None:
    for config in space("deepseek-v4.1-flash", "tp4", "vr200", Unit.DOWN).legal():
        assert config.integer("num_stages") - 1 <= -(-576 // config.integer("block_k"))


def test_a_layer_without_a_gate_has_a_space_too() -> None:
    one = make("qwen3-30b-a3b", "single", "h200")
    plain = replace(one, shape=replace(one.shape, activation=Activation(kind="relu2")))
    assert megamoe.space(plain, Unit.GATE_UP, load_gpu("h200")).legal()


def test_only_gemms_have_spaces() -> None:
    with pytest.raises(InvalidInput, match="is no GEMM"):
        megamoe.space(make("deepseek-v3", "dep8", "h200"), Unit.GLUE, load_gpu("h200"))
