"""The GPU in this machine: what is known of its kind, with what the driver says laid over it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from .catalogue import gpu_names, load_gpu
from .driver import Device, device_count, read_device, read_power_limit
from .facts import Confidence, Fact, Sheet
from .gpu import WARP, Gpu, split_facts
from .graph import Topology
from .importers import parse_topology
from .schema import GPU_FACTS

# CUdevice_attribute numbers, cuda.h 13.5 (facts/hardware.md 1.2 and 1.4 for 149, 150 and 157).
_MAJOR, _MINOR, _SMS = 75, 76, 16
_MEMORY_CLOCK_KHZ, _BUS_BITS = 36, 37
_LOCALITY_DOMAINS, _LOCALITY_DOMAIN_SMS = 149, 157
_OVERSIZED = 150
_READ: Mapping[str, int] = {
    "sms": _SMS,
    "max_threads_per_block": 1,
    "max_threads_per_sm": 39,
    "max_blocks_per_sm": 106,
    "registers_per_sm": 82,
    "shared_memory_per_sm": 81,
    "shared_memory_per_block": 97,
    "shared_memory_reserved_per_block": 111,
    "l2_bytes": 38,
}
_ASKED = (
    *_READ.values(),
    _MAJOR,
    _MINOR,
    _MEMORY_CLOCK_KHZ,
    _BUS_BITS,
    _LOCALITY_DOMAINS,
    _LOCALITY_DOMAIN_SMS,
    _OVERSIZED,
)

# Drivers report up to 7 % more than the nominal gigabytes, GB200 has 3 % more SMs than B200. A MIG
# slice has half or less of either, and no figure of the whole GPU holds for it.
_ALIKE = 0.15

# nvidia-smi without a persistence daemon wakes every GPU first: some seconds each.
_TOOL_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a live device says of itself.

    Attributes:
        device: What the driver says.
        power_limit_w: Enforced power limit in watts; None without NVML.
    """

    device: Device
    power_limit_w: int | None = None

    @property
    def arch(self) -> int:
        """Compute capability times ten."""
        return (self.device.attribute(_MAJOR) or 0) * 10 + (self.device.attribute(_MINOR) or 0)

    @property
    def sms(self) -> int:
        """Streaming multiprocessors."""
        return self.device.attribute(_SMS) or 0

    @property
    def source(self) -> str:
        """Where its figures come from."""
        return f"CUDA driver, device {self.device.index} ({self.device.name})"


def is_present() -> bool:
    """Return whether a CUDA GPU is in this machine; takes milliseconds and imports no torch."""
    return device_count() > 0


def detect_gpu(index: int = 0) -> Gpu | None:
    """Return the live GPU, or None where there is no CUDA device of that index.

    What the driver reports stands over the published figures of its kind. A kind that no file
    describes has only what the driver reports; everything else about it raises UnknownFact.
    """
    device = read_device(index, _ASKED)
    if device is None:
        return None
    return identify(Probe(device=device, power_limit_w=read_power_limit(device.uuid)))


def detect_gpus() -> list[Gpu]:
    """Return the live GPUs, in CUDA's order."""
    return [gpu for i in range(device_count()) if (gpu := detect_gpu(i)) is not None]


