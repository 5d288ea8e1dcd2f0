"""A picture of one GPU: domains, SMs, memory and how fast each reads which."""

from __future__ import annotations

from itertools import pairwise

from ..errors import UnknownFact
from .facts import Fact
from .gpu import Gpu, Placement
from .show import rounded, spelled
from .svg import DOMAINS, INK, LINE, LINK, SOFT, SPARE, TINTS, UNKNOWN, Drawing

_LEFT, _TOP, _GAP = 32, 96, 36
_PANEL_WIDTH, _MEMORY_HEIGHT = 300, 74
_COLUMNS, _SM, _STEP = 14, 16, 19
_SIDE = 330


def draw_gpu(gpu: Gpu) -> str:
    """Return an SVG picture of a GPU."""
    panels = gpu.domains * _PANEL_WIDTH + (gpu.domains - 1) * _GAP
    drawing = Drawing(
        width=_LEFT + panels + 40 + _SIDE,
        height=max(_TOP + _panel_height(gpu) + (360 if gpu.domains > 1 else 300), 540),
        title=f"{gpu.title}: SMs, locality domains and memory",
    )
    count = f"{gpu.domains} locality domains" if gpu.domains > 1 else "one locality domain"
    drawing.heading(gpu.title, f"sm_{gpu.arch} · {gpu.sms} SMs · {count}")
    for domain in range(gpu.domains):
        _domain(drawing, gpu, domain, _LEFT + domain * (_PANEL_WIDTH + _GAP))
    below = _TOP + _panel_height(gpu)
    if gpu.supplemental_sms:
        _supplemental(drawing, gpu, panels, below + 14)
        below += 54
    _cache(drawing, gpu, panels, below + 18)
    memory = below + 150
    for domain in range(gpu.domains):
        _memory(drawing, gpu, domain, _LEFT + domain * (_PANEL_WIDTH + _GAP), memory)
    _reads(drawing, gpu, below + 54, memory)
    _notes(drawing, gpu, memory + _MEMORY_HEIGHT + 26)
    _sheet(drawing, gpu, _LEFT + panels + 40)
    return drawing.render()


def _domain(drawing: Drawing, gpu: Gpu, domain: int, left: float) -> None:
    colour, tint = DOMAINS[domain % len(DOMAINS)], TINTS[domain % len(TINTS)]
    height = _panel_height(gpu)
    drawing.rect(left, _TOP, _PANEL_WIDTH, height, fill=tint, stroke=colour, round_=8)
    several = gpu.domains > 1
    name = f"Domain {domain}" if several else "All SMs"
    drawing.text(left + 16, _TOP + 26, name, size=15, bold=True)
    words = f"{gpu.native_sms_per_domain} native SMs" if several else f"{gpu.sms} SMs"
    drawing.text(left + _PANEL_WIDTH - 16, _TOP + 26, words, fill=SOFT, anchor="end")
    for number in range(gpu.native_sms_per_domain):
        x = left + 17 + number % _COLUMNS * _STEP
        y = _TOP + 42 + number // _COLUMNS * _STEP
        drawing.rect(x, y, _SM, _SM, fill=colour, stroke="none", round_=2)


