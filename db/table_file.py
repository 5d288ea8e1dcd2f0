"""Our own table of winners as a file, "rubin-tune.table/1": what a serving engine loads.

Light on purpose: runtime imports this module and nothing else of db, so it imports only the
standard library
(not numpy, SQLAlchemy or search_spaces; problems are read by their attributes).

The document, JSON:

    {"schema": "rubin-tune.table/1", "content_hash": SHA-256 of "tables" as canonical JSON,
     "tables": [{"op": the kernel, "unit": gate_up | down | glue | layer,
                 "problem": {what look-ups are made by: see `problem_keys`},
                 "layer": {"shape", "layout", "routing": the whole problem without token counts},
                 "silicon": {...},
                 "rows": [{"tokens", "capacity", "config", "evidence", "time_us", "interval_us",
                           "default_config", "default_time_us", "source_hash", "toolchain",
                           "policy", "sweep_id", "compile", "parts"}]}]}

Rows ascend by tokens. Readers ignore keys that they do not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CorruptFile

if TYPE_CHECKING:
    from ..search_spaces import Problem
    from .records import Silicon

# History: 1 = the first.
TABLE_SCHEMA = "rubin-tune.table/1"
_EXPECTED = f"a table of winners ({TABLE_SCHEMA}), as rubin-tune export --format json writes it"
# The largest table that makes sense (10,000 rows) takes 20 MB.
_MOST_BYTES = 256 << 20
_ROW_KEYS = ("tokens", "config", "evidence", "time_us")
Document = dict[str, Any]


def problem_keys(problem: Problem, silicon: Silicon) -> dict[str, int | float | str | bool]:
    """Return what a look-up is made by: plain values for everything that changes code or work.

    "intermediate" is the width on one rank, "routing" and "layout" are spelled as users type them.
    """
    shape = problem.shape
    keys: dict[str, int | float | str | bool] = {
        "weights": shape.weights,
        "activations": shape.activations,
        "activation": _spell_activation(shape.activation),
        "biases": shape.biases,
        "weight_on_input": shape.weight_on_input,
        "routed_scaling_factor": shape.routed_scaling_factor,
        "experts": shape.experts,
        "local_experts": problem.local_experts,
        "shared_experts": shape.shared_experts,
        "shared_intermediate": shape.shared_intermediate,
        "top_k": shape.top_k,
        "hidden": shape.hidden,
        "intermediate": problem.local_intermediate,
        "whole_intermediate": shape.intermediate,
        "layout": problem.layout.name,
        "routing": problem.routing.name,
        "arch": silicon.arch,
        "sms": silicon.sms,
        "memory_gib": silicon.memory_bytes >> 30,
    }
    # A graph captured for more tokens than are live is another problem at each count.
    if problem.capacity != problem.tokens:
        keys["capacity"] = problem.capacity
    return keys


def content_hash(tables: object) -> str:
    """Return the hash by which ranks agree that they hold the same table."""
    text = json.dumps(tables, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def make_document(tables: list[dict[str, Any]]) -> Document:
    """Return the document of some tables."""
    return {"schema": TABLE_SCHEMA, "content_hash": content_hash(tables), "tables": tables}


def read_document(path: Path) -> Document:
    """Read and check a table file.

    Raises:
        CorruptFile: missing, no JSON, another schema, changed since it was written, or lacking
            keys.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CorruptFile(path, f"it is over {_MOST_BYTES >> 20} MiB", _EXPECTED)
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CorruptFile(path, error.strerror or str(error), _EXPECTED) from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, "it is not JSON", _EXPECTED) from error
    why = wrong_document(document)
    if why:
        raise CorruptFile(path, why, _EXPECTED)
    found: Document = document
    return found


def wrong_document(document: object) -> str:
    """Say what is wrong with a document, "" where nothing is."""
    if not isinstance(document, Mapping) or document.get("schema") != TABLE_SCHEMA:
        return "it does not say that schema"
    tables = document.get("tables")
    if not isinstance(tables, list):
        return "it has no list of tables"
    for number, table in enumerate(tables):
        why = _wrong_table(table)
        if why:
            return f"table {number}: {why}"
    if document.get("content_hash", "") not in ("", content_hash(tables)):
        return "its content does not match its content_hash: it was changed or is damaged"
    return ""


def _wrong_table(table: object) -> str:
    if not isinstance(table, Mapping):
        return "is no object"
    if not isinstance(table.get("op"), str) or not isinstance(table.get("unit"), str):
        return "has no op or no unit"
    if not isinstance(table.get("problem"), Mapping):
        return "has no problem"
    rows = table.get("rows")
    if not isinstance(rows, list) or not rows:
        return "has no rows"
    counts = []
    for row in rows:
        if not isinstance(row, Mapping) or any(key not in row for key in _ROW_KEYS):
            return f"a row lacks one of {', '.join(_ROW_KEYS)}"
        if not isinstance(row["tokens"], int) or row["tokens"] < 1:
            return f"a row has tokens {row['tokens']!r}"
        if not isinstance(row["config"], Mapping):
            return f"the row of {row['tokens']} tokens has no config"
        counts.append(row["tokens"])
    return "" if counts == sorted(set(counts)) else "its rows do not ascend by tokens"


def _spell_activation(activation: Any) -> str:
    """Return "swiglu", or "swiglu:alpha=1.702,limit=7,up_shift=1" where it has parameters."""
    parameters = {"alpha": 1.0, "limit": None, "up_shift": 0.0}
    changed = [
        f"{name}={getattr(activation, name):g}"
        for name, usual in parameters.items()
        if getattr(activation, name) != usual
    ]
    return ":".join([activation.kind, *([",".join(changed)] if changed else [])])