def detect_machine(gpu: Gpu | None = None) -> Topology | None:
    """Return the links of this machine as `nvidia-smi topo -m` shows them, or None without it.

    Args:
        gpu: What its GPUs are, `detect_gpu()` say.

    Raises:
        InvalidInput: what the tool printed cannot be meant.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, "topo", "-m"], capture_output=True, text=True, timeout=_TOOL_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_topology(done.stdout, title="this machine", form="nvidia_smi", gpu=gpu)


def identify(probe: Probe) -> Gpu:
    """Return the GPU that a device is.

    Raises:
        InvalidInput: the driver reports figures that contradict each other.
    """
    base = _kind(probe) or _stranger(probe)
    return base.overlaid({**_live(probe), **_domains(probe, base)}, title=probe.device.name)


def _kind(probe: Probe) -> Gpu | None:
    """Find the described GPU that a device is: capability, memory and SMs, then the name."""
    memory = probe.device.memory_bytes
    alike = [
        gpu
        for gpu in map(load_gpu, gpu_names())
        if gpu.arch == probe.arch
        and abs(memory / gpu.memory_bytes - 1) <= _ALIKE
        and abs(probe.sms / gpu.sms - 1) <= _ALIKE
    ]
    words = probe.device.name.lower().split()
    return min(
        alike,
        key=lambda gpu: (
            gpu.name not in words,
            abs(gpu.memory_bytes - memory),
            abs(gpu.sms - probe.sms),
        ),
        default=None,
    )


def _live(probe: Probe) -> dict[str, Fact]:
    """Return the figures that the driver reports, where it reports something that can be meant."""
    read: dict[str, int | None] = {k: probe.device.attribute(n) for k, n in _READ.items()}
    read["memory_bytes"] = probe.device.memory_bytes
    read["max_warps_per_sm"] = (read["max_threads_per_sm"] or 0) // WARP
    oversized = probe.device.attribute(_OVERSIZED) or 0
    if oversized > (read["shared_memory_per_block"] or 0):
        read["shared_memory_per_block_oversized"] = oversized
        reserved = read["shared_memory_reserved_per_block"] or 0
        read["shared_memory_per_sm_oversized"] = oversized + reserved
    facts = {
        name: _fact(name, value, probe.source)
        for name, value in read.items()
        if value is not None and GPU_FACTS[name].fault(value, GPU_FACTS[name].unit) is None
    }
    # Never the published limit: a live GPU may be capped, and times are keyed by its limit.
    return {**facts, "power_limit": _power(probe)}


def _domains(probe: Probe, base: Gpu) -> dict[str, Fact]:
    """Return how the live SMs are split: as the driver says, else as its kind is known to be."""
    domains = probe.device.attribute(_LOCALITY_DOMAINS) or base.domains
    native = probe.device.attribute(_LOCALITY_DOMAIN_SMS) or 0
    if domains == base.domains and probe.sms == base.sms and not native:
        return {}
    split = split_facts(probe.sms, domains, probe.source)
    if domains > 1 and 0 < native * domains <= probe.sms:
        split["native_sms_per_domain"] = _fact("native_sms_per_domain", native, probe.source)
        spare = probe.sms - native * domains
        split["supplemental_sms"] = _fact("supplemental_sms", spare, probe.source)
    return split


def _stranger(probe: Probe) -> Gpu:
    """Return a GPU that no file describes, from the driver's figures and rules of its generation.

    Source: cuda_occupancy.h (13.0): allocation units and partitions are equal for 7.0 to 12.x.
    """
    rules = {
        "arch": probe.arch,
        "sms": probe.sms,
        "max_registers_per_thread": 255,
        "register_allocation_unit": 256,
        "register_partitions_per_sm": 4,
        "shared_memory_allocation_unit": 128,
        "tmem_columns": 512 if probe.arch // 10 == 10 else 0,
    }
    khz, bits = probe.device.attribute(_MEMORY_CLOCK_KHZ), probe.device.attribute(_BUS_BITS)
    if khz and bits:
        # Two transfers a clock; the bus width is in bits.
        rules["memory_peak_bandwidth"] = 2 * khz * 1000 * bits // 8
    facts = {
        name: _fact(name, value, probe.source, Confidence.INFERRED)
        for name, value in rules.items()
    }
    facts |= split_facts(probe.sms, 1, probe.source)
    name = "_".join(probe.device.name.lower().split())
    return Gpu(
        name=name,
        title=probe.device.name,
        sheet=Sheet(owner=name, kind="gpu", facts=tuple({**facts, **_live(probe)}.items())),
    )


def _fact(
    name: str, value: int, source: str, confidence: Confidence = Confidence.MEASURED
) -> Fact:
    return Fact(value=value, unit=GPU_FACTS[name].unit, source=source, confidence=confidence)


def _power(probe: Probe) -> Fact:
    limit = probe.power_limit_w
    return Fact(
        value=limit,
        unit=GPU_FACTS["power_limit"].unit,
        source="NVML, enforced power limit" if limit else "NVML did not answer",
        confidence=Confidence.MEASURED if limit else Confidence.UNKNOWN,
    )
