"""A picture of a rack or node: trays, GPUs, the switches between, and what an exchange costs."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UnknownFact
from .exchange import Exchange, bf16_row_bytes, fp8_row_bytes
from .graph import Topology
from .rack import Rack
from .show import rounded, spelled
from .svg import DOMAINS, INK, LINE, LINK, SOFT, UNKNOWN, Drawing

_LEFT, _TOP = 32, 100
_ROW, _GPU_WIDTH, _GPU_HEIGHT, _PAD = 46, 58, 26, 8
_SPINE, _REACH = 150, 34
_SIDE = 340


def draw_rack(topology: Topology) -> str:
    """Return an SVG picture of a rack.

    Args:
        topology: One that `Topology.of_rack` or `around` built.
    """
    rack = topology.rack
    if rack is None:
        raise UnknownFact(topology.gpu.name, "rack", "draw the GPU instead")
    rows = _rows(rack)
    half = -(-len(rows) // 2)
    row_height = max(_ROW, 200 // half)
    box = _beside(rack) * (_GPU_WIDTH + _PAD) + _PAD + 62
    right = _LEFT + box + _REACH + _SPINE + _REACH
    drawing = Drawing(
        width=right + box + 40 + _SIDE,
        height=max(_TOP + half * row_height + 80, 450),
        title=f"{rack.title}: {rack.gpus} GPUs behind one level of switches",
    )
    trays = f" in {rack.trays} trays" if rack.trays > 1 else ""
    drawing.heading(rack.title, f"{rack.gpus} x {topology.gpu.title}{trays}, one NVLink domain")
    spine = _LEFT + box + _REACH
    _switches(drawing, rack, spine, half * row_height - 8)
    for number, (name, gpus) in enumerate(rows):
        side, row = divmod(number, half)
        x, y = (_LEFT, right)[side], _TOP + row * row_height + (row_height - _ROW) / 2
        ends = (x + box, spine) if side == 0 else (spine + _SPINE, x)
        drawing.line(ends[0], y + 19, ends[1], y + 19, stroke=LINK, width=5)
        _tray(drawing, topology, name, gpus, x, y, box)
    _caption(drawing, topology, _TOP + half * row_height + 24)
    _sheet(drawing, topology, right + box + 40)
    return drawing.render()


def _rows(rack: Rack) -> list[tuple[str, range]]:
    """Return rows of GPUs: the trays, or parts of one."""
    rows, beside = [], _beside(rack)
    for tray in range(rack.trays):
        first = tray * rack.gpus_per_tray
        for start in range(first, first + rack.gpus_per_tray, beside):
            end = min(start + beside, first + rack.gpus_per_tray)
            name = f"tray {tray}" if rack.trays > 1 else f"{start} to {end - 1}"
            rows.append((name, range(start, end)))
    return rows


def _beside(rack: Rack) -> int:
    """Return how many GPUs stand side by side: a lone node is drawn in two columns of pairs."""
    return 4 if rack.trays > 1 else 2


def _tray(
    drawing: Drawing, topology: Topology, name: str, gpus: range, x: float, y: float, width: float
) -> None:
    drawing.rect(x, y, width, _ROW - 8, fill="#f6f8fa", round_=6)
    drawing.text(x + 10, y + 24, name, size=12, fill=SOFT)
    part = _GPU_WIDTH / topology.gpu.domains
    for place, gpu in enumerate(gpus):
        left = x + 62 + place * (_GPU_WIDTH + _PAD)
        for domain in range(topology.gpu.domains):
            colour = DOMAINS[domain % len(DOMAINS)]
            drawing.rect(
                left + domain * part, y + 6, part, _GPU_HEIGHT, fill=colour, stroke="none",
                round_=3,
            )  # fmt: skip
        middle = left + _GPU_WIDTH / 2
        drawing.text(middle, y + 24, f"{gpu}", size=12, fill="#ffffff", bold=True, anchor="middle")


def _switches(drawing: Drawing, rack: Rack, x: float, height: float) -> None:
    drawing.rect(x, _TOP, _SPINE, height, fill="#eef5e0", stroke=LINK, round_=8)
    chips = rack.find("switches")
    count = int(chips.number) if chips else 0
    middle, top = x + _SPINE / 2, _TOP + height / 2
    across = 4
    lines = -(-count // across)
    start = top - lines * 12 + 20
    drawing.text(middle, start - 28, "NVLink switches", size=14, bold=True, anchor="middle")
    words = f"{count} chips, one level" if count else "number unknown"
    drawing.text(
        middle, start - 11, words, size=12, anchor="middle", fill=INK if count else UNKNOWN
    )
    for chip in range(count):
        row = chip // across
        in_row = min(across, count - row * across)
        left = middle - in_row * 13 + chip % across * 26
        drawing.rect(left + 3, start + row * 24, 20, 18, fill=LINK, stroke="none", round_=3)


def _caption(drawing: Drawing, topology: Topology, y: float) -> None:
    link = topology.gpu.find("nvlink_bandwidth_one_way")
    rate = f"{spelled(link)} one way" if link else "of unknown bandwidth"
    words = f"Each GPU's links: {rate}. Any GPU reaches any other alike, through one switch."
    drawing.text(_LEFT, y, words, fill=SOFT)
    if topology.gpu.domains > 1:
        words = f"The {topology.gpu.domains} colours of a GPU are its locality domains."
        drawing.text(_LEFT, y + 19, words, fill=SOFT)


def _sheet(drawing: Drawing, topology: Topology, left: float) -> None:
    """List the rack's figures and what its collectives cost."""
    rack = topology.rack
    if rack is None:
        return
    wanted = (
        ("NVLink of all GPUs, both ways", "nvlink_bandwidth_both_ways"),
        ("NVLink latency", "nvlink_latency"),
        ("memory of all GPUs", "memory_bytes"),
        ("memory bandwidth", "memory_bandwidth"),
        ("NIC, a GPU", "nic_bandwidth_per_gpu"),
        ("between racks", "inter_rack_bandwidth"),
    )
    listed = dict(rack.sheet)
    rows = [(label, rounded(listed[name])) for label, name in wanted if name in listed]
    _table(drawing, left, _TOP, "Figures", rows)
    top = _TOP + 58 + len(rows) * 22
    _table(
        drawing, left, top, f"{min(8, topology.max_ranks)} GPUs together take", _times(topology)
    )


