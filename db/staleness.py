"""Whether a row still speaks of what would run now: which part of its key has changed since.

Rows are kept and marked. What either side does not know (a recording says no ptxas, a machine
without a GPU no driver) is no reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from .records import Silicon, Toolchain, Trial, Winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What would run now.

    Attributes:
        sources: Source hash by kernel; a kernel that is not there is not judged.
        toolchains: Toolchain by target (compute capability times ten).
        silicon: The GPU that is asked about, None where any may be.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    toolchains: Mapping[int, Toolchain] = field(default_factory=dict)
    silicon: Silicon | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One part of a row's key that is another now."""

    part: str
    then: str
    now: str

    def __str__(self) -> str:
        """Return "triton was 3.6.0, is 3.9.0"."""
        return f"{self.part} was {self.then}, is {self.now}"


def reasons(row: Trial | Winner, present: Present) -> tuple[Reason, ...]:
    """Return why a row is stale; nothing where it is not."""
    return key_reasons(
        kernel=row.kernel,
        source_hash=row.source_hash,
        toolchain=row.toolchain,
        silicon=row.silicon,
        present=present,
    )


def key_reasons(
    *, kernel: str, source_hash: str, toolchain: Toolchain, silicon: Silicon, present: Present
) -> tuple[Reason, ...]:
    """Return why rows of a key are stale: source first, then toolchain, then silicon."""
    source = present.sources.get(kernel, "")
    found = []
    if source and source != source_hash:
        found.append(Reason(part="the kernel's source", then=source_hash, now=source))
    now = present.toolchains.get(silicon.arch)
    if now is not None:
        found += _differences(toolchain, now, skip=())
    if present.silicon is not None:
        # Drivers round memory differently, and a name is no key.
        found += _differences(silicon, present.silicon, skip=("name", "memory_bytes"))
    return tuple(found)


def in_words(found: tuple[Reason, ...]) -> str:
    """Return the reasons as one phrase, "" without any."""
    return "; ".join(map(str, found))


def _differences(
    then: Toolchain | Silicon, now: Toolchain | Silicon, *, skip: tuple[str, ...]
) -> list[Reason]:
    """Return the parts that both sides know and that differ."""
    found = []
    for part in fields(then):
        old, new = getattr(then, part.name), getattr(now, part.name)
        known = old not in ("", 0) or isinstance(old, bool)
        known = known and (new not in ("", 0) or isinstance(new, bool))
        if known and old != new and part.name not in skip:
            found.append(Reason(part=part.name, then=str(old), now=str(new)))
    return found
