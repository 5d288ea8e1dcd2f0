"""vLLM's tables of its fused-MoE Triton kernel."""

from __future__ import annotations

from pathlib import Path

from ..seeds import EngineTable
from ._engine_table import is_sglang, is_table, read_table
from ._importer import Document, Importer


def _recognises(path: Path, document: Document) -> bool:
    return is_table(document) and not is_sglang(path)


def _read(path: Path, document: Document) -> EngineTable:
    return read_table(path, document, "vllm")


PROVIDES = Importer(
    expected="a vLLM fused-MoE table (E=..,N=..,device_name=...json)",
    recognises=_recognises,
    read=_read,
)