def _times(topology: Topology) -> list[tuple[str, str]]:
    """Return what common exchanges take, by the rack's fits."""
    ranks = min(8, topology.max_ranks)
    tokens = Exchange(
        tokens_per_rank=128, top_k=8, experts=256, ranks=ranks,
        dispatch_row_bytes=fp8_row_bytes(7168), combine_row_bytes=bf16_row_bytes(7168),
    )  # fmt: skip
    asked: tuple[tuple[str, Callable[[], float]], ...] = (
        ("all-gather of 1 MiB", lambda: topology.all_gather(1 << 20, ranks)),
        ("reduce-scatter of 1 MiB", lambda: topology.reduce_scatter(1 << 20, ranks)),
        ("all-reduce of 1 MiB", lambda: topology.all_reduce(1 << 20, ranks)),
        ("dispatch, 128 tokens a GPU *", lambda: topology.dispatch(tokens)),
        ("combine, 128 tokens a GPU *", lambda: topology.combine(tokens)),
    )
    rows = []
    for label, ask in asked:
        try:
            rows.append((label, f"{ask() * 1e6:.3g} us"))
        except UnknownFact:
            rows.append((label, "unknown"))
    return [*rows, ("* hidden 7168, top 8 of 256 experts", "")]


def _table(
    drawing: Drawing, left: float, top: float, title: str, rows: list[tuple[str, str]]
) -> None:
    end = left + _SIDE - 32
    drawing.text(left, top + 16, title, size=15, bold=True)
    drawing.line(left, top + 24, end, top + 24, stroke=LINE)
    for number, (label, value) in enumerate(rows):
        y = top + 46 + number * 22
        drawing.text(left, y, label, fill=SOFT)
        drawing.text(end, y, value, anchor="end", fill=UNKNOWN if value == "unknown" else INK)
