"""What an importer is, and how its files are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import InvalidInput
from ..machine import Machine

# NCCL's dump of a whole NVL72 rack has under 2,000 lines, `nvidia-smi topo -m` under 200.
MOST_LINES = 20_000
MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One format.

    Attributes:
        expected: What a good file holds, for messages.
        recognises: Whether a text looks like this format.
        read: Turns a text into a machine with that title; raises InvalidInput with the reason.
    """

    expected: str
    recognises: Callable[[str], bool]
    read: Callable[[str, str], Machine]


def read_text(path: Path) -> str:
    """Return a file's text, never reading more than a topology can have.

    Raises:
        InvalidInput: it cannot be opened, is no UTF-8 text, or is too large.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidInput((error.strerror or type(error).__name__).lower()) from error
    if len(raw) > MOST_BYTES:
        raise InvalidInput(f"more than {MOST_BYTES >> 20} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise InvalidInput("not UTF-8 text (it holds zero bytes)")
    if not text.strip():
        raise InvalidInput("empty")
    if (lines := text.count("\n") + 1) > MOST_LINES:
        raise InvalidInput(f"{lines:,} lines: a topology has at most {MOST_LINES:,}")
    return text
