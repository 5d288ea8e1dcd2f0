"""Which facts there are, their units, and the range that a figure can lie in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Expect:
    """What a figure may be.

    Attributes:
        unit: The only unit it is written in (base units: B, B/s, FLOP/s, Hz, s).
        low: Smallest value that can be meant.
        high: Largest.
        whole: Whether it must be a whole number.
        required: Whether every GPU or rack must give it a value.
    """

    unit: str
    low: float
    high: float
    whole: bool = False
    required: bool = False

    def fault(self, value: object, unit: object) -> str | None:
        """Return in words what is wrong with a figure, or None."""
        if unit != self.unit:
            return f"unit is {unit!r}: must be {self.unit!r}"
        if value is None:
            return "has no value, and every file must give it one" if self.required else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"value is {value!r}: must be a number"
        if self.whole and value != int(value):
            return f"value is {value!r}: must be a whole number of {self.unit}"
        if not self.low <= value <= self.high:
            return f"value is {value!r} {self.unit}: must lie in {self.low:g} to {self.high:g}"
        return None


def _need(unit: str, low: float, high: float) -> Expect:
    return Expect(unit, low, high, whole=True, required=True)


def _count(unit: str, low: float, high: float) -> Expect:
    return Expect(unit, low, high, whole=True)


_BANDWIDTH = Expect("B/s", 1e9, 1e15)
_FLOPS = Expect("FLOP/s", 1e12, 1e19)
_SHARED = _count("B", 1 << 10, 1 << 21)
_NEED_SHARED = _need("B", 1 << 10, 1 << 21)
_CLOCK = Expect("Hz", 1e8, 1e11)
_RATIO = Expect("ratio", 0.1, 100)
_LATENCY = Expect("s", 1e-9, 1e-2)

GPU_FACTS: Mapping[str, Expect] = MappingProxyType(
    {
        "arch": _need("sm", 70, 999),
        "dies": _count("die", 1, 16),
        "sms_full": _count("SM", 1, 4096),
        "sms": _need("SM", 1, 4096),
        "domains": _need("domain", 1, 16),
        "native_sms_per_domain": _need("SM", 1, 4096),
        "supplemental_sms": _need("SM", 0, 4096),
        "memory_sides": _count("side", 1, 16),
        "max_warps_per_sm": _need("warp", 1, 256),
        "max_threads_per_sm": _need("thread", 32, 8192),
        "max_blocks_per_sm": _need("block", 1, 256),
        "max_threads_per_block": _need("thread", 32, 4096),
        "registers_per_sm": _need("register", 1 << 12, 1 << 20),
        "max_registers_per_thread": _need("register", 16, 1024),
        "register_allocation_unit": _need("register", 1, 4096),
        "register_partitions_per_sm": _need("partition", 1, 16),
        "shared_memory_per_sm": _NEED_SHARED,
        "shared_memory_per_sm_oversized": _SHARED,
        "shared_memory_per_block": _NEED_SHARED,
        "shared_memory_per_block_oversized": _SHARED,
        "shared_memory_static_per_block": _SHARED,
        "shared_memory_reserved_per_block": _need("B", 0, 1 << 16),
        "shared_memory_allocation_unit": _need("B", 1, 1 << 16),
        "l1_and_shared_pool": _SHARED,
        "l1_bytes_oversized": _SHARED,
        "tmem_columns": _need("column", 0, 4096),
        "tmem_columns_exclusive": _count("column", 1, 4096),
        "tmem_bytes_per_sm": _SHARED,
        "l2_bytes": _count("B", 1 << 20, 1 << 34),
        "l2_hit_latency_domain_ratio": _RATIO,
        "memory_bytes": _need("B", 1 << 30, 1 << 44),
        "memory_reported_bytes": _count("B", 1 << 30, 1 << 44),
        "memory_peak_bandwidth": _BANDWIDTH,
        "memory_read_bandwidth": _BANDWIDTH,
        "memory_read_bandwidth_local": _BANDWIDTH,
        "memory_read_bandwidth_interleaved": _BANDWIDTH,
        "memory_read_bandwidth_remote": _BANDWIDTH,
        "memory_copy_bandwidth": _BANDWIDTH,
        "remote_miss_latency_ratio_low": _RATIO,
        "remote_miss_latency_ratio_high": _RATIO,
        "placement_granule": _count("B", 1 << 10, 1 << 34),
        "memory_side_granule": _count("B", 1 << 7, 1 << 34),
        "coscheduled_sms": _count("SM", 1, 256),
        "memory_clock": _CLOCK,
        "locality_minimum_memory_clock": _CLOCK,
        "sm_clock": _CLOCK,
        "flops_bf16": _FLOPS,
        "flops_fp8": _FLOPS,
        "flops_nvfp4": _FLOPS,
        "flops_int8": _FLOPS,
        "flops_nvfp4_sparse": _FLOPS,
        "flops_fp8_1800w": _FLOPS,
        "flops_bf16_sustained": _FLOPS,
        "flops_fp8_sustained": _FLOPS,
        "mma_k_bf16": _count("element", 8, 1024),
        "mma_k_fp8": _count("element", 8, 1024),
        "mma_k_fp4": _count("element", 8, 1024),
        "mma_rows": _count("row", 8, 1024),
        "fp4_shared_memory_bits": _count("bit", 4, 8),
        "exp_rate_fp32_ratio": _RATIO,
        "exp_rate_bf16_ratio": _RATIO,
        "power_limit": _count("W", 10, 10000),
        "power_limit_low": _count("W", 10, 10000),
        "nvlink_version": _count("version", 1, 20),
        "nvlink_bandwidth_both_ways": _BANDWIDTH,
        "nvlink_bandwidth_one_way": _BANDWIDTH,
        "nvlink_line_rate_one_way": _BANDWIDTH,
        "nvlink_peer_read_bandwidth": _BANDWIDTH,
        "nvlink_latency": _LATENCY,
        "nvlink_round_trip_latency": _LATENCY,
        "cpu_link_bandwidth": _BANDWIDTH,
        "pcie_generation": _count("version", 3, 10),
    }
)

RACK_FACTS: Mapping[str, Expect] = MappingProxyType(
    {
        "gpus": _need("GPU", 1, 4096),
        "trays": _need("tray", 1, 1024),
        "gpus_per_tray": _need("GPU", 1, 64),
        "cpus": _count("CPU", 1, 4096),
        "cpu_cores": _count("core", 1, 1024),
        "cpu_memory_bandwidth": _BANDWIDTH,
        "switch_trays": _count("tray", 1, 1024),
        "switches": _count("switch", 1, 4096),
        "switch_tray_bandwidth": _BANDWIDTH,
        "in_network_flops_per_switch_tray": _FLOPS,
        "in_network_flops": _FLOPS,
        "nvlink_bandwidth_both_ways": _BANDWIDTH,
        "nvlink_latency": _LATENCY,
        "memory_bytes": _count("B", 1 << 30, 1 << 50),
        "memory_bandwidth": Expect("B/s", 1e9, 1e17),
        "nic_bandwidth_per_gpu": _BANDWIDTH,
        "inter_rack_bandwidth": _BANDWIDTH,
        "point_to_point_latency": _LATENCY,
        "inter_rack_latency": _LATENCY,
        "maxlps_memory_peak_bandwidth": _BANDWIDTH,
        "maxlps_nvlink_bandwidth_both_ways": _BANDWIDTH,
        "p2p_write_bandwidth_remote_socket": _BANDWIDTH,
    }
)

SCHEMAS: Mapping[str, Mapping[str, Expect]] = MappingProxyType(
    {"gpu": GPU_FACTS, "rack": RACK_FACTS}
)
