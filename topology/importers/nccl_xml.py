"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE, or a file given as NCCL_TOPO_FILE).

Tags: system > cpu > pci (nested: bridges) > gpu > nvlink, c2c; pci > nic > net. Attributes that
the driver could not read are "" or 0 and stay unknown here. NVLink targets are the other GPU's PCI
address, or a switch's, which no tag describes. Files of cloud images hold only cpu and pci tags;
dumps of several nodes hold a host_hash at each cpu, and PCI addresses then repeat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from ...errors import InvalidInput
from ..machine import NVLINK_BYTES_PER_S, Device, DeviceKind, Link, LinkKind, Machine
from ._importer import Importer

_DEEPEST = 64
_GPU_LINKS = ("nvlink", "c2c")
# PCI classes: 3D and display controllers, and what NVLink targets are.
_GPU_CLASS = "0x0302"
_SWITCH_CLASS, _CPU_CLASSES = "0x068000", ("0x060400", "0x068001")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) ?GT/s")
# Bytes a second of one lane for each transfer: 8b/10b up to 5 GT/s, 128b/130b after (PCIe base
# specification).
_SLOW_GT, _SLOW_CODE, _FAST_CODE = 5.0, 0.8, 128 / 130
# NVLink versions by compute capability (facts/hardware.md 1.1; the first three are general knowledge).
_NVLINK_VERSIONS = {60: 1, 70: 2, 80: 3, 90: 4, 100: 5, 103: 5}


@dataclass(slots=True)
class _Tag:
    name: str
    attributes: Mapping[str, str]
    line: int
    inside: list[_Tag] = field(default_factory=list)

    def find(self, name: str) -> Iterator[_Tag]:
        """Yield the tags of one name directly inside."""
        return (tag for tag in self.inside if tag.name == name)

    def number(self, key: str, *, low: int) -> int:
        """Return a whole number that must be there."""
        text = self.attributes.get(key, "")
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise InvalidInput(
                f"line {self.line}: {key} of <{self.name}> is {text!r}: must be a whole number of "
                f"at least {low}"
            )
        return value

    def text(self, key: str) -> str:
        """Return an attribute that must be there."""
        if not self.attributes.get(key):
            raise InvalidInput(f"line {self.line}: <{self.name}> has no {key}")
        return self.attributes[key]


def read(text: str, title: str) -> Machine:
    """Return the machine that the XML describes.

    Raises:
        InvalidInput: what is wrong, and in which line.
    """
    reader = _Reader(_parsed(text))
    reader.walk()
    links = reader.joined()
    return Machine(title=title, devices=tuple(reader.devices.values()), links=links)


def _recognises(text: str) -> bool:
    return text.lstrip().startswith("<")


