"""SGLang's tables of its fused-MoE Triton kernel: folders by triton's version, `_down` files."""

from __future__ import annotations

from pathlib import Path

from ..seeds import EngineTable
from ._engine_table import is_sglang, is_table, read_table
from ._importer import Document, Importer


def _recognises(path: Path, document: Document) -> bool:
    return is_table(document) and is_sglang(path)


def _read(path: Path, document: Document) -> EngineTable:
    return read_table(path, document, "sglang")


PROVIDES = Importer(
    expected="a SGLang fused-MoE table (triton_X_Y_Z/E=..,N=..,device_name=...json)",
    recognises=_recognises,
    read=_read,
)
