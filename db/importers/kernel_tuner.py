"""Kernel Tuner's cache files: one JSON object, a point a key, times in milliseconds.

Source: KernelTuner/kernel_tuner 1.5, `util.py` (`store_cache`, `process_cache`): `tune_params`,
`tune_params_keys` and `cache`; a failed point has the name of an error class as its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidInput
from ...search_spaces import LaunchConfig, Value
from ..recorded_spaces import RecordedPoint, RecordedSpace
from ._importer import Document, Importer, listed, mapped, number, scalar

_US_PER_MS = 1e3


def _recognises(path: Path, document: Document) -> bool:
    return "tune_params" in document and "cache" in document


def _read(path: Path, document: Document) -> RecordedSpace:
    parameters = _parameters(document)
    cache = mapped("cache", document["cache"])
    return RecordedSpace(
        source="kernel_tuner",
        kernel=str(document.get("kernel_name", "")),
        device=str(document.get("device_name", "")),
        parameters=tuple(parameters.items()),
        points=tuple(_point(key, row, parameters) for key, row in cache.items()),
    )


def _parameters(document: Document) -> dict[str, tuple[Value, ...]]:
    given = mapped("tune_params", document["tune_params"])
    names = listed("tune_params_keys", document.get("tune_params_keys", list(given)))
    found: dict[str, tuple[Value, ...]] = {}
    for name in names:
        if not isinstance(name, str) or name not in given:
            raise InvalidInput(f"tune_params_keys names {name!r:.40}: tune_params has no such")
        values = listed(f"tune_params {name!r}", given[name])
        found[name] = tuple(dict.fromkeys(scalar(name, value) for value in values))
        if not values:
            raise InvalidInput(f"tune_params {name!r} has no values")
    if not found:
        raise InvalidInput("tune_params names no parameter")
    return found


def _point(key: str, row: object, parameters: Mapping[str, tuple[Value, ...]]) -> RecordedPoint:
    place = f"point {key!r:.60}"
    line = mapped(place, row)
    values: dict[str, Value] = {}
    for name, allowed in parameters.items():
        if name not in line:
            raise InvalidInput(f"{place} has no {name!r}")
        values[name] = scalar(f"{place}: {name}", line[name])
        if values[name] not in allowed:
            raise InvalidInput(f"{place}: {name} is {line[name]!r:.40}, which tune_params lacks")
    time, status = _time(place, line)
    samples = listed(f"{place}: times", line.get("times", [])) if time is not None else []
    return RecordedPoint(
        config=LaunchConfig.of(values),
        time_us=time,
        samples_us=tuple(number(f"{place}: times", t) * _US_PER_MS for t in samples),
        status=status,
    )


def _time(place: str, line: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the time in microseconds, or None and the error's name."""
    found = line.get("time")
    if isinstance(found, str) and found:
        return None, found
    return number(f"{place}: time", found) * _US_PER_MS, ""


PROVIDES = Importer(
    expected="a Kernel Tuner cache (tune_params and cache)", recognises=_recognises, read=_read
)