def _parsed(text: str) -> _Tag:
    """Parse without ever defining or expanding an entity."""
    root = _Tag(name="", attributes={}, line=0)
    open_tags = [root]
    parser = expat.ParserCreate(encoding="utf-8")

    def start(name: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if open_tags[-1].name == "gpu" and name not in _GPU_LINKS:
            raise InvalidInput(
                f"line {line}: unknown link type <{name}> of a GPU: must be {' or '.join(_GPU_LINKS)}"
            )
        if len(open_tags) > _DEEPEST:
            raise InvalidInput(f"line {line}: tags nest deeper than {_DEEPEST}")
        tag = _Tag(name=name, attributes=attributes, line=line)
        open_tags[-1].inside.append(tag)
        open_tags.append(tag)

    def end(_name: str) -> None:
        open_tags.pop()

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = _refuser(parser, "a document type")
    parser.EntityDeclHandler = _refuser(parser, "an entity")
    parser.ExternalEntityRefHandler = _refuser(parser, "an entity")
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise InvalidInput(f"line {error.lineno}: {expat.ErrorString(error.code)}") from error
    if [tag.name for tag in root.inside] != ["system"]:
        raise InvalidInput("the outermost tag is not <system>")
    return root.inside[0]


def _refuser(parser: expat.XMLParserType, what: str) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise InvalidInput(f"line {parser.CurrentLineNumber}: it declares {what}: not allowed")

    return refuse


class _Reader:
    """Turns tags into devices and links."""

    def __init__(self, system: _Tag) -> None:
        self.devices: dict[str, Device] = {}
        self._system = system
        self._links: list[Link] = []
        self._nvlinks: list[tuple[str, str, _Tag, float | None]] = []
        self._addresses: dict[tuple[str, str], str] = {}
        self._ranks: dict[str, str] = {}
        self._untagged = 0
        self._hosts = sorted({cpu.attributes.get("host_hash", "") for cpu in system.find("cpu")})

    def walk(self) -> None:
        """Read everything below <system>."""
        cpus = list(self._system.find("cpu"))
        if not cpus:
            raise InvalidInput("no <cpu> in <system>")
        for cpu in cpus:
            host = self._host(cpu)
            name, above = f"{host}cpu{cpu.text('numaid')}", host.rstrip("/") or None
            if above:
                self.devices.setdefault(above, Device(name=above, kind=DeviceKind.HOST))
            self._add(cpu, name, DeviceKind.CPU, above, ("arch", "vendor", "affinity"))
            for pci in cpu.find("pci"):
                self._pci(pci, host, name)
            for nic in cpu.find("nic"):
                self._nic(nic, host, name)

    def _host(self, cpu: _Tag) -> str:
        """Return what to put before names: nothing for one node."""
        if len(self._hosts) < 2:
            return ""
        return f"node{self._hosts.index(cpu.attributes.get('host_hash', ''))}/"

    def _add(
        self, tag: _Tag, name: str, kind: DeviceKind, parent: str | None, keys: tuple[str, ...]
    ) -> None:
        if name in self.devices:
            raise InvalidInput(f"line {tag.line}: two devices have the id {name!r}")
        notes = tuple((k, tag.attributes[k]) for k in keys if tag.attributes.get(k))
        self.devices[name] = Device(name=name, kind=kind, parent=parent, notes=notes)

    def _pci(self, pci: _Tag, host: str, parent: str) -> None:
        busid = pci.text("busid").lower()
        if (host, busid) in self._addresses:
            raise InvalidInput(f"line {pci.line}: two devices have the PCI address {busid}")
        gpus = list(pci.find("gpu"))
        if len(gpus) > 1:
            raise InvalidInput(f"line {gpus[1].line}: two GPUs have the PCI address {busid}")
        if gpus:
            name = self._gpu(gpus[0], host, parent, busid)
        elif pci.attributes.get("class", "").startswith(_GPU_CLASS):
            name = self._untagged_gpu(pci, host, parent)
        else:
            name = f"{host}pci {busid}"
            self._add(pci, name, DeviceKind.BRIDGE, parent, ())
        self._addresses[host, busid] = name
        lanes, speed = _pcie(pci)
        self._links.append(
            Link(a=parent, b=name, kind=LinkKind.PCIE, lanes=lanes, bandwidth=speed)
        )
        for inner in pci.find("pci"):
            self._pci(inner, host, name)
        for nic in pci.find("nic"):
            self._nic(nic, host, name)

    def _untagged_gpu(self, pci: _Tag, host: str, parent: str) -> str:
        """Add a GPU of a file that holds no <gpu>; they are counted in file order."""
        name = f"{host}gpu{self._untagged}"
        self._untagged += 1
        self._add(pci, name, DeviceKind.GPU, parent, ("busid",))
        return name

    def _gpu(self, gpu: _Tag, host: str, parent: str, busid: str) -> str:
        rank = gpu.attributes.get("rank", "")
        name = f"{host}gpu{gpu.number('dev', low=0)}"
        # A GPU that the dumping job did not use has rank -1.
        if rank.isdecimal() and self._ranks.setdefault(rank, name) != name:
            raise InvalidInput(
                f"line {gpu.line}: {self._ranks[rank]!r} and {name!r} have the rank {rank}"
            )
        self._add(gpu, name, DeviceKind.GPU, parent, ("sm", "rank"))
        each = NVLINK_BYTES_PER_S.get(_NVLINK_VERSIONS.get(gpu.number("sm", low=1), 0))
        for link in gpu.find("nvlink"):
            self._nvlinks.append((name, host, link, each))
        for link in gpu.find("c2c"):
            lanes, mega = link.number("count", low=1), link.number("bw", low=1)
            self._links.append(
                Link(a=name, b=self._cpu_of(parent), kind=LinkKind.C2C, lanes=lanes,
                     bandwidth=lanes * mega * 1e6)
            )  # fmt: skip
        self._addresses[host, busid] = name
        return name

    def _cpu_of(self, name: str) -> str:
        while self.devices[name].kind is not DeviceKind.CPU:
            name = self.devices[name].parent or ""
        return name

    def _nic(self, nic: _Tag, host: str, parent: str) -> None:
        for net in nic.find("net"):
            name = f"{host}{net.text('name')}"
            self._add(net, name, DeviceKind.NIC, parent, ("dev", "port", "guid"))
            megabits = net.number("speed", low=1)
            self._links.append(
                Link(a=parent, b=name, kind=LinkKind.PCIE, bandwidth=megabits * 1e6 / 8)
            )

    def joined(self) -> tuple[Link, ...]:
        """Return all links; each side of a GPU pair names the other, one of the two is kept."""
        found: dict[tuple[str, str], Link] = {}
        for name, host, tag, each in self._nvlinks:
            other = self._target(tag, host, name)
            lanes = tag.number("count", low=1)
            a, b = sorted((name, other))
            if (a, b) in found and found[a, b].lanes != lanes:
                raise InvalidInput(
                    f"line {tag.line}: {a} and {b} are joined by {found[a, b].lanes} or {lanes} "
                    "NVLinks: must be equal"
                )
            bandwidth = each * lanes if each else None
            found[a, b] = Link(a=a, b=b, kind=LinkKind.NVLINK, lanes=lanes, bandwidth=bandwidth)
        return (*found.values(), *self._links)

    def _target(self, tag: _Tag, host: str, name: str) -> str:
        address, kind = tag.text("target").lower(), tag.attributes.get("tclass", "")
        known = self._addresses.get((host, address))
        if known is None and kind in _CPU_CLASSES:
            known = self._cpu_of(name)
        if known is None and (kind == _SWITCH_CLASS or address.startswith("ffff")):
            # Blackwell hides its switches behind one made-up address, for all nodes of a rack.
            known = (
                f"switch {address}" if address.startswith("ffff") else f"{host}switch {address}"
            )
            self.devices.setdefault(known, Device(name=known, kind=DeviceKind.SWITCH))
        if known is None:
            raise InvalidInput(
                f"line {tag.line}: unknown link type: NVLink of {name} to {address} of class "
                f"{kind or 'none'}, which is neither a GPU here nor a switch"
            )
        return known


def _pcie(pci: _Tag) -> tuple[int | None, float | None]:
    """Return lanes and bytes/s; "" and 0 are what NCCL writes where the driver does not say."""
    text = pci.attributes.get("link_width") or "0"
    lanes = pci.number("link_width", low=0) if text != "0" else 0
    speed = pci.attributes.get("link_speed", "")
    found = _SPEED.match(speed)
    if not found and speed.strip() and "unknown" not in speed.lower():
        raise InvalidInput(f"line {pci.line}: link_speed is {speed!r}: must be like '32.0 GT/s'")
    if not lanes or not found:
        return lanes or None, None
    rate = float(found[1])
    code = _SLOW_CODE if rate <= _SLOW_GT else _FAST_CODE
    return lanes, lanes * rate * code * 1e9 / 8


PROVIDES = Importer(expected="a topology that NCCL dumped", recognises=_recognises, read=read)
