"""`nvidia-smi topo -m`: a matrix of links, then CPU and NUMA columns.

Forms met in the field: a header underlined by escape codes whether or not stdout is a terminal;
tabs, or spaces after pasting; words run together where a column was full ("NODEPIX"); lists with
ranges in the NUMA column and numbers in the last one on Grace, N/A on x86; a blank CPU column;
no affinity at NIC rows; legends below. The matrix sees one node: NVLink beyond it is not shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InvalidInput
from ..machine import Device, DeviceKind, Link, LinkKind, Machine
from ._importer import Importer

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COLUMNS = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID|\S+")
_NOTES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_GPU = re.compile(r"GPU\d+")
_NVLINK = re.compile(r"NV(-?\d+)")
_RUN_TOGETHER = re.compile(r"(SYS|NODE|PHB|PXB|PIX)(?=[A-Z])")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)")
_WORDS = ("SYS", "NODE", "PHB", "PXB", "PIX")
# NVLinks of one GPU up to NVLink 5: 6 on V100, 12 on A100, 18 on H100 to B300.
_MOST_LINKS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    name: str
    cells: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]


def read(text: str, title: str) -> Machine:
    """Return the machine that the matrix describes.

    Raises:
        InvalidInput: what is wrong, and in which line.
    """
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    start = _header(lines)
    columns = _COLUMNS.findall(lines[start])
    names = [c for c in columns if c not in _NOTES]
    rows = _rows(lines, start, names, [c for c in columns if c in _NOTES])
    _check(rows, names)
    nics = {m[1]: m[2] for m in map(_LEGEND.match, lines[start + 1 :]) if m}
    links = _links(rows, names)
    cpus = sorted({cpu for row in rows if (cpu := _cpu(row))})
    switched = any(link.b == "switch0" for link in links)
    return Machine(
        title=title,
        devices=(
            *(Device(name=f"cpus {cpu}", kind=DeviceKind.CPU) for cpu in cpus),
            *(_device(row, nics) for row in rows),
            *([Device(name="switch0", kind=DeviceKind.SWITCH)] if switched else []),
        ),
        links=tuple(links),
    )


def _recognises(text: str) -> bool:
    lines = (_ESCAPE.sub("", line).split() for line in text.splitlines())
    return any(len(w) > 1 and _GPU.fullmatch(w[0]) for w in lines if w)


def _header(lines: Sequence[str]) -> int:
    for number, line in enumerate(lines):
        words = line.split()
        if words and _GPU.fullmatch(words[0]) and not _is_cell(words[1:2]):
            return number
    raise InvalidInput("no header line with GPU0")


def _is_cell(words: Sequence[str]) -> bool:
    """Return whether a first word after a GPU's name makes the line a row."""
    return bool(words) and (words[0] in ("X", *_WORDS) or bool(_NVLINK.fullmatch(words[0])))


def _rows(
    lines: Sequence[str], start: int, names: Sequence[str], notes: Sequence[str]
) -> list[_Row]:
    rows: list[_Row] = []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if not line.strip() and not rows:
            continue
        if not line.strip() or line.lstrip().startswith(("Legend", "NIC Legend")):
            break
        words = _RUN_TOGETHER.sub(r"\1 ", line).split()
        cells = words[1 : len(names) + 1]
        if len(cells) < len(names):
            raise InvalidInput(
                f"line {number}: {words[0]} has {len(cells)} of {len(names)} links: the text is "
                "truncated"
            )
        found = _notes(line, words[len(names) + 1 :], notes, number)
        rows.append(_Row(line=number, name=words[0], cells=tuple(cells), notes=found))
    return rows


def _notes(
    line: str, words: Sequence[str], columns: Sequence[str], number: int
) -> tuple[tuple[str, str], ...]:
    """Pair the affinity columns with a row's last words; NIC rows have none."""
    if len(words) > len(columns):
        raise InvalidInput(f"line {number}: {' '.join(words)!r} are more words than columns")
    cells = line.split("\t")
    # A blank CPU column stands before the others: only tabs show it.
    blank_first = len(cells) > len(columns) and len(words) < len(columns) and _blank(cells, words)
    named = columns[len(columns) - len(words) :] if blank_first else columns
    return tuple((c, w) for c, w in zip(named, words, strict=False) if w != "N/A")


