"""Folders whose file names are the names users type: add a file, and it is known.

Other packages join through the entry-point group `rubin_tune.<folder>`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from .errors import UnknownName

_KINDS = {
    "kernels": "kernel",
    "formats": "format",
    "samplers": "sampler",
    "evaluators": "evaluator",
    "importers": "importer",
}


def names(folder: str) -> list[str]:
    """List what a folder of `rubin_tune` offers ("kernels", "db.formats"), importing none of it."""
    package = import_module(f"rubin_tune.{folder}")
    own = [m.name for m in iter_modules(package.__path__) if not m.name.startswith("_")]
    return sorted({*own, *(e.name for e in entry_points(group=f"rubin_tune.{folder}"))})


def load(folder: str, name: str) -> object:
    """Import one file of a folder and return its `PROVIDES`.

    Raises:
        UnknownName: no file and no entry point of that name.
    """
    known = names(folder)
    kind = _KINDS.get(folder.rpartition(".")[2], folder)
    if name not in known:
        advice = f"to add one, write {folder.replace('.', '/')}/{name}.py"
        raise UnknownName(kind, name, known, advice)
    for entry in entry_points(group=f"rubin_tune.{folder}"):
        if entry.name == name:
            provided: object = entry.load()
            return provided
    own: object = import_module(f"rubin_tune.{folder}.{name}").PROVIDES
    return own
