"""What the cost model knows of a GPU: facts of the topology, declared assumptions for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ..db import Assumption
from ..topology import Gpu, Placement

_TABLE = (
    # name, value, low, high, unit, reason
    ("l2_bytes", 126e6, 64e6, 256e6, "B", "not published for this GPU: as large as a B200's"),
    ("sm_clock", 2.0e9, 1.6e9, 2.4e9, "Hz", "not published for this GPU: near a B200's boost"),
    (
        "clock_share", 0.89, 0.7, 1.0, "ratio",
        "a loaded GPU runs below its boost clock (H100: 1.76 of 1.98 GHz)",
    ),
    (
        "memory_latency", 0.9e-6, 0.6e-6, 1.2e-6, "s",
        "a loaded read of device memory: 0.8 to 1.0 us (facts, moe-kernels 1.3); the middle "
        "was taken after trying 0.6, 0.8 and 1.0 on the recorded H200 landscapes",
    ),
    (
        "l2_latency", 0.3e-6, 0.15e-6, 0.6e-6, "s",
        "a loaded read that hits the L2; unloaded 222 to 339 cycles (facts, hardware 3.1)",
    ),
    (
        "memory_efficiency", 0.9, 0.8, 0.95, "ratio",
        "share of the peak that streaming reads reach where no reading was measured",
    ),
    (
        "mma_efficiency", 0.8, 0.65, 0.95, "ratio",
        "share of the peak rate that large products sustain (H200 bf16: 790 of 989 TFLOP/s)",
    ),
    (
        "operand_bytes_per_cycle", 256.0, 128.0, 256.0, "B",
        "shared memory read by matrix instructions: not published for this GPU; grown with its "
        "FP8 rate from the 128 B of those before it",
    ),
    (
        "mma_sync_share", 0.62, 0.25, 0.7, "ratio",
        "rate of mma.sync against wgmma on one SM (arXiv 2402.13499); less beside tcgen05",
    ),
    (
        "fill_bytes_per_cycle", 56.0, 40.0, 64.0, "B",
        "what one SM takes from the L2: 64 B a cycle less an eighth",
    ),
    (
        "cycles_per_instruction", 2.0, 1.0, 4.0, "cycle",
        "one warp alone on its scheduler: dependent instructions wait 4 to 6 cycles, half overlap",
    ),
    (
        "barrier", 120.0, 60.0, 250.0, "cycle",
        "two block-wide barriers and the waits for copies and products in a k-tile",
    ),
    (
        "local_access", 30.0, 4.0, 60.0, "cycle",
        "a spilled word read or written in a dependent chain: an L1 hit",
    ),
    (
        "dependent_loads", 4.0, 2.0, 6.0, "count",
        "loads in a row before a tile's first k-tile: counts, expert, rows, pointers",
    ),
    (
        "launch", 2e-6, 1e-6, 4e-6, "s", "start and end of one kernel in a CUDA graph",
    ),
    (
        "empty_block", 700.0, 300.0, 1500.0, "cycle",
        "a program beyond the live tiles: starts, reads one count, leaves",
    ),
    (
        "overlap", 2.0, 1.5, 4.0, "ratio",
        "exponent p of (sum of t^p)^(1/p) over resources: 1 = each waits for all others, large = "
        "none does; 2 was taken after trying 2, 2.5, 3, 4 and 8 on the recorded H200 landscapes",
    ),
    (
        "remote_bandwidth", 9e12, 8e12, 10e12, "B/s",
        "reads from the other domain, of which no bandwidth is published: local over the ratio of "
        "latencies, 1.4 to 1.7",
    ),
    (
        "stolen_share", 0.25, 0.0, 0.5, "ratio",
        "tiles of the last wave that a split kernel takes from the other domain",
    ),
    (
        "atomic_latency", 0.7e-6, 0.5e-6, 1.0e-6, "s",
        "one ticket of the split schedule; a program draws two in a row",
    ),
)  # fmt: skip
ASSUMPTIONS = {
    name: Assumption(name=name, value=value, low=low, high=high, unit=unit, reason=reason)
    for name, value, low, high, unit, reason in _TABLE
}
# Assumptions that every prediction uses, on every GPU.
_ALWAYS = (
    "clock_share",
    "memory_latency",
    "l2_latency",
    "fill_bytes_per_cycle",
    "cycles_per_instruction",
    "barrier",
    "local_access",
    "mma_sync_share",
    "dependent_loads",
    "launch",
    "empty_block",
    "overlap",
)
# Used only where a prediction meets them.
_SPLIT = ("remote_bandwidth", "stolen_share", "atomic_latency")
_FACTS = (
    "sms",
    "registers_per_sm",
    "max_warps_per_sm",
    "max_blocks_per_sm",
    "shared_memory_per_sm",
    "memory_peak_bandwidth",
    "l2_bytes",
    "sm_clock",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates of one GPU in SI units and cycles, and where each comes from.

    Attributes:
        clock: SM cycles a second under load.
        bandwidth: Bytes a second that all SMs read from plain memory.
        split_bandwidth: The same where native SMs read their own domain, supplemental ones both.
        macs: Multiply-adds a cycle and SM by format ("bf16", "fp8", "nvfp4"); 0 = none.
        full_k: K of the instruction that reaches that rate.
        operand_bytes: Shared memory that matrix instructions read in a cycle on one SM.
    """

    arch: int
    sms: int
    domains: int
    clock: float
    bandwidth: float
    split_bandwidth: float
    l2_bytes: float
    macs: tuple[tuple[str, float], ...]
    full_k: tuple[tuple[str, float], ...]
    operand_bytes: float
    padded_fp4: bool
    assumptions: tuple[Assumption, ...]
    facts: tuple[str, ...]

    def split_assumptions(self) -> tuple[Assumption, ...]:
        """What a prediction for a split kernel assumes on top."""
        return tuple(ASSUMPTIONS[name] for name in _SPLIT)

    def cycles(self, seconds: float) -> float:
        """Return seconds as SM cycles."""
        return seconds * self.clock


