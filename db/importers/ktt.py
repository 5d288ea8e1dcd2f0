"""KTT's output files: `Metadata` and `Results`, with the compiler's facts a point.

Source: HiPerCoRe/KTT 2.2, Source/Output/JsonConverters.cpp; ComputeEngine/Cuda/CudaKernel.cpp lines
77-78: `LocalMemorySize` is what CUDA calls shared, `PrivateMemorySize` what it calls local memory,
that is spills.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidInput
from ...search_spaces import LaunchConfig, Value
from ..recorded_spaces import CodeFacts, RecordedPoint, RecordedSpace
from ._importer import Document, Importer, integer, listed, mapped, number, scalar

# Metadata's TimeUnit -> microseconds.
_UNITS = {"Nanoseconds": 1e-3, "Microseconds": 1.0, "Milliseconds": 1e3, "Seconds": 1e6}


def _recognises(path: Path, document: Document) -> bool:
    return "Metadata" in document and "Results" in document


def _read(path: Path, document: Document) -> RecordedSpace:
    metadata = mapped("Metadata", document["Metadata"])
    results = listed("Results", document["Results"])
    unit = metadata.get("TimeUnit")
    if not isinstance(unit, str) or unit not in _UNITS:
        raise InvalidInput(f"TimeUnit is {unit!r:.40}: must be one of {', '.join(_UNITS)}")
    kernels = {str(r.get("KernelName", "")) for r in results if isinstance(r, dict)}
    if len(kernels) > 1:
        raise InvalidInput(f"it holds {len(kernels)} kernels: must hold one")
    points = [_point(n, row, _UNITS[unit]) for n, row in enumerate(results, start=1)]
    return RecordedSpace(
        source="ktt",
        kernel=next(iter(kernels), ""),
        device=str(metadata.get("Device", "")),
        parameters=_parameters(points),
        points=tuple(points),
    )


def _parameters(points: Sequence[RecordedPoint]) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    """Return the values that occur: the file declares none."""
    seen: dict[str, dict[Value, None]] = {name: {} for p in points[:1] for name in p.config}
    for place, point in enumerate(points, start=1):
        if list(point.config) != list(seen):
            raise InvalidInput(f"result {place} has other parameters than result 1")
        for name, value in point.config.items:
            seen[name][value] = None
    return tuple((name, tuple(sorted(values, key=_order))) for name, values in seen.items())


def _order(value: Value) -> tuple[bool, float, str]:
    return isinstance(value, str), 0.0 if isinstance(value, str) else float(value), str(value)


def _point(place: int, row: object, unit_us: float) -> RecordedPoint:
    line = mapped(f"result {place}", row)
    values: dict[str, Value] = {}
    for pair in listed(f"result {place}: Configuration", line.get("Configuration")):
        name = mapped(f"result {place}: Configuration", pair).get("Name")
        if not isinstance(name, str) or name in values:
            raise InvalidInput(f"result {place} names a parameter {name!r:.40}")
        values[name] = scalar(f"result {place}: {name}", pair.get("Value"))
    status = line.get("Status")
    if not isinstance(status, str) or not status:
        raise InvalidInput(f"result {place}: Status is {status!r:.40}: must be a word")
    config = LaunchConfig.of(values)
    if status != "Ok":
        return RecordedPoint(config=config, time_us=None, status=status)
    time = number(f"result {place}: TotalDuration", line.get("TotalDuration"))
    launches = listed(f"result {place}: ComputationResults", line.get("ComputationResults"))
    return RecordedPoint(config=config, time_us=time * unit_us, code=_code(place, launches))


def _code(place: int, launches: Sequence[object]) -> CodeFacts | None:
    """Return the facts of the kernel that asks for most, None where none were kept."""
    found = []
    for launch in launches:
        one = mapped(f"result {place}: ComputationResults", launch)
        if "CompilationData" not in one:
            return None
        data = mapped(f"result {place}: CompilationData", one["CompilationData"])
        found.append(
            CodeFacts(
                registers=_fact(place, data, "RegistersCount"),
                shared_bytes=_fact(place, data, "LocalMemorySize"),
                spill_bytes=_fact(place, data, "PrivateMemorySize"),
                threads=_volume(place, one, "LocalSize"),
                blocks=_volume(place, one, "GlobalSize"),
            )
        )
    return max(found, key=lambda f: (f.registers * f.threads, f.shared_bytes), default=None)


def _fact(place: int, data: Mapping[str, Any], name: str) -> int:
    return integer(f"result {place}: {name}", data.get(name))


def _volume(place: int, launch: Mapping[str, Any], name: str) -> int:
    sizes = mapped(f"result {place}: {name}", launch.get(name))
    return math.prod(integer(f"result {place}: {name}", sizes.get(a), least=1) for a in "XYZ")


PROVIDES = Importer(
    expected="KTT output (Metadata and Results)", recognises=_recognises, read=_read
)