def _panel_height(gpu: Gpu) -> int:
    return 42 + -(-gpu.native_sms_per_domain // _COLUMNS) * _STEP + 12


def _supplemental(drawing: Drawing, gpu: Gpu, width: float, top: float) -> None:
    """Draw the SMs of no domain in a strip of their own."""
    drawing.rect(_LEFT, top, width, 36, fill="#fdf5e3", stroke=SPARE, round_=6)
    drawing.text(_LEFT + 16, top + 23, f"{gpu.supplemental_sms} supplemental SMs", bold=True)
    for number in range(min(gpu.supplemental_sms, 20)):
        x = _LEFT + width - 17 - (number + 1) * _STEP
        drawing.rect(x, top + 10, _SM, _SM, fill=SPARE, stroke="none", round_=2)


def _cache(drawing: Drawing, gpu: Gpu, width: float, top: float) -> None:
    size = gpu.find("l2_bytes")
    equal = gpu.find("l2_hit_latency_domain_ratio")
    words = f"L2  {rounded(size)}" if size else "L2  size unknown"
    if equal and equal.value == 1:
        words += " · a hit costs the same from both domains"
    drawing.rect(
        _LEFT, top, width, 36, fill="#f3f5f8", stroke=LINE if size else UNKNOWN, round_=6,
        dashed=size is None,
    )  # fmt: skip
    drawing.text(
        _LEFT + width / 2, top + 23, words, anchor="middle", fill=INK if size else UNKNOWN
    )


def _memory(drawing: Drawing, gpu: Gpu, domain: int, left: float, top: float) -> None:
    colour = DOMAINS[domain % len(DOMAINS)]
    drawing.rect(left, top, _PANEL_WIDTH, _MEMORY_HEIGHT, fill="#eef1f5", stroke=colour, round_=8)
    name = f"Memory of domain {domain}" if gpu.domains > 1 else "Memory"
    middle = left + _PANEL_WIDTH / 2
    drawing.text(middle, top + 30, name, size=15, bold=True, anchor="middle")
    size = gpu.memory_bytes / gpu.domains / 1e9
    drawing.text(middle, top + 52, f"{size:,.0f} GB", fill=SOFT, anchor="middle")


def _reads(drawing: Drawing, gpu: Gpu, top: float, bottom: float) -> None:
    """Draw who reads which memory how fast; an arrow carries one domain's share."""
    local = _share(gpu, Placement.LOCAL)
    centres = [_LEFT + d * (_PANEL_WIDTH + _GAP) + _PANEL_WIDTH / 2 for d in range(gpu.domains)]
    for domain, x in enumerate(centres):
        drawing.line(x, top, x, bottom, stroke=DOMAINS[domain % len(DOMAINS)], width=7)
        words = f"local {local}" if gpu.domains > 1 else f"read {local}"
        inwards = domain == 0
        drawing.text(
            x + (-12 if inwards else 12), (top + bottom) / 2 + 5, words, bold=True,
            anchor="end" if inwards else "start",
        )  # fmt: skip
    remote = _share(gpu, Placement.REMOTE)
    for left, right in pairwise(centres):
        known = remote != "unknown"
        stroke = SOFT if known else UNKNOWN
        drawing.line(left, top, right, bottom, stroke=stroke, width=2, dashed=not known)
        drawing.line(right, top, left, bottom, stroke=stroke, width=2, dashed=not known)
        middle = (left + right) / 2
        drawing.rect(middle - 100, (top + bottom) / 2 - 17, 200, 34, stroke=stroke, round_=6)
        words = f"remote {remote if known else 'bandwidth unknown'}"
        drawing.text(middle, (top + bottom) / 2 + 5, words, anchor="middle", fill=stroke)


def _share(gpu: Gpu, placement: Placement) -> str:
    try:
        return f"{gpu.read_bandwidth(placement) / gpu.domains / 1e12:g} TB/s"
    except UnknownFact:
        return "unknown"


def _notes(drawing: Drawing, gpu: Gpu, top: float) -> None:
    lines = []
    if gpu.domains > 1:
        lines.append(
            "All SMs reading interleaved memory (plain cudaMalloc): "
            f"{gpu.read_bandwidth(Placement.INTERLEAVED) / 1e12:g} TB/s; "
            f"all local: {gpu.read_bandwidth(Placement.LOCAL) / 1e12:g} TB/s"
        )
    low, high = (gpu.find(f"remote_miss_latency_ratio_{end}") for end in ("low", "high"))
    if low and high:
        lines.append(
            f"A miss to the other domain takes {low.number:g} to {high.number:g} times a local one"
        )
    if gpu.supplemental_sms:
        lines.append(
            "Supplemental SMs are native to no domain: a launch kept to the domains leaves them idle"
        )
    for number, line in enumerate(lines):
        drawing.text(_LEFT, top + number * 19, line, fill=SOFT)


def _sheet(drawing: Drawing, gpu: Gpu, left: float) -> None:
    """List what an SM holds, the roofs and the links."""
    groups = {
        "One SM": (
            ("shared memory a block", "shared_memory_per_block"),
            ("… oversized mode", "shared_memory_per_block_oversized"),
            ("L1 left in that mode", "l1_bytes_oversized"),
            ("tensor memory columns", "tmem_columns"),
            ("warps", "max_warps_per_sm"),
            ("blocks", "max_blocks_per_sm"),
        ),
        "Peak rates, dense": (
            ("FP4", "flops_nvfp4"),
            ("FP8", "flops_fp8"),
            ("BF16", "flops_bf16"),
            ("memory", "memory_peak_bandwidth"),
        ),
        "Links": (
            ("NVLink version", "nvlink_version"),
            ("NVLink, one way", "nvlink_bandwidth_one_way"),
            ("CPU link, both ways", "cpu_link_bandwidth"),
        ),
    }
    top: float = _TOP
    for title, facts in groups.items():
        known = [(label, fact) for label, name in facts if (fact := gpu.find(name)) and fact.value]
        drawing.text(
            left, top + 16, title, size=15, bold=True, fill=LINK if title == "Links" else INK
        )
        drawing.line(left, top + 24, left + _SIDE - 32, top + 24)
        for number, (label, fact) in enumerate(known):
            y = top + 46 + number * 22
            drawing.text(left, y, label, fill=SOFT)
            drawing.text(left + _SIDE - 32, y, _short(fact), anchor="end")
        top += 46 + len(known) * 22 + 12


def _short(fact: Fact) -> str:
    """Return a value as a label: of shared memory the binary form alone, as people quote it."""
    _, _, binary = spelled(fact).partition("(")
    return binary.rstrip(")") or rounded(fact)