def _blank(cells: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether two tabs stand right before the first affinity word."""
    if not words:
        return False
    first = max(n for n, cell in enumerate(cells) if cell.strip() == words[0])
    return not cells[first - 1].strip()


def _check(rows: Sequence[_Row], names: Sequence[str]) -> None:
    columns, found = Counter(names), Counter(row.name for row in rows)
    if twice := next((n for n, count in columns.items() if count > 1), None):
        raise InvalidInput(f"two columns have the id {twice!r}")
    for row in rows:
        if found[row.name] > 1:
            raise InvalidInput(f"line {row.line}: two rows have the id {row.name!r}")
        if row.name not in columns:
            raise InvalidInput(f"line {row.line}: {row.name!r} is no column of the header")
    if missing := [n for n in names if n not in found]:
        raise InvalidInput(f"no row of {', '.join(missing)}: the text is truncated")


def _links(rows: Sequence[_Row], names: Sequence[str]) -> list[Link]:
    cells = {
        (r.name, n): _cell(r, n, c) for r in rows for n, c in zip(names, r.cells, strict=True)
    }
    for (a, b), cell in cells.items():
        if (a == b) != (cell == "X"):
            what = "with itself" if a == b else f"as the same device as {b}"
            raise InvalidInput(f"cycle: {a} is shown as {cell} {what}")
        if cell != cells[b, a]:
            raise InvalidInput(f"{a} to {b} is {cell}, {b} to {a} is {cells[b, a]}: must be equal")
    place = {name: number for number, name in enumerate(names)}
    pairs = {(a, b): c for (a, b), c in cells.items() if place[a] < place[b]}
    nvlinks = {pair: int(c[2:]) for pair, c in pairs.items() if c.startswith("NV")}
    paths = [
        Link(a=a.lower(), b=b.lower(), kind=LinkKind(c))
        for (a, b), c in pairs.items()
        if not c.startswith("NV")
    ]
    return [*_nvlinks(nvlinks), *paths]


def _cell(row: _Row, other: str, cell: str) -> str:
    found = _NVLINK.fullmatch(cell)
    if found and int(found[1]) < 1:
        raise InvalidInput(
            f"line {row.line}: {cell} joins {row.name} and {other} by {found[1]} links: "
            "must be at least 1"
        )
    if not found and cell not in ("X", *_WORDS):
        raise InvalidInput(
            f"line {row.line}: unknown link type {cell!r} between {row.name} and {other}: "
            f"must be X, {', '.join(_WORDS)} or NV with a number"
        )
    return cell


def _nvlinks(pairs: dict[tuple[str, str], int]) -> list[Link]:
    """Return links between pairs, or to a switch where a GPU would need more than it has."""
    totals: dict[str, int] = {}
    widest: dict[str, int] = {}
    for pair, count in pairs.items():
        for name in pair:
            totals[name] = totals.get(name, 0) + count
            widest[name] = max(widest.get(name, 0), count)
    if max(totals.values(), default=0) > _MOST_LINKS:
        return [
            Link(a=name.lower(), b="switch0", kind=LinkKind.NVLINK, lanes=count)
            for name, count in widest.items()
        ]
    return [
        Link(a=a.lower(), b=b.lower(), kind=LinkKind.NVLINK, lanes=count)
        for (a, b), count in pairs.items()
    ]


def _cpu(row: _Row) -> str | None:
    return dict(row.notes).get("CPU Affinity")


def _device(row: _Row, nics: dict[str, str]) -> Device:
    cpu = _cpu(row)
    names = {"NUMA Affinity": "numa", "GPU NUMA ID": "gpu_numa", "CPU Affinity": "cpus"}
    notes = [(names[key], value) for key, value in row.notes]
    if row.name in nics:
        notes.append(("device", nics[row.name]))
    return Device(
        name=row.name.lower(),
        kind=DeviceKind.GPU if _GPU.fullmatch(row.name) else DeviceKind.NIC,
        parent=f"cpus {cpu}" if cpu else None,
        notes=tuple(notes),
    )


PROVIDES = Importer(
    expected="the output of `nvidia-smi topo -m`", recognises=_recognises, read=read
)
