"""Every described GPU and rack loads, and the corrections to common premises stay."""

from __future__ import annotations

import pickle

import pytest

from rubin_tune.errors import UnknownFact, UnknownName
from rubin_tune.topology import (
    Confidence,
    Gpu,
    Rack,
    gpu_names,
    load_gpu,
    load_rack,
    rack_names,
)
from rubin_tune.topology.schema import SCHEMAS

THINGS: list[Gpu | Rack] = [
    *(load_gpu(name) for name in gpu_names()),
    *(load_rack(name) for name in rack_names()),
]


def test_the_five_gpus_their_nodes_and_racks_are_described() -> None:
    assert gpu_names() == ["b200", "gb300", "h100", "h200", "vr200"]
    assert rack_names() == ["b200_dgx", "gb200_nvl72", "gb300_nvl72", "h200_dgx", "vr_nvl72"]


@pytest.mark.parametrize("thing", THINGS, ids=lambda t: t.name)
def test_every_figure_has_its_unit_range_source_and_confidence(thing: Gpu | Rack) -> None:
    schema = SCHEMAS[thing.sheet.kind]
    for name, fact in thing.sheet:
        assert schema[name].fault(fact.value, fact.unit) is None, name
        assert len(fact.source) > 3, name
        assert (fact.value is None) == (fact.confidence is Confidence.UNKNOWN), name


@pytest.mark.parametrize("thing", THINGS, ids=lambda t: t.name)
def test_what_is_unknown_raises_and_says_what_was_looked_for(thing: Gpu | Rack) -> None:
    for name, fact in thing.sheet:
        if fact.value is None:
            with pytest.raises(UnknownFact, match=f"{thing.name} has no published '{name}'") as e:
                thing.fact(name)
            assert fact.source in str(e.value)
            assert thing.find(name) is None


@pytest.mark.parametrize("thing", THINGS, ids=lambda t: t.name)
def test_a_thing_survives_pickling_and_keeps_its_hash(thing: Gpu | Rack) -> None:
    again = pickle.loads(pickle.dumps(thing))
    assert again == thing
    assert hash(again) == hash(thing)
    assert {thing: 1}[again] == 1


def test_a_fact_that_does_not_exist_is_an_unknown_name_with_near_ones() -> None:
    with pytest.raises(UnknownName, match="unknown fact 'l2_byte': did you mean l2_bytes"):
        load_gpu("h200").fact("l2_byte")


@pytest.mark.parametrize(
    "name", ["l2_bytes", "memory_read_bandwidth_remote", "sm_clock", "nvlink_latency"]
)
def test_vr200_has_no_figure_for_what_nobody_published(name: str) -> None:
    with pytest.raises(UnknownFact):
        load_gpu("vr200").fact(name)


def test_vr200_shared_memory_is_227_kb_and_327_in_oversized_mode_not_256() -> None:
    gpu = load_gpu("vr200")
    assert gpu.shared_memory_limit() == 227 * 1024 == 232_448
    assert gpu.shared_memory_limit("oversized") == 327 * 1024 == 334_848
    assert gpu.shared_memory_per_sm("oversized") == 328 * 1024
    assert gpu.fact("l1_bytes_oversized").value == 8 * 1024
    assert gpu.find("l1_and_shared_pool") is None


def test_vr200_has_two_domains_of_100_sms_and_12_supplemental_ones() -> None:
    gpu = load_gpu("vr200")
    assert (gpu.sms, gpu.domains, gpu.native_sms_per_domain, gpu.supplemental_sms) == (
        212,
        2,
        100,
        12,
    )


def test_vr200_sm_holds_32_warps_1024_threads_16_blocks_unlike_blackwell() -> None:
    rubin, blackwell = load_gpu("vr200"), load_gpu("gb300")
    assert (rubin.max_warps_per_sm, rubin.max_threads_per_sm, rubin.max_blocks_per_sm) == (
        32,
        1024,
        16,
    )
    assert (
        blackwell.max_warps_per_sm,
        blackwell.max_threads_per_sm,
        blackwell.max_blocks_per_sm,
    ) == (64, 2048, 32)


def test_tensor_memory_is_512_columns_and_576_only_exclusively_on_vr200() -> None:
    assert load_gpu("vr200").tmem_columns() == 512
    assert load_gpu("vr200").tmem_columns(exclusive=True) == 576
    assert load_gpu("b200").tmem_columns(exclusive=True) == 512
    assert load_gpu("h200").tmem_columns() == 0


@pytest.mark.parametrize(
    ("name", "bf16", "fp8", "nvfp4"),
    [
        ("vr200", 4e15, 17.5e15, 35e15),
        ("gb300", 2.5e15, 5e15, 15e15),
        ("b200", 2.25e15, 4.5e15, 9e15),
    ],
)
def test_dense_roofs_are_the_published_ones(
    name: str, bf16: float, fp8: float, nvfp4: float
) -> None:
    gpu = load_gpu(name)
    assert gpu.peak_flops("bf16") == bf16
    assert gpu.peak_flops("fp8") == gpu.peak_flops("mxfp4xmxfp8") == fp8
    assert gpu.peak_flops("nvfp4") == nvfp4


def test_hopper_has_no_fp4_rate_and_says_so() -> None:
    with pytest.raises(UnknownFact, match="h200 has no published 'flops_nvfp4'"):
        load_gpu("h200").peak_flops("nvfp4")
    with pytest.raises(UnknownName, match="unknown number format 'fp5'"):
        load_gpu("h200").peak_flops("fp5")


def test_packed_fp4_and_matrix_k_differ_between_103_and_107() -> None:
    old, new = load_gpu("gb300"), load_gpu("vr200")
    for name, before, after in [
        ("fp4_shared_memory_bits", 8, 4),
        ("mma_k_fp8", 32, 64),
        ("mma_k_fp4", 64, 128),
    ]:
        assert (old.fact(name).value, new.fact(name).value) == (before, after), name


def test_h200_has_its_measured_figures() -> None:
    gpu = load_gpu("h200")
    for name, value in [
        ("memory_read_bandwidth", 4.5e12),
        ("memory_copy_bandwidth", 4.3e12),
        ("flops_bf16_sustained", 790e12),
    ]:
        assert gpu.fact(name).value == value
        assert gpu.fact(name).confidence is Confidence.MEASURED
    assert gpu.memory_bytes == 141_000_000_000


def test_racks_have_72_gpus_in_18_trays_and_one_level_of_switches() -> None:
    for name, switches in [("vr_nvl72", 36), ("gb300_nvl72", 18)]:
        rack = load_rack(name)
        assert (rack.gpus, rack.trays, rack.gpus_per_tray) == (72, 18, 4)
        assert rack.fact("switches").value == switches
        assert rack.gpu in gpu_names()
