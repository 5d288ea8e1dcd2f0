"""Lines of a text file, plain or gzipped: a broken byte is one sentence with its line and column."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import CorruptFile

# A Mooncake line holds 8 bytes a 512-token block: 16 M tokens stay far below this.
MOST_LINE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
# Byte-order marks of encodings that are not ours, longest first (UTF-32-LE begins as UTF-16-LE).
_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
UTF8_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path, expected: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end); blank lines come too, a UTF-8 mark not.

    Args:
        path: The file; gzip is known by its first bytes, whatever the name.
        expected: What a good file holds, for messages.

    Raises:
        CorruptFile: not readable, cut-off gzip, another encoding, a line over 1 MiB.
    """
    number = 0
    try:
        with _open(path) as stream:
            while line := stream.readline(MOST_LINE_BYTES + 1):
                number += 1
                yield number, _text(path, number, line, expected)
    except (OSError, EOFError, zlib.error) as error:
        reason = f"{type(error).__name__}: {error}"
        where = f" after line {number}" if number else ""
        raise CorruptFile(path, f"{reason}{where}", expected) from error


def starts_with_mark(path: Path) -> bool:
    """Whether the (unpacked) file begins with a UTF-8 byte-order mark."""
    with _open(path) as stream:
        return stream.read(len(UTF8_MARK)) == UTF8_MARK


def sha256_of(path: Path) -> str:
    """Return the hash of the file as it lies on the disk."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        packed = stream.read(len(_GZIP)) == _GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if packed else path.open("rb")


def _text(path: Path, number: int, line: bytes, expected: str) -> str:
    if number == 1:
        for mark, name in _MARKS.items():
            if line.startswith(mark):
                raise CorruptFile(path, f"line 1, column 1: is {name}, not UTF-8", expected)
        line = line.removeprefix(UTF8_MARK)
    if len(line) > MOST_LINE_BYTES:
        raise CorruptFile(path, f"line {number} is longer than 1 MiB", expected)
    zero = line.find(b"\0")
    if zero >= 0:
        raise CorruptFile(path, f"line {number}, column {zero + 1}: a zero byte", expected)
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise CorruptFile(
            path,
            f"line {number}, column {error.start + 1}: byte 0x{byte:02x} is no UTF-8",
            expected,
        ) from error
