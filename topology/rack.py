"""An NVLink rack: its figures, and fitted times of collectives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..errors import InvalidInput
from .exchange import ExchangeFit, Stage
from .facts import Confidence, Fact, Sheet


class Collective(StrEnum):
    """What a fit describes."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"


class Traffic(StrEnum):
    """How many bytes cross a rank's links for a message of n ranks."""

    EVERY_PEER = "every_peer"
    """The whole message once to or from each of the n - 1 peers."""
    SHARDS = "shards"
    """One n-th of the message to or from each peer."""
    TWO_PHASES = "two_phases"
    """Shards twice: reduce-scatter, then all-gather."""

    def moved(self, message_bytes: float, ranks: int) -> float:
        """Return the bytes that cross one rank's links, one way.

        Source: NCCL src/tuning/sym_model/lsa_a2a.cc, `peakCopies`.
        """
        peers = ranks - 1
        copies = {
            Traffic.EVERY_PEER: peers,
            Traffic.SHARDS: peers / ranks,
            Traffic.TWO_PHASES: 2 * peers / ranks,
        }
        return message_bytes * copies[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """time = base + (ranks - 1) x per_rank + bytes / bandwidth, for one algorithm.

    Source: facts/hardware.md 2. Its per-block terms are left out: enough blocks are assumed, so a
    low-latency algorithm looks better than it is on large messages.

    Attributes:
        collective: What it does.
        algorithm: Whose name NCCL gives it.
        multicast: Whether the switch copies or adds; its peak is scaled by (n - 1) / n.
        traffic: Which bytes the bandwidth divides.
        base_us: Latency in microseconds that every call pays.
        per_rank_us: Microseconds more for each peer.
        bytes_per_s: Peak one way.
        source: Where the three come from.
        confidence: How far they can be trusted.
    """

    collective: Collective
    algorithm: str
    multicast: bool
    traffic: Traffic
    base_us: float
    per_rank_us: float
    bytes_per_s: float
    source: str
    confidence: Confidence

    def latency_s(self, ranks: int) -> float:
        """Return the seconds of a call that moves nothing."""
        return (self.base_us + (ranks - 1) * self.per_rank_us) * 1e-6

    def transfer_s(self, moved_bytes: float, ranks: int) -> float:
        """Return the seconds that `moved_bytes` over one rank's links take."""
        reached = (ranks - 1) / ranks if self.multicast else 1.0
        return moved_bytes / (self.bytes_per_s * reached)

    def seconds(self, message_bytes: float, ranks: int) -> float:
        """Return the time of the collective on a message of that many bytes."""
        moved = self.traffic.moved(message_bytes, ranks)
        return self.latency_s(ranks) + self.transfer_s(moved, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """GPUs behind one level of switches.

    Attributes:
        name: What users type ("vr_nvl72").
        title: What people call it.
        gpu: Name of the GPUs in it.
        sheet: Its figures.
        fits: Fitted times of collectives.
        exchanges: Fitted times of dispatch and combine.
    """

    name: str
    title: str
    gpu: str
    sheet: Sheet
    fits: tuple[Fit, ...]
    exchanges: tuple[ExchangeFit, ...] = ()

    def __post_init__(self) -> None:
        """Refuse trays that do not add up.

        Raises:
            InvalidInput: trays x GPUs a tray is not the number of GPUs.
        """
        if self.trays * self.gpus_per_tray != self.gpus:
            raise InvalidInput(
                f"rack {self.name!r}: {self.trays} trays x {self.gpus_per_tray} GPUs make "
                f"{self.trays * self.gpus_per_tray}: must make gpus = {self.gpus}"
            )

    def __hash__(self) -> int:
        """Hash by name: a rack has dozens of figures."""
        return hash((self.name, self.gpu))

    def fact(self, name: str) -> Fact:
        """Return a figure that has a value.

        Raises:
            UnknownFact: nobody has published it.
            UnknownName: there is no fact of that name at all.
        """
        return self.sheet.fact(name)

    def find(self, name: str) -> Fact | None:
        """Return a figure, or None where it is unknown or does not apply."""
        return self.sheet.find(name)

    @property
    def gpus(self) -> int:
        """GPUs in the NVLink domain."""
        return int(self.fact("gpus").number)

    @property
    def trays(self) -> int:
        """Compute trays."""
        return int(self.fact("trays").number)

    @property
    def gpus_per_tray(self) -> int:
        """GPUs of one compute tray."""
        return int(self.fact("gpus_per_tray").number)

    def fits_of(self, collective: Collective) -> tuple[Fit, ...]:
        """Return the fits of one collective."""
        return tuple(f for f in self.fits if f.collective == collective)

    def exchanges_of(self, stage: Stage) -> tuple[ExchangeFit, ...]:
        """Return the fits of dispatch or combine."""
        return tuple(f for f in self.exchanges if f.stage == stage)
