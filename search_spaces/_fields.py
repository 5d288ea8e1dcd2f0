"""Typed reading of a table from a file: a wrong value is one sentence that names its key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping

from ..errors import CorruptFile

# No width, count or layer number is near this; it keeps products within 64 bits.
MOST = 1 << 20


class Fields:
    """A table, with the file it came from.

    Args:
        table: Keys and values as parsed.
        path: The file, for messages.
        expected: What a good file holds, for messages.
    """

    def __init__(self, table: Mapping[str, object], path: object, expected: str) -> None:
        self.table = table
        self.path = path
        self.expected = expected

    def wrong(self, why: str) -> CorruptFile:
        """Return the error to raise."""
        return CorruptFile(self.path, why, self.expected)

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Refuse keys that nobody reads: most are slips of the finger."""
        for key in self.table:
            if key not in known:
                near = difflib.get_close_matches(key, list(known), n=2, cutoff=0.5)
                hint = f", did you mean {' or '.join(near)}?" if near else ""
                raise self.wrong(f"unknown key {key!r:.60}{hint}")

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.table.get(key) is not None

    def first(self, *keys: str) -> str:
        """Return the first of several spellings that is there, or the first spelling."""
        return next((key for key in keys if self.has(key)), keys[0])

    def count(self, key: str, default: int | None = None) -> int:
        """Return an integer from 0 (from 1 where it must be given) to 2^20."""
        value = self.table.get(key)
        if value is None:
            if default is None:
                raise self.wrong(f"{key!r} is missing")
            return default
        least = 1 if default is None else 0
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
            raise self.wrong(
                f"{key!r} is {value!r:.40}: must be an integer from {least} to {MOST}"
            )
        return value

    def number(self, key: str, default: float) -> float:
        """Return a finite number of at least 0."""
        value = self.table.get(key)
        if value is None:
            return default
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= float(str(value)) < math.inf:
            raise self.wrong(f"{key!r} is {value!r:.40}: must be a finite number of at least 0")
        return float(str(value))

    def text(self, key: str, default: str) -> str:
        """Return a word."""
        value = self.table.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(f"{key!r} is {value!r:.40}: must be a string")
        return value

    def claim(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.table.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(f"{key!r} is {value!r:.40}: must be true or false")
        return value

    def words(self, key: str, known: Collection[str]) -> tuple[str, ...]:
        """Return a list of known words (empty where there is none)."""
        value = self.table.get(key, [])
        if not isinstance(value, list) or not all(word in known for word in value):
            raise self.wrong(f"{key!r} is {value!r:.60}: must be a list of {', '.join(known)}")
        return tuple(value)

    def inner(self, key: str) -> Fields | None:
        """Return a nested table, or None where there is none."""
        value = self.table.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(f"{key!r} is {value!r:.40}: must be an object")
        return Fields(value, self.path, self.expected)
