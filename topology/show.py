"""A GPU or a rack as rows that a person reads."""

from __future__ import annotations

from typing import NamedTuple

from .facts import Fact
from .gpu import Gpu
from .rack import Rack

_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6))


class Row(NamedTuple):
    """One line of `topology show`."""

    fact: str
    value: str
    confidence: str
    source: str


def describe(thing: Gpu | Rack) -> list[Row]:
    """Return every figure of a GPU or rack, the unknown ones too, and a rack's fits."""
    rows = [Row(n, spelled(f), f.confidence.value, f.source) for n, f in thing.sheet]
    if isinstance(thing, Rack):
        rows += [
            Row(
                f"{fit.collective}.{fit.algorithm}",
                f"{fit.base_us:g} us + {fit.per_rank_us:g} us a peer, "
                f"{fit.bytes_per_s / 1e9:g} GB/s",
                fit.confidence.value,
                fit.source,
            )
            for fit in thing.fits
        ]
        rows += [
            Row(
                f"{fit.stage}.{fit.algorithm}",
                f"{fit.base_us:g} us + {fit.per_rank_us:g} us a peer + {fit.per_expert_us:g} us an "
                f"expert, {fit.bytes_per_s / 1e9:g} GB/s",
                fit.confidence.value,
                fit.source,
            )
            for fit in thing.exchanges
        ]
    return rows


def spelled(fact: Fact) -> str:
    """Return a value with its unit ("22 TB/s", "232,448 B (227 KiB)", "unknown")."""
    value, unit = fact.value, fact.unit
    if value is None:
        return "unknown"
    if unit in ("B/s", "FLOP/s", "Hz"):
        prefix, scale = next((p for p in _PREFIXES if value >= p[1]), ("", 1.0))
        return f"{value / scale:g} {prefix}{unit}"
    if unit == "B":
        return f"{value:,} B" + _binary(value)
    if unit == "s":
        return f"{value * 1e6:g} us"
    if unit in ("ratio", "version"):
        return f"{value:g}"
    return f"{value:,g} {unit}" if isinstance(value, float) else f"{value:,} {unit}"


def rounded(fact: Fact) -> str:
    """Return a value for a picture: bytes in GB or TB, counts without their unit."""
    value = fact.value
    if value is None or fact.unit not in ("B", "warp", "block", "column"):
        return spelled(fact)
    if fact.unit != "B":
        return f"{value:,}"
    prefix, scale = next((p for p in _PREFIXES if value >= p[1]), ("k", 1e3))
    return f"{value / scale:.4g} {prefix}B"


def _binary(value: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f" ({value / scale:.4g} {unit})"
    return ""
