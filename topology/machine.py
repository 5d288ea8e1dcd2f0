"""A machine as a tool reported it: devices and the links between them, checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from ..errors import InvalidInput

# Bytes a second of one NVLink one way, by version. Source: hwloc @3b37b024a, NVLinkBandwidth; it does
# not know NVLink 6.
NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}


class DeviceKind(StrEnum):
    """What stands in a machine."""

    HOST = "host"
    CPU = "cpu"
    BRIDGE = "bridge"
    GPU = "gpu"
    NIC = "nic"
    SWITCH = "switch"


class LinkKind(StrEnum):
    """How two devices are joined; the last five are `nvidia-smi topo -m`'s words for PCIe paths."""

    NVLINK = "nvlink"
    C2C = "c2c"
    PCIE = "pcie"
    PIX = "PIX"
    PXB = "PXB"
    PHB = "PHB"
    NODE = "NODE"
    SYS = "SYS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device.

    Attributes:
        name: Unique in the machine ("gpu0").
        kind: What it is.
        parent: The device that it hangs on, or None.
        notes: Pairs of what the tool says of it, in its words.
    """

    name: str
    kind: DeviceKind
    parent: str | None = None
    notes: tuple[tuple[str, str], ...] = ()

    def note(self, key: str) -> str | None:
        """Return one note, or None."""
        return dict(self.notes).get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link, or a bundle of equal ones.

    Attributes:
        a: One end.
        b: The other.
        kind: What it is.
        lanes: NVLinks, C2C links or PCIe lanes in it; None where the tool does not say.
        bandwidth: Bytes a second one way, of all lanes; None where it is unknown.
    """

    a: str
    b: str
    kind: LinkKind
    lanes: int | None = None
    bandwidth: float | None = None

    def slowness(self) -> int:
        """Return the rank of its kind, 0 for the fastest."""
        return list(LinkKind).index(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices and links of one machine, or of several in one dump.

    Attributes:
        title: What it was read from.
        devices: All devices.
        links: All links; two devices may be joined by several of different kinds.
    """

    title: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no machine is.

        Raises:
            InvalidInput: what is wrong, and with which device or link.
        """
        fault = _device_fault(self.devices) or _links_fault(self)
        if fault:
            raise InvalidInput(fault)

    def of_kind(self, kind: DeviceKind) -> tuple[Device, ...]:
        """Return the devices of one kind."""
        return tuple(d for d in self.devices if d.kind == kind)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs, in order."""
        return tuple(d.name for d in self.of_kind(DeviceKind.GPU))

    def joins(self, name: str) -> tuple[Link, ...]:
        """Return the links at one device."""
        return tuple(link for link in self.links if name in (link.a, link.b))

    def with_nvlink(self, version: int) -> Machine:
        """Return this machine with the speed of that version where an NVLink's is unknown."""
        each = NVLINK_BYTES_PER_S.get(version)
        if each is None:
            return self
        links = (
            replace(link, bandwidth=each * link.lanes)
            if link.kind is LinkKind.NVLINK and link.bandwidth is None and link.lanes
            else link
            for link in self.links
        )
        return replace(self, links=tuple(links))

    def path(self, a: str, b: str) -> Link | None:
        """Return how two devices are joined: NVLink, also through a switch, else over PCIe.

        Returns:
            None where nothing is known to join them.
        """
        direct = [link for link in self.links if {link.a, link.b} == {a, b}]
        best = min(direct, key=Link.slowness, default=None)
        if best is not None and best.kind is LinkKind.NVLINK:
            return best
        return self._switched(a, b) or best or self._over_pcie(a, b)

    def _over_pcie(self, a: str, b: str) -> Link | None:
        """Return the path through the nearest common parent, in `nvidia-smi topo -m`'s words."""
        above_a, above_b = self._above(a), self._above(b)
        common = next((d for d in above_a if d in above_b), None)
        if common is None:
            # Without hosts, all CPUs stand in one; with them, other hosts are out of reach.
            alone = not (above_a and above_b) or bool(self.of_kind(DeviceKind.HOST))
            return None if alone else Link(a=a, b=b, kind=LinkKind.SYS)
        bridges = above_a.index(common) + above_b.index(common)
        near = LinkKind.PIX if bridges == 0 else LinkKind.PXB
        kinds = {DeviceKind.HOST: LinkKind.SYS, DeviceKind.CPU: LinkKind.NODE}
        return Link(a=a, b=b, kind=kinds.get(common.kind, near))

    def _above(self, name: str) -> list[Device]:
        """Return the devices that one hangs on, nearest first; a NIC's own PCI function is none."""
        known = {d.name: d for d in self.devices}
        found: list[Device] = []
        own = known[name].parent
        if known[name].kind is DeviceKind.NIC and own and known[own].kind is DeviceKind.BRIDGE:
            name = own
        while (parent := known[name].parent) is not None:
            found.append(known[parent])
            name = parent
        return found

    def _switched(self, a: str, b: str) -> Link | None:
        """Return what joins two devices through switches: the thinner side's links."""
        switches = {d.name for d in self.of_kind(DeviceKind.SWITCH)}
        sides = [
            [link for link in self.joins(name) if switches & {link.a, link.b}] for name in (a, b)
        ]
        if not all(sides):
            return None
        lanes = min(sum(link.lanes or 0 for link in side) for side in sides)
        speeds = [link.bandwidth for side in sides for link in side]
        known = None not in speeds
        return Link(
            a=a,
            b=b,
            kind=LinkKind.NVLINK,
            lanes=lanes or None,
            bandwidth=min(sum(x.bandwidth or 0.0 for x in s) for s in sides) if known else None,
        )


def _device_fault(devices: Iterable[Device]) -> str | None:
    counts = Counter(d.name for d in devices)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        return f"two devices have the id {twice!r}: ids must differ"
    parents = {d.name: d.parent for d in devices}
    if lost := next(
        (d for d in devices if d.parent is not None and d.parent not in parents), None
    ):
        return f"{lost.name!r} hangs on {lost.parent!r}, which is not described"
    settled: set[str] = set()
    for name in parents:
        seen: list[str] = []
        at: str | None = name
        while at is not None and at not in settled:
            if at in seen:
                return f"cycle: {' on '.join(map(repr, [*seen[seen.index(at) :], at]))}"
            seen.append(at)
            at = parents[at]
        settled.update(seen)
    return None


def _links_fault(machine: Machine) -> str | None:
    names = {d.name for d in machine.devices}
    for link in machine.links:
        where = f"{link.kind} link between {link.a!r} and {link.b!r}"
        if link.a == link.b:
            return f"cycle: a {link.kind} link joins {link.a!r} with itself"
        if missing := {link.a, link.b} - names:
            return f"{where}: {sorted(missing)[0]!r} is not described"
        if link.lanes is not None and link.lanes < 1:
            return f"{where} has {link.lanes} lanes: must be at least 1"
        if link.bandwidth is not None and not 0 < link.bandwidth < math.inf:
            return f"{where} has a bandwidth of {link.bandwidth!r} B/s: must be more than 0"
    return None
