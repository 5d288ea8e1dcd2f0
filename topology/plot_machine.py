"""A picture of an imported machine: who reaches whom how, as a matrix of links."""

from __future__ import annotations

from ..errors import InvalidInput
from .machine import Device, DeviceKind, Link, LinkKind, Machine
from .svg import INK, LINE, SOFT, Drawing

_CELL_WIDTH, _CELL_HEIGHT, _LABEL, _TOP = 54, 30, 150, 150
_MOST = 64
_COLOURS = {
    LinkKind.NVLINK: ("#6a9a1f", "#ffffff"),
    LinkKind.C2C: ("#6a9a1f", "#ffffff"),
    LinkKind.PCIE: ("#9cc3ea", INK),
    LinkKind.PIX: ("#9cc3ea", INK),
    LinkKind.PXB: ("#bcd6f0", INK),
    LinkKind.PHB: ("#d6e5f5", INK),
    LinkKind.NODE: ("#e8eff8", INK),
    LinkKind.SYS: ("#f6eee0", INK),
}
_MEANING = (
    (LinkKind.NVLINK, "NV#: so many NVLinks"),
    (LinkKind.PIX, "PIX: one PCIe bridge"),
    (LinkKind.PXB, "PXB: several bridges"),
    (LinkKind.PHB, "PHB: a host bridge"),
    (LinkKind.NODE, "NODE: within a NUMA node"),
    (LinkKind.SYS, "SYS: between NUMA nodes"),
)


def draw_machine(machine: Machine) -> str:
    """Return an SVG picture of an imported machine.

    Raises:
        InvalidInput: more GPUs and NICs than a picture can hold.
    """
    ends = [*machine.of_kind(DeviceKind.GPU), *machine.of_kind(DeviceKind.NIC)]
    if len(ends) > _MOST:
        raise InvalidInput(f"{len(ends)} GPUs and NICs: a picture holds at most {_MOST}")
    grid = len(ends) * _CELL_WIDTH
    drawing = Drawing(
        width=max(32 + _LABEL + grid + 240, 1120),
        height=_TOP + len(ends) * _CELL_HEIGHT + 40,
        title=f"{machine.title}: links between GPUs and NICs",
    )
    drawing.heading(machine.title, _counts(machine))
    _legend(drawing)
    for column, device in enumerate(ends):
        x = 32 + _LABEL + (column + 0.5) * _CELL_WIDTH
        for line, part in enumerate(reversed(_short(device).split("/"))):
            y = _TOP - 10 - 14 * line
            drawing.text(x, y, part, size=11, anchor="middle", bold=_gpu(device))
    for row, device in enumerate(ends):
        y = _TOP + row * _CELL_HEIGHT
        name = _short(device)
        drawing.text(32 + _LABEL - 12, y + 20, name, anchor="end", bold=_gpu(device))
        for column, other in enumerate(ends):
            _cell(drawing, machine, device, other, 32 + _LABEL + column * _CELL_WIDTH, y)
        drawing.text(32 + _LABEL + grid + 14, y + 20, _affinity(device), size=12, fill=SOFT)
    return drawing.render()


def _gpu(device: Device) -> bool:
    return device.kind is DeviceKind.GPU


def _short(device: Device) -> str:
    return device.note("device") or device.name


def _counts(machine: Machine) -> str:
    words = []
    for kind in (
        DeviceKind.HOST,
        DeviceKind.GPU,
        DeviceKind.NIC,
        DeviceKind.CPU,
        DeviceKind.SWITCH,
    ):
        count = len(machine.of_kind(kind))
        name = {"gpu": "GPU", "nic": "NIC", "cpu": "CPU"}.get(kind, kind.value)
        if count:
            plural = "es" if name.endswith("h") else "s"
            words.append(f"{count} {name}{plural if count > 1 else ''}")
    return " · ".join(words)


def _legend(drawing: Drawing) -> None:
    for number, (kind, words) in enumerate(_MEANING):
        x = 32 + number * 180
        drawing.rect(x, 84, 14, 14, fill=_COLOURS[kind][0], stroke=LINE, round_=2)
        drawing.text(x + 20, 96, words, size=11, fill=SOFT)


def _cell(
    drawing: Drawing, machine: Machine, device: Device, other: Device, x: float, y: float
) -> None:
    link = None if device is other else machine.path(device.name, other.name)
    fill, ink = ("#ffffff", SOFT) if link is None else _COLOURS[link.kind]
    drawing.rect(x, y, _CELL_WIDTH, _CELL_HEIGHT, fill=fill, stroke="#ffffff")
    words = "·" if device is other else _word(link)
    drawing.text(x + _CELL_WIDTH / 2, y + 20, words, size=12, fill=ink, anchor="middle")


def _word(link: Link | None) -> str:
    if link is None:
        return "?"
    if link.kind is LinkKind.NVLINK:
        return f"NV{link.lanes}" if link.lanes else "NV"
    return link.kind.value


def _affinity(device: Device) -> str:
    notes = (("cpus", "CPUs"), ("numa", "NUMA"), ("gpu_numa", "own NUMA"), ("sm", "sm"))
    return ", ".join(f"{word} {value}" for key, word in notes if (value := device.note(key)))
