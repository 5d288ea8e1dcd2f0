"""What other tuners left behind: a file here is a format, its name what users read in messages.

Each file has `PROVIDES = Importer(...)`; other packages join through the entry-point group
`rubin_tune.db.importers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from ... import registry
from ...errors import CorruptFile, InvalidInput
from ..recorded_spaces import RecordedSpace
from ..seeds import EngineTable
from ._importer import Document, Importer, read_document

__all__ = ["Importer", "importer_names", "parse_results", "read_results"]


def importer_names() -> list[str]:
    """List the formats that can be imported."""
    return registry.names("db.importers")


def read_results(path: Path) -> EngineTable | RecordedSpace:
    """Return what a file of another tuner holds; its content tells the format.

    Raises:
        CorruptFile: it cannot be read or meant; one sentence says why.
    """
    try:
        return parse_results(path, read_document(path))
    except InvalidInput as fault:
        expected = " or ".join(importer.expected for importer in _importers())
        raise CorruptFile(path, str(fault), expected) from fault


def parse_results(path: Path, document: Document) -> EngineTable | RecordedSpace:
    """Return what a document holds; the path is read as a name only.

    Raises:
        InvalidInput: what is wrong, with the place where there is one.
    """
    fitting = next((i for i in _importers() if i.recognises(path, document)), None)
    if fitting is None:
        raise InvalidInput(f"in none of the known formats ({', '.join(importer_names())})")
    return fitting.read(path, document)


def _importers() -> list[Importer]:
    return [cast(Importer, registry.load("db.importers", name)) for name in importer_names()]