def assumed(name: str) -> float:
    """Return the value of a declared assumption."""
    return ASSUMPTIONS[name].value


@lru_cache(maxsize=16)
def machine_of(gpu: Gpu) -> Machine:
    """Collect what the model needs of a GPU, once."""
    used = list(_ALWAYS)

    def fact_or_assumed(name: str) -> float:
        fact = gpu.find(name)
        if fact is None:
            used.append(name)
        return fact.number if fact is not None else assumed(name)

    clock = fact_or_assumed("sm_clock") * assumed("clock_share")
    l2_bytes = fact_or_assumed("l2_bytes")
    bandwidth = _read_bandwidth(gpu, Placement.INTERLEAVED, used)
    local = _read_bandwidth(gpu, Placement.LOCAL, used) if gpu.domains > 1 else bandwidth
    macs = tuple((kind, _macs(gpu, kind, clock, used)) for kind in ("bf16", "fp8", "nvfp4"))
    if gpu.arch >= 107:
        used.append("operand_bytes_per_cycle")
    return Machine(
        arch=gpu.arch,
        sms=gpu.sms,
        domains=gpu.domains,
        clock=clock,
        bandwidth=bandwidth,
        split_bandwidth=_split_bandwidth(gpu, local, bandwidth),
        l2_bytes=l2_bytes,
        macs=macs,
        full_k=_full_k(gpu),
        operand_bytes=128.0 if gpu.arch < 107 else assumed("operand_bytes_per_cycle"),
        padded_fp4=100 <= gpu.arch < 107,
        assumptions=tuple(ASSUMPTIONS[name] for name in dict.fromkeys(used)),
        facts=tuple(_spelled(gpu)),
    )


def _read_bandwidth(gpu: Gpu, placement: Placement, used: list[str]) -> float:
    """Return the measured figure, or the peak times a declared efficiency."""
    found = gpu.read_bandwidth(placement)
    peak = gpu.fact("memory_peak_bandwidth").number
    if found < peak:
        return found
    used.append("memory_efficiency")
    return peak * assumed("memory_efficiency")


def _split_bandwidth(gpu: Gpu, local: float, plain: float) -> float:
    """Return what native SMs on local memory and supplemental ones on plain memory read."""
    native = (gpu.sms - gpu.supplemental_sms) / gpu.sms
    return 1.0 / (native / local + (1.0 - native) / plain)


def _macs(gpu: Gpu, kind: str, clock: float, used: list[str]) -> float:
    """Return sustained multiply-adds a cycle and SM; 0 where the GPU has no such instruction."""
    if gpu.find(f"flops_{kind}") is None:
        return 0.0
    sustained = gpu.find(f"flops_{kind}_sustained")
    if sustained is None:
        used.append("mma_efficiency")
        rate = gpu.peak_flops(kind) * assumed("mma_efficiency")
    else:
        rate = sustained.number
    return rate / 2 / gpu.sms / clock


def _full_k(gpu: Gpu) -> tuple[tuple[str, float], ...]:
    """Return the K at which each format reaches its peak. Source: facts, hardware 1.3 and 5.1."""
    usual = {"bf16": 16.0, "fp8": 32.0, "nvfp4": 64.0}
    names = {"bf16": "mma_k_bf16", "fp8": "mma_k_fp8", "nvfp4": "mma_k_fp4"}
    found = {kind: gpu.find(name) for kind, name in names.items()}
    return tuple((k, usual[k] if f is None else f.number) for k, f in found.items())


def _spelled(gpu: Gpu) -> list[str]:
    """Spell the facts used: "sms=212 (published)"."""
    names = [*_FACTS]
    names += ["memory_read_bandwidth", "memory_read_bandwidth_interleaved"]
    names += ["memory_read_bandwidth_local", "supplemental_sms", "mma_k_fp8"]
    names += [f"flops_{k}{s}" for k in ("bf16", "fp8") for s in ("", "_sustained")]
    found = [(name, gpu.find(name)) for name in names]
    return [f"{n}={f.value:.6g} ({f.confidence})" for n, f in found if f and f.value is not None]
