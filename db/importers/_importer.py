"""What an importer is, and how its files are read: JSON, gzipped or not, never without bound."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InvalidInput
from ...search_spaces import Value
from ..recorded_spaces import RecordedSpace
from ..seeds import EngineTable

# The largest recorded space that we know unpacks to 30 MB; a gzip bomb is told apart here.
MOST_BYTES = 512 << 20
_MOST_NUMBER = 1e15

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One format.

    Attributes:
        expected: What a good file holds, for messages.
        recognises: Whether a document looks like this format.
        read: Turns a document into its content; raises InvalidInput with the reason.
    """

    expected: str
    recognises: Callable[[Path, Document], bool]
    read: Callable[[Path, Document], EngineTable | RecordedSpace]


def read_document(path: Path) -> Document:
    """Return the JSON object that a file holds, through gzip where its first bytes say so.

    A Kernel Tuner cache of a run that was broken off lacks its last brackets; they are added.

    Raises:
        InvalidInput: it cannot be read, is too large, or holds no JSON object.
    """
    raw = _bytes(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not UTF-8 text (byte {error.start})") from error
    found = _parsed(text)
    if not isinstance(found, dict):
        raise InvalidInput("not a JSON object")
    return found


def integer(place: str, value: object, *, least: int = 0) -> int:
    """Return an integer.

    Raises:
        InvalidInput: it is none, or too small.
    """
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST_NUMBER:
        return value
    raise InvalidInput(f"{place} is {value!r:.40}: must be an integer of at least {least}")


def number(place: str, value: object) -> float:
    """Return a positive, finite number.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < _MOST_NUMBER else math.inf
        if math.isfinite(found) and found > 0:
            return found
    raise InvalidInput(f"{place} is {value!r:.40}: must be a positive number")


def scalar(place: str, value: object) -> Value:
    """Return a parameter's value; a fraction is kept as its spelling, for configs hold none.

    Raises:
        InvalidInput: it is no number, word or claim.
    """
    if isinstance(value, float):
        whole = math.isfinite(value) and value.is_integer() and abs(value) < _MOST_NUMBER
        return int(value) if whole else repr(value)
    if isinstance(value, int | str):
        return value
    raise InvalidInput(f"{place} is {value!r:.40}: must be a number, a word or true/false")


def listed(place: str, value: object) -> list[Any]:
    """Return a list.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, list):
        raise InvalidInput(f"{place} is {value!r:.40}: must be a list")
    return value


def mapped(place: str, value: object) -> dict[str, Any]:
    """Return an object.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, dict):
        raise InvalidInput(f"{place} is {value!r:.40}: must be an object")
    return value


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise InvalidInput("no such file") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInput("its gzip stream breaks off or is damaged") from error
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(str(words).lower()) from error
    if len(raw) > MOST_BYTES:
        raise InvalidInput(f"more than {MOST_BYTES >> 20} MiB")
    if not raw.strip():
        raise InvalidInput("empty")
    return bytes(raw)


def _parsed(text: str) -> object:
    cut = text.rstrip()
    try:
        # Kernel Tuner appends points as it goes, each with a comma behind.
        whole = f"{cut[:-1]}}}}}" if cut.endswith(",") else text
        return json.loads(whole, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidInput(f"not JSON ({why})") from error


def _no_constant(text: str) -> float:
    raise ValueError(f"it holds {text}")
