"""A GPU as a tuner sees it: figures with provenance, and the questions asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ..errors import InvalidInput, UnknownName
from .facts import Confidence, Fact, Sheet
from .schema import GPU_FACTS

WARP = 32

# Which roof a product of two number formats lies under. FP8 x FP4 runs at the FP8 rate: its MMA
# has the FP8 K (facts/hardware.md 5.1), and MXFP4 pairs have the NVFP4 K.
_ROOFS: Mapping[str, str] = {
    "bf16": "flops_bf16",
    "fp16": "flops_bf16",
    "fp8": "flops_fp8",
    "mxfp8": "flops_fp8",
    "mxfp4xmxfp8": "flops_fp8",
    "nvfp4": "flops_nvfp4",
    "mxfp4": "flops_nvfp4",
    "int8": "flops_int8",
}


class Placement(StrEnum):
    """Where memory lies, seen from the SM that reads it."""

    LOCAL = "local"
    INTERLEAVED = "interleaved"
    REMOTE = "remote"


class SharedMemory(StrEnum):
    """How an SM divides L1 and shared memory; oversized leaves 8 KB of L1: a cliff."""

    DEFAULT = "default"
    OVERSIZED = "oversized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU, or the live one; a fact that nobody gives raises when it is asked for.

    Attributes:
        name: What users type ("vr200").
        title: What people call it.
        sheet: Its figures.
        reference: Whether sm_NNN as a target means this GPU.
    """

    name: str
    title: str
    sheet: Sheet
    reference: bool = False

    def __post_init__(self) -> None:
        """Refuse figures that contradict each other.

        Raises:
            InvalidInput: which ones, and why.
        """
        if fault := _contradiction(self):
            raise InvalidInput(f"gpu {self.name!r}: {fault}")

    def __hash__(self) -> int:
        """Hash by what tells GPUs apart: the sheet has seventy figures, and caches hash often."""
        return hash((self.name, self.sms, self.memory_bytes))

    def fact(self, name: str) -> Fact:
        """Return a figure that has a value.

        Raises:
            UnknownFact: nobody has published it, or this GPU has no such thing.
            UnknownName: there is no fact of that name at all.
        """
        return self.sheet.fact(name)

    def find(self, name: str) -> Fact | None:
        """Return a figure, or None where it is unknown or does not apply."""
        return self.sheet.find(name)

    def overlaid(self, facts: Mapping[str, Fact], *, title: str | None = None) -> Gpu:
        """Return this GPU with some figures replaced, by live values or a calibration.

        Raises:
            InvalidInput: a figure is out of its range, of another unit, or contradicts others.
            UnknownName: there is no fact of that name.
        """
        for name, fact in facts.items():
            if name not in GPU_FACTS:
                raise UnknownName("fact", name, GPU_FACTS)
            if fault := GPU_FACTS[name].fault(fact.value, fact.unit):
                raise InvalidInput(f"gpu {self.name!r}, fact {name!r}: {fault}")
        return replace(self, sheet=self.sheet.overlaid(facts), title=title or self.title)

    def _whole(self, name: str) -> int:
        return int(self.sheet.fact(name).number)

    @property
    def arch(self) -> int:
        """Compute capability times ten: 107 for sm_107."""
        return self._whole("arch")

    @property
    def sms(self) -> int:
        """Streaming multiprocessors that run work."""
        return self._whole("sms")

    @property
    def domains(self) -> int:
        """Locality domains that CUDA reports."""
        return self._whole("domains")

    @property
    def native_sms_per_domain(self) -> int:
        """SMs that belong to one domain."""
        return self._whole("native_sms_per_domain")

    @property
    def supplemental_sms(self) -> int:
        """SMs that a domain-pure launch leaves idle."""
        return self._whole("supplemental_sms")

    @property
    def max_warps_per_sm(self) -> int:
        """Resident warps an SM."""
        return self._whole("max_warps_per_sm")

    @property
    def max_threads_per_sm(self) -> int:
        """Resident threads an SM."""
        return self._whole("max_threads_per_sm")

    @property
    def max_blocks_per_sm(self) -> int:
        """Resident blocks an SM."""
        return self._whole("max_blocks_per_sm")

    @property
    def max_threads_per_block(self) -> int:
        """Threads of the largest block."""
        return self._whole("max_threads_per_block")

    @property
    def registers_per_sm(self) -> int:
        """32-bit registers of an SM."""
        return self._whole("registers_per_sm")

    @property
    def memory_bytes(self) -> int:
        """Device memory."""
        return self._whole("memory_bytes")

    @property
    def nvlink_bytes_per_s(self) -> float:
        """NVLink bandwidth one way, line rate.

        Raises:
            UnknownFact: not published.
        """
        return self.fact("nvlink_bandwidth_one_way").number

    @property
    def power_limit_w(self) -> int:
        """Power limit in watts; 0 where it is not known."""
        fact = self.find("power_limit")
        return 0 if fact is None else int(fact.number)

    @property
    def has_oversized_shared_memory(self) -> bool:
        """Whether blocks can ask for more shared memory by giving up L1."""
        return self.find("shared_memory_per_block_oversized") is not None

    def shared_memory_limit(self, mode: SharedMemory | str = SharedMemory.DEFAULT) -> int:
        """Return the most shared memory that one block can ask for, in bytes.

        Raises:
            InvalidInput: no such mode on this GPU.
        """
        return self._whole("shared_memory_per_block" + self._suffix(mode))

    def shared_memory_per_sm(self, mode: SharedMemory | str = SharedMemory.DEFAULT) -> int:
        """Return the shared memory that the blocks of one SM divide, in bytes.

        Raises:
            InvalidInput: no such mode on this GPU.
        """
        return self._whole("shared_memory_per_sm" + self._suffix(mode))

    def _suffix(self, mode: SharedMemory | str) -> str:
        if mode not in SharedMemory.__members__.values():
            raise UnknownName("shared memory mode", str(mode), list(SharedMemory))
        if mode == SharedMemory.DEFAULT:
            return ""
        if not self.has_oversized_shared_memory:
            raise InvalidInput(
                f"{self.name} has no oversized shared-memory mode: "
                f"{self.shared_memory_limit()} B a block is its only limit"
            )
        return "_oversized"

    def tmem_columns(self, exclusive: bool = False) -> int:
        """Return tensor-memory columns of an SM; some GPUs give more to a block that takes all."""
        whole = self.find("tmem_columns_exclusive") if exclusive else None
        return int(whole.number) if whole else self._whole("tmem_columns")

    def occupancy(self, registers: int, shared_bytes: int, threads: int) -> int:
        """Return how many blocks of a kernel an SM holds at once.

        Args:
            registers: Registers a thread, as the compiler reports them.
            shared_bytes: Static and dynamic shared memory a block, in bytes.
            threads: Threads a block.

        Returns:
            Blocks; 0 where the kernel cannot run at all.

        Raises:
            InvalidInput: a negative count, or no threads.

        Source: cuda_occupancy.h, cudaOccMaxActiveBlocksPerMultiprocessor; facts/hardware.md 1.2.
        """
        if registers < 0 or shared_bytes < 0 or threads < 1:
            raise InvalidInput(
                f"occupancy of {registers} registers, {shared_bytes} B, {threads} threads: "
                "counts must be positive"
            )
        if threads > self.max_threads_per_block:
            return 0
        warps = -(-threads // WARP)
        return min(
            self.max_blocks_per_sm,
            self.max_warps_per_sm // warps,
            self.max_threads_per_sm // (warps * WARP),
            self._blocks_by_registers(registers, warps),
            self._blocks_by_shared_memory(shared_bytes),
        )

    def _blocks_by_registers(self, registers: int, warps: int) -> int:
        if registers > self._whole("max_registers_per_thread"):
            return 0
        partitions = self._whole("register_partitions_per_sm")
        a_warp = _rounded(max(registers, 1) * WARP, self._whole("register_allocation_unit"))
        # The launch check counts warps as if they were dealt to all partitions alike.
        if a_warp * _rounded(warps, partitions) > self.registers_per_sm:
            return 0
        return self.registers_per_sm // partitions // a_warp * partitions // warps

    def _blocks_by_shared_memory(self, shared_bytes: int) -> int:
        if shared_bytes > self.shared_memory_limit():
            # Oversized launches run one block an SM (facts/hardware.md 1.2).
            oversized = self.find("shared_memory_per_block_oversized")
            return int(oversized is not None and shared_bytes <= oversized.number)
        reserved = self._whole("shared_memory_reserved_per_block")
        unit = self._whole("shared_memory_allocation_unit")
        taken = _rounded(shared_bytes + reserved, unit)
        return self.shared_memory_per_sm() // taken if taken else self.max_blocks_per_sm

    def read_bandwidth(self, placement: Placement | str = Placement.INTERLEAVED) -> float:
        """Return what all SMs together read from device memory, in bytes a second.

        The measured figure for the placement, else the measured figure for plain memory, else the
        published peak. Remote reads have no such fall-back: no bandwidth of theirs is published.

        Raises:
            UnknownFact: nothing is known.
            UnknownName: no such placement.
        """
        if placement not in Placement.__members__.values():
            raise UnknownName("placement", str(placement), list(Placement))
        if placement == Placement.REMOTE:
            return self.fact("memory_read_bandwidth_remote").number
        if placement == Placement.LOCAL and self.domains > 1:
            names = ["memory_read_bandwidth_local"]
        else:
            # On one domain all memory is as near as plain memory, whatever two would give.
            names = ["memory_read_bandwidth_interleaved"]
        return self.sheet.first(*names, "memory_read_bandwidth", "memory_peak_bandwidth").number

    def peak_flops(self, kind: str) -> float:
        """Return the dense peak rate for a number format, in FLOP/s (a multiply-add counts two).

        Args:
            kind: bf16, fp16, fp8, mxfp8, mxfp4xmxfp8, nvfp4, mxfp4 or int8.

        Raises:
            UnknownFact: not published, or the GPU has no such instruction.
            UnknownName: no such format.
        """
        if kind not in _ROOFS:
            raise UnknownName("number format", kind, _ROOFS)
        return self.fact(_ROOFS[kind]).number

    def domains_of_sms(self) -> tuple[int | None, ...]:
        """Return the domain of every SM, None for a supplemental one.

        The numbering is the model's: domain by domain, supplemental SMs last. No source relates it
        to %smid; a kernel reads %locality_domain_id on the device instead.
        """
        native = [d for d in range(self.domains) for _ in range(self.native_sms_per_domain)]
        return (*native, *[None] * self.supplemental_sms)

    def split(self, domains: int) -> Gpu:
        """Return a one-domain GPU treated as several, for tests and ablations.

        A GPU that has several domains is returned as it is, and so is any GPU for 1.

        Raises:
            InvalidInput: fewer than 1, or more domains than SMs.
        """
        if not 1 <= domains <= min(self.sms, 16):
            raise InvalidInput(f"cannot split {self.name} in {domains} domains: 1 to 16 can be")
        if domains == 1 or self.domains > 1:
            return self
        return self.overlaid(split_facts(self.sms, domains, "a fake split asked for by the user"))


def split_facts(sms: int, domains: int, source: str) -> dict[str, Fact]:
    """Return the figures of an even split of SMs over domains; the rest is supplemental."""
    values = {
        "domains": domains,
        "native_sms_per_domain": sms // domains,
        "supplemental_sms": sms % domains,
    }
    return {
        name: Fact(
            value=value,
            unit=GPU_FACTS[name].unit,
            source=source,
            confidence=Confidence.INFERRED,
        )
        for name, value in values.items()
    }


def _rounded(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _contradiction(gpu: Gpu) -> str | None:
    counted = gpu.domains * gpu.native_sms_per_domain + gpu.supplemental_sms
    if counted != gpu.sms:
        return (
            f"{gpu.domains} domains x {gpu.native_sms_per_domain} native + {gpu.supplemental_sms} "
            f"supplemental SMs make {counted}: must make sms = {gpu.sms}"
        )
    if gpu.max_threads_per_sm > gpu.max_warps_per_sm * WARP:
        return (
            f"max_threads_per_sm is {gpu.max_threads_per_sm}: more than "
            f"max_warps_per_sm x {WARP} = {gpu.max_warps_per_sm * WARP}"
        )
    if gpu.shared_memory_limit() > gpu.shared_memory_per_sm():
        return (
            f"shared_memory_per_block is {gpu.shared_memory_limit()} B: more than "
            f"shared_memory_per_sm = {gpu.shared_memory_per_sm()} B"
        )
    oversized = "shared_memory_per_block_oversized", "shared_memory_per_sm_oversized"
    if (gpu.find(oversized[0]) is None) != (gpu.find(oversized[1]) is None):
        return f"{oversized[0]} and {oversized[1]} must be given together"
    return None
