"""What vLLM's and SGLang's tables of their fused-MoE kernel share: the name, and a row a count.

Source: vLLM 0.33 `get_config_file_name`, SGLang 0.5.23 fused_moe_triton_config.py (facts, engines
1.1 and 1.4). `E` is the experts of one rank, `N` the width of one rank after SiLU-and-mul. A name
of dtype fp8_w8a8 without a block_shape is of per-tensor scales, another kernel than ours.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import InvalidInput
from ...search_spaces.tokens import MOST_TOKENS
from ..seeds import EngineRow, EngineTable
from ._importer import Document, mapped

# Triton's version stands beside the token counts in newer tables of vLLM.
VERSION_KEY = "triton_version"
_NAME = re.compile(
    r"E=(?P<experts>\d{1,6}),N=(?P<width>\d{1,7}),device_name=(?P<device>[^,]*?)"
    r"(?:,dtype=(?P<dtype>\w+))?(?:,block_shape=\[(?P<rows>\d+),\s*(?P<columns>\d+)\])?"
    r"(?P<channel>,per_channel_quant=True)?(?P<down>_down)?\.json"
)
# (dtype, block_shape) of the name -> our weight format.
_WEIGHTS = {
    ("", ""): "bf16",
    ("fp8_w8a8", "128,128"): "fp8_block128",
}
_FOLDER = re.compile(r"triton_(\d+(?:_\d+)*)")


def is_table(document: Document) -> bool:
    """Say whether a document has a row a token count."""
    keys = [key for key in document if key != VERSION_KEY]
    return bool(keys) and all(re.fullmatch(r"\d{1,9}", key) for key in keys)


def is_sglang(path: Path) -> bool:
    """Say whether a path is one that SGLang reads: its folders are named after triton."""
    name = path.name
    spaced = re.search(r"block_shape=\[\d+, \d+\]", name) is not None
    own = ",per_channel_quant=True" in name or name.endswith("_down.json")
    return spaced or own or _FOLDER.fullmatch(path.parent.name) is not None


def read_table(path: Path, document: Document, engine: str) -> EngineTable:
    """Return a table: what its name says, and its rows in the file's order.

    Raises:
        InvalidInput: its name or a row cannot be meant.
    """
    folder = _FOLDER.fullmatch(path.parent.name) if engine == "sglang" else None
    version = folder[1].replace("_", ".") if folder else str(document.get(VERSION_KEY, ""))
    rows = tuple(_row(key, values) for key, values in document.items() if key != VERSION_KEY)
    name = f"{path.parent.name}/{path.name}" if folder else path.name
    found = _NAME.fullmatch(path.name)
    if found is None:
        return EngineTable(engine=engine, file=name, triton=version, rows=rows)
    return EngineTable(
        engine=engine,
        file=name,
        triton=version,
        rows=rows,
        experts=int(found["experts"]),
        intermediate=int(found["width"]),
        device=found["device"],
        weights=_weights(found),
        unit="down" if found["down"] else "",
    )


def _weights(name: re.Match[str]) -> str:
    dtype = name["dtype"] or ""
    block = f"{name['rows']},{name['columns']}" if name["rows"] else ""
    weights = _WEIGHTS.get((dtype, block))
    if weights is None or name["channel"]:
        spelled = f"dtype {dtype or 'none'}" + (f" and block_shape [{block}]" if block else "")
        more = " and per-channel scales" if name["channel"] else ""
        raise InvalidInput(
            f"its name says {spelled}{more}: tables of bf16 (no dtype) and of "
            "fp8_w8a8 with block_shape [128,128] can be imported"
        )
    return weights


def _row(key: str, values: object) -> EngineRow:
    tokens = int(key)
    if not 1 <= tokens <= MOST_TOKENS:
        raise InvalidInput(f"token count {key!r}: must be from 1 to {MOST_TOKENS}")
    row = mapped(f"the row of {key} tokens", values)
    for name, value in row.items():
        if not isinstance(value, int | str):
            raise InvalidInput(f"the row of {key} tokens: {name} is {value!r:.40}")
    return EngineRow(tokens=tokens, values=tuple(row.items()))
