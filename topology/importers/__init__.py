"""What other tools say of a machine: a file here is a format, its name what users type.

Each file has `PROVIDES = Importer(...)`; other packages join through the entry-point group
`rubin_tune.topology.importers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from ... import registry
from ...errors import CorruptFile, InvalidInput
from ..gpu import Gpu
from ..graph import Topology
from ._importer import Importer, read_text

__all__ = ["Importer", "import_topology", "importer_names", "parse_topology"]


def importer_names() -> list[str]:
    """List the formats that can be imported."""
    return registry.names("topology.importers")


def import_topology(path: Path, *, form: str | None = None, gpu: Gpu | None = None) -> Topology:
    """Return the machine that a file describes.

    Args:
        path: Output of `nvidia-smi topo -m`, or a topology that NCCL dumped.
        form: One of `importer_names()`; by default the content tells.
        gpu: What its GPUs are, where the file does not say.

    Raises:
        CorruptFile: the file cannot be read or meant; one sentence says why.
        UnknownName: no such format.
    """
    known = [_importer(form)] if form else [_importer(name) for name in importer_names()]
    try:
        return parse_topology(read_text(path), title=path.name, form=form, gpu=gpu)
    except InvalidInput as fault:
        expected = " or ".join(importer.expected for importer in known)
        raise CorruptFile(path, str(fault), expected) from fault


def parse_topology(
    text: str, *, title: str, form: str | None = None, gpu: Gpu | None = None
) -> Topology:
    """Return the machine that a text describes.

    Args:
        text: What the tool printed.
        title: What to call it.
        form: One of `importer_names()`; by default the content tells.
        gpu: What its GPUs are, where the text does not say.

    Raises:
        InvalidInput: what is wrong, with the line where there is one.
        UnknownName: no such format.
    """
    names = [form] if form else importer_names()
    importers = [_importer(name) for name in names]
    fitting = next((i for i in importers if form or i.recognises(text)), None)
    if fitting is None:
        raise InvalidInput(f"in none of the known formats ({', '.join(names)})")
    return Topology.of_machine(fitting.read(text, title), gpu)


def _importer(name: str) -> Importer:
    return cast(Importer, registry.load("topology.importers", name))
