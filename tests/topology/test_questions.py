"""Occupancy, bandwidths and domains of a GPU, against hand computation."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from rubin_tune.errors import InvalidInput, UnknownFact, UnknownName
from rubin_tune.topology import (
    Confidence,
    Fact,
    Gpu,
    Placement,
    SharedMemory,
    fake_domains,
    load_gpu,
)


@pytest.mark.parametrize(
    ("name", "registers", "shared_bytes", "threads", "blocks", "why"),
    [
        ("h200", 32, 0, 32, 32, "32 blocks an SM"),
        ("h200", 32, 0, 256, 8, "64 warps / 8"),
        ("vr200", 32, 0, 32, 16, "16 blocks an SM"),
        ("vr200", 32, 0, 256, 4, "32 warps / 8"),
        ("vr200", 16, 0, 1024, 1, "1024 threads an SM"),
        ("h200", 16, 0, 1024, 2, "2048 threads an SM"),
        ("h200", 128, 0, 128, 4, "4096 registers a warp: 4 a partition, 16 an SM, / 4 warps"),
        ("h200", 129, 0, 128, 3, "4128 rounds to 4352: 3 a partition, 12 an SM"),
        ("h200", 200, 0, 64, 4, "6400 registers a warp: 2 a partition, 8 an SM, / 2 warps"),
        ("h200", 168, 0, 64, 6, "5376 registers a warp: 3 a partition, 12 an SM, / 2 warps"),
        ("h200", 255, 0, 288, 0, "8192 x 12 warps (9 dealt to 4 partitions) > 65536"),
        ("h200", 255, 0, 256, 1, "8192 registers a warp: 2 a partition, 8 an SM"),
        ("h200", 256, 0, 32, 0, "no thread has 256 registers"),
        ("h200", 32, 0, 1025, 0, "no block has 1025 threads"),
        ("h200", 32, 113 * 1024, 128, 2, "228 KB / (113 + 1 reserved)"),
        ("h200", 32, 113 * 1024 + 1, 128, 1, "113 KB + 1 rounds to 128 B more"),
        ("h200", 32, 75 * 1024, 128, 3, "228 KB / 76"),
        ("h200", 32, 232_448, 128, 1, "the last byte"),
        ("h200", 32, 232_449, 128, 0, "one byte too many"),
        ("vr200", 32, 232_448, 128, 1, "the last byte of the default mode"),
        ("vr200", 32, 232_449, 128, 1, "oversized: one block"),
        ("vr200", 32, 334_848, 128, 1, "the last byte of the oversized mode"),
        ("vr200", 32, 334_849, 128, 0, "one byte too many"),
        ("vr200", 200, 334_848, 512, 0, "6400 x 16 > 65536 whatever the mode"),
        ("h200", 0, 0, 1, 32, "the smallest kernel"),
    ],
)
def test_occupancy_is_what_hand_computation_gives(
    name: str, registers: int, shared_bytes: int, threads: int, blocks: int, why: str
) -> None:
    assert load_gpu(name).occupancy(registers, shared_bytes, threads) == blocks, why


@pytest.mark.parametrize("name", ["h200", "vr200"])
def test_occupancy_never_rises_when_a_kernel_takes_more(name: str) -> None:
    gpu = load_gpu(name)
    for axis, values in enumerate(
        [range(0, 257, 8), range(0, 340_000, 4099), range(32, 1057, 32)]
    ):
        start = [64, 20_000, 128]
        found = []
        for value in values:
            start[axis] = value
            found.append(gpu.occupancy(*start))
        assert all(a >= b for a, b in itertools.pairwise(found))
        assert len(set(found)) > 2


@pytest.mark.parametrize("given", [(-1, 0, 32), (32, -1, 32), (32, 0, 0)])
def test_occupancy_of_nonsense_is_refused(given: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput, match="counts must be positive"):
        load_gpu("h200").occupancy(*given)


def test_read_bandwidth_is_measured_by_placement_where_it_was() -> None:
    gpu = load_gpu("vr200")
    assert gpu.read_bandwidth(Placement.LOCAL) == 17e12
    assert gpu.read_bandwidth("interleaved") == 13.75e12
    with pytest.raises(UnknownFact, match="memory_read_bandwidth_remote"):
        gpu.read_bandwidth("remote")


def test_read_bandwidth_falls_from_measured_to_peak() -> None:
    assert load_gpu("h200").read_bandwidth("local") == 4.5e12
    assert load_gpu("h200").read_bandwidth("interleaved") == 4.5e12
    assert load_gpu("gb300").read_bandwidth("local") == 8e12


def test_read_bandwidth_of_one_domain_never_takes_the_local_figure() -> None:
    one = load_gpu("vr200").overlaid(
        {
            "domains": _fact(1, "domain"),
            "native_sms_per_domain": _fact(212, "SM"),
            "supplemental_sms": _fact(0, "SM"),
        }
    )
    assert one.read_bandwidth("local") == 13.75e12


def test_a_placement_or_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown placement 'locl': did you mean local"):
        load_gpu("vr200").read_bandwidth("locl")
    with pytest.raises(UnknownName, match="unknown shared memory mode 'big'"):
        load_gpu("vr200").shared_memory_limit("big")


def test_only_vr200_has_an_oversized_mode() -> None:
    assert load_gpu("vr200").has_oversized_shared_memory
    assert not load_gpu("h200").has_oversized_shared_memory
    with pytest.raises(InvalidInput, match="h200 has no oversized shared-memory mode: 232448 B"):
        load_gpu("h200").shared_memory_limit(SharedMemory.OVERSIZED)


def test_domains_of_sms_has_100_each_and_none_for_supplemental_ones() -> None:
    domains = load_gpu("vr200").domains_of_sms()
    assert [domains.count(d) for d in (0, 1, None)] == [100, 100, 12]
    assert len(domains) == 212


def test_a_one_domain_gpu_can_be_split_for_tests_and_a_real_split_stays() -> None:
    h200, vr200 = load_gpu("h200"), load_gpu("vr200")
    assert [h200.split(2).domains_of_sms().count(d) for d in (0, 1)] == [66, 66]
    uneven = h200.split(5)
    assert (uneven.native_sms_per_domain, uneven.supplemental_sms) == (26, 2)
    assert uneven.fact("domains").confidence is Confidence.INFERRED
    assert h200.split(1) is h200
    assert vr200.split(4) is vr200
    assert h200.split(2) != h200
    with pytest.raises(InvalidInput, match="cannot split h200 in 0 domains"):
        h200.split(0)


def test_the_fake_domain_switch_is_read_from_the_environment_it_is_given() -> None:
    assert fake_domains({}) == 1
    assert fake_domains({"RUBIN_TUNE_FAKE_DOMAINS": "2"}) == 2
    for text in ["0", "-2", "two", "17", "2.5"]:
        with pytest.raises(InvalidInput, match=f"RUBIN_TUNE_FAKE_DOMAINS is '{text}'"):
            fake_domains({"RUBIN_TUNE_FAKE_DOMAINS": text})


def test_an_overlay_replaces_figures_and_refuses_what_cannot_be_meant() -> None:
    gpu = load_gpu("h200")
    calibrated = gpu.overlaid({"memory_read_bandwidth": _fact(4.4e12, "B/s")})
    assert calibrated.read_bandwidth() == 4.4e12
    assert gpu.read_bandwidth() == 4.5e12
    with pytest.raises(InvalidInput, match=r"fact 'sm_clock': unit is 'MHz': must be 'Hz'"):
        gpu.overlaid({"sm_clock": _fact(1980, "MHz")})
    with pytest.raises(InvalidInput, match="must make sms = 140"):
        gpu.overlaid({"sms": _fact(140, "SM")})
    with pytest.raises(UnknownName, match="unknown fact 'l3_bytes'"):
        gpu.overlaid({"l3_bytes": _fact(1, "B")})


def test_a_gpu_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_gpu("h200").name = "h300"  # type: ignore[misc]


def test_power_limit_is_zero_where_it_is_unknown() -> None:
    gpu: Gpu = load_gpu("h200")
    assert gpu.power_limit_w == 700
    unknown = Fact(value=None, unit="W", source="none", confidence=Confidence.UNKNOWN)
    assert gpu.overlaid({"power_limit": unknown}).power_limit_w == 0


def _fact(value: float, unit: str) -> Fact:
    return Fact(value=value, unit=unit, source="a test", confidence=Confidence.MEASURED)
