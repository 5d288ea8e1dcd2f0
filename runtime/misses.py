"""Look-ups that no row answered, in a file that `rubin-tune sweep --from-misses` reads.

A line of JSON each ("rubin-tune.miss/1"):

    {"schema", "op", "unit", "problem": {as `problem_keys` makes it}, "tokens", "reason", "model"}

Many processes may write one file: each line is one append. A process writes each miss once. Writing
never raises into the server: where it cannot go on it stops, and `trouble` says why.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .choices import Miss, Reason

# History: 1 = the first.
MISS_SCHEMA = "rubin-tune.miss/1"
_MOST_BYTES = 16 << 20
# Token counts of one problem, and problems, that one process remembers.
_MOST_COUNTS = 4096
_MOST_PROBLEMS = 256


class MissLog:
    """Writes misses; give it to `Table.load(..., misses=MissLog(path))`."""

    def __init__(
        self, path: str | Path, *, model: str = "", most_bytes: int = _MOST_BYTES
    ) -> None:
        """Name the file; nothing is opened before the first miss.

        Args:
            path: Made if missing; what is there stays.
            model: What a sweep may take as --model: a preset's name or a config.json's path.
            most_bytes: The file grows no further than this (and one line a process).
        """
        self._path = Path(path)
        self._model = model
        self._most_bytes = most_bytes
        self._seen: dict[str, set[int]] = {}
        self._trouble = ""

    @property
    def trouble(self) -> str:
        """Why nothing is written any more, "" while all is well."""
        return self._trouble

    def of(self, op: str, unit: str, problem: Mapping[str, Any]) -> Miss:
        """Return what writes the misses of one problem."""
        line = {"schema": MISS_SCHEMA, "op": op, "unit": unit, "problem": dict(problem)}
        line |= {"model": self._model} if self._model else {}
        try:
            text = json.dumps(line, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            self._trouble = f"a problem cannot be written: {error}"
            return _ignore
        if len(self._seen) >= _MOST_PROBLEMS and text not in self._seen:
            return _ignore
        seen = self._seen.setdefault(text, set())

        def miss(tokens: int, reason: Reason) -> None:
            if tokens in seen or self._trouble or len(seen) >= _MOST_COUNTS:
                return
            seen.add(tokens)
            self._append(json.dumps({**line, "tokens": int(tokens), "reason": reason.value}))

        return miss

    def _append(self, text: str) -> None:
        data = text.encode() + b"\n"
        try:
            # Opened for each line: they are few, and a forked process shares no file. A FIFO
            # without a reader is refused by O_NONBLOCK, not waited for.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            handle = os.open(self._path, flags, 0o644)
            try:
                self._trouble = self._written(handle, data)
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            self._trouble = f"{str(self._path)!r} cannot be written: {error}"

    def _written(self, handle: int, data: bytes) -> str:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            return f"{str(self._path)!r} is no regular file"
        if status.st_size + len(data) > self._most_bytes:
            return f"{str(self._path)!r} is full: it has {status.st_size} bytes"
        if os.write(handle, data) < len(data):
            return f"{str(self._path)!r}: the disk is full"
        return ""


def _ignore(tokens: int, reason: Reason) -> None:
    """Take no note of a miss."""
