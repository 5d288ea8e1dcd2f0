"""Reading a table of winners (db/table_file.py): checked whole before anything is used.

A file as we write it is read the short way: its body is hashed as it stands, and what follows the
body is not parsed. Every other layout of the same document is read too, the long way.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, NoReturn

from ..errors import CorruptFile, InvalidInput
from .table_check import TABLE_SCHEMA, Document, is_sorted, plain_text, rows_ascend, wrong_document
from .table_file import (
    BODY,
    body_hash,
    content_hash,
    document_of,
    groups_of,
    records_hash,
)

_EXPECTED = f"a table of winners ({TABLE_SCHEMA}), as rubin-tune export --format json writes it"
# 10,000 rows with all their records take 7 MB.
_MOST_BYTES = 256 << 20
_START = f'\n"{BODY[0]}": '.encode()
_CHECK = b',\n"records_bytes": '
_RECORDS = b',\n"records": '
_END = b"\n}\n"


def read_table(path: Path) -> Document:
    """Read what look-ups need of a table file, checked and in order, with its hash.

    Raises:
        CorruptFile: missing, no JSON, another schema, changed since it was written, or lacking
            something.
    """
    content = _content(path)
    document = _short(content)
    if document is not None:
        why = wrong_document(document)
        if why:
            raise CorruptFile(path, why, _EXPECTED)
        if rows_ascend(document):
            return document
    return _checked(path, _parsed(path, content))


def read_document(path: Path) -> Document:
    """Read and check a whole table file, records included, in the order in which it is written.

    Raises:
        CorruptFile: as `read_table`; also where records do not match their hash.
    """
    document: Document = _parsed(path, _content(path))
    _checked(path, document)
    if "records" in document:
        text = plain_text(document["records"])
        if records_hash(text) != document.get("records_sha256"):
            raise CorruptFile(path, "its records do not match their hash: damaged", _EXPECTED)
    return document


def checked(document: object) -> Document:
    """Return a document in order, with its hash, once it is found whole.

    Raises:
        InvalidInput: it is no table, or says another hash than it has.
    """
    ordered = in_order(document)
    own = content_hash(ordered)
    if ordered.get("content_hash", "") not in ("", own):
        raise InvalidInput("its content does not match its content_hash: changed or damaged")
    return {**ordered, "content_hash": own}


def in_order(document: object) -> Document:
    """Return a document in the order that has a hash; what hash it says is not looked at.

    Raises:
        InvalidInput: it is no table.
    """
    why = wrong_document(document)
    if why:
        raise InvalidInput(why)
    found: Document = document  # type: ignore[assignment]
    if is_sorted(found):
        return found
    ordered = document_of(dict(groups_of(found)))
    return {**ordered, "content_hash": found.get("content_hash", "")}


def _checked(path: Path, document: object) -> Document:
    try:
        return checked(document)
    except InvalidInput as error:
        raise CorruptFile(path, str(error), _EXPECTED) from error


def _content(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise CorruptFile(path, "it is no regular file", _EXPECTED)
        if status.st_size > _MOST_BYTES:
            raise CorruptFile(path, f"it is over {_MOST_BYTES >> 20} MiB", _EXPECTED)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CorruptFile(path, why, _EXPECTED) from error


def _short(content: bytes) -> Document | None:
    """Return the document without its records, None where it is not laid out as we write it.

    A line cannot end inside a JSON text, so what begins a line and parses is at the outermost level.
    """
    start, check = content.find(_START), content.find(_CHECK)
    end = check if check >= 0 else len(content) - len(_END)
    body = content[start + 1 : end]
    try:
        head: dict[str, Any] = json.loads(content[:start].rstrip(b",") + b"}")
        tail = _tail(content, check)
        if not tail or head.get("content_hash") != body_hash(body):
            return None
        return {**json.loads(b"{" + body + b"}", parse_constant=_refuse), **head}
    except (ValueError, RecursionError, TypeError, AttributeError):
        return None


def _tail(content: bytes, check: int) -> bool:
    """Whether what follows the body is there to its last byte."""
    if check < 0:
        return content.endswith(_END)
    records = content.find(_RECORDS, check)
    said = json.loads(b"{" + content[check + 2 : records] + b"}")["records_bytes"]
    whole = records + len(_RECORDS) + int(said) + len(_END)
    return records >= 0 and content.endswith(_END) and len(content) == whole


def _parsed(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, "it is not JSON", _EXPECTED) from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
