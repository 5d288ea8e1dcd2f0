"""Our own table, JSON: what `runtime.Table.load` reads (db/table_file.py describes it)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import CorruptFile, InvalidInput
from .. import codec
from ..records import Winner
from ..table_file import Document, make_document, problem_keys, read_document
from ._format import Format, stem, write_together

# What a table says once for all its rows.
_SHARED = ("problem", "silicon", "kernel", "unit", "schema")


def table_document(winners: Sequence[Winner]) -> Document:
    """Return winners as a table document.

    Where two winners of one look-up have the same token count (other power limits), the one with
    stronger evidence stays, then the later one.
    """
    groups: dict[tuple[str, str, str], dict[int, Winner]] = {}
    for winner in winners:
        keys = codec.dumps(problem_keys(winner.problem, winner.silicon))
        rows = groups.setdefault((winner.kernel, winner.unit.value, keys), {})
        held = rows.get(winner.problem.tokens)
        if held is None or winner.evidence >= held.evidence:
            rows[winner.problem.tokens] = winner
    return make_document([_table(groups[key]) for key in sorted(groups)])


def load(path: Path) -> list[Winner]:
    """Return the winners of a table file.

    Raises:
        CorruptFile: it is no table of ours, or its rows lack what a winner has.
    """
    winners = []
    for table in read_document(path)["tables"]:
        for row in table["rows"]:
            try:
                winners.append(_winner(table, row))
            except (InvalidInput, KeyError) as error:
                why = f"the row of {row['tokens']} tokens: {error}"
                raise CorruptFile(path, why, "rows as export writes them") from error
    return winners


def _table(rows: dict[int, Winner]) -> dict[str, Any]:
    ordered = [rows[tokens] for tokens in sorted(rows)]
    first = ordered[0]
    layer = codec.problem_to_json(first.problem)
    table: dict[str, Any] = {
        "op": first.kernel,
        "unit": first.unit.value,
        "problem": problem_keys(first.problem, first.silicon),
        "layer": {name: layer[name] for name in ("shape", "layout", "routing")},
        "silicon": codec.silicon_to_json(first.silicon),
        "rows": [_row(winner) for winner in ordered],
    }
    # As a reader will have it: lists for tuples.
    plain: dict[str, Any] = json.loads(codec.dumps(table))
    return plain


def _row(winner: Winner) -> dict[str, Any]:
    found = codec.winner_to_json(winner)
    row = {name: value for name, value in found.items() if name not in _SHARED}
    return {"tokens": winner.problem.tokens, "capacity": winner.problem.capacity, **row}


def _winner(table: dict[str, Any], row: dict[str, Any]) -> Winner:
    counts = {name: row[name] for name in ("tokens", "capacity")}
    own = {name: value for name, value in row.items() if name not in counts}
    return codec.winner_from_json(
        {
            **own,
            "schema": codec.WINNER_SCHEMA,
            "kernel": table["op"],
            "unit": table["unit"],
            "problem": {**table["layer"], **counts},
            "silicon": table["silicon"],
        }
    )


class JsonFormat:
    """Our own table."""

    def export(
        self,
        winners: Sequence[Winner],
        out_dir: Path,
        *,
        allow_predicted: bool = False,
        device_name: str | None = None,
    ) -> list[Path]:
        """Write one table; evidence stands on each row, so predicted ones are always allowed."""
        path = out_dir / f"{stem(winners)}.json"
        text = json.dumps(table_document(winners), indent=1, sort_keys=True, allow_nan=False)
        return write_together({path: text + "\n"})

    def load(self, path: Path) -> list[Winner]:
        """Return the winners of a table file."""
        return load(path)


PROVIDES: Format = JsonFormat()
