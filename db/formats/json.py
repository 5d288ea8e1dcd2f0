"""Our own table, JSON: what `runtime.Table.load` reads (db/table_file.py describes it).

Beside what look-ups read, an exported file holds the rest of each winner in "records", row by row,
so that `load` gives equal winners back:

    {"layers": [{"shape", "layout", "routing"}], "silicons": [...], "toolchains": [...],
     "compiles": [...],
     "rows": [{"layer", "silicon", "toolchain", "compile": numbers of the lists above (compile may be
               null), "capacity", "time_us", "interval_us", "default_config", "default_time_us",
               "source_hash", "policy", "sweep_id", "parts"}]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...errors import CorruptFile, InvalidInput
from .. import codec
from ..records import Winner
from ..table_check import Document
from ..table_file import (
    NO_PIN,
    Needs,
    Pin,
    Place,
    TableRow,
    document_of,
    document_text,
    groups_of,
    layer_needs,
    needs_of,
    problem_keys,
)
from ..table_read import read_document
from ._format import Format, stem, write_together

_EXPECTED = "rows as export writes them"
_Winners = dict[Place, dict[int, Winner]]
# What a row of "records" says by number, and where the numbers point.
_POINTERS = {
    "layer": "layers",
    "silicon": "silicons",
    "toolchain": "toolchains",
    "compile": "compiles",
}


def table_document(winners: Sequence[Winner]) -> Document:
    """Return what look-ups need of winners as a table document.

    Where two winners of one look-up have the same token count (other power limits), the one with
    stronger evidence stays, then the later one.
    """
    return _document(_grouped(winners))


def load(path: Path) -> list[Winner]:
    """Return the winners of a table file.

    Raises:
        CorruptFile: it is no table of ours, or its rows lack what a winner has.
    """
    document = read_document(path)
    records = document.get("records")
    if records is None:
        raise CorruptFile(path, "it has no records, so look-ups only can be made", _EXPECTED)
    try:
        return _winners(document, records)
    except (InvalidInput, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptFile(path, f"its records do not fit ({error})", _EXPECTED) from error


def _grouped(winners: Sequence[Winner]) -> _Winners:
    groups: _Winners = {}
    for winner in winners:
        keys = problem_keys(winner.problem, winner.silicon)
        rows = groups.setdefault((winner.kernel, winner.unit.value, keys), {})
        held = rows.get(winner.problem.tokens)
        if held is None or winner.evidence >= held.evidence:
            rows[winner.problem.tokens] = winner
    return groups


def _document(groups: _Winners) -> Document:
    own = layer_needs(groups, lambda winner: (winner.sweep_id, needs_of(winner.compile)))
    return document_of(
        {
            place: [
                _row(w, needs, pin)
                for w, needs, pin in zip(rows.values(), own[place], _pins(rows), strict=True)
            ]
            for place, rows in groups.items()
        }
    )


def _pins(rows: Mapping[int, Winner]) -> list[Pin]:
    """Return where each row's bucket ends, as far as its own sweep found the next row too."""
    ascending = sorted(rows)
    following = dict(pairwise(ascending))
    return [_pin(winner, rows.get(following.get(tokens, 0))) for tokens, winner in rows.items()]


def _pin(winner: Winner, following: Winner | None) -> Pin:
    edge = winner.edge
    if edge is None or following is None or following.sweep_id != winner.sweep_id:
        return NO_PIN
    return edge.tokens, edge.evidence.word


def _row(winner: Winner, needs: Needs, pin: Pin) -> TableRow:
    return (
        winner.problem.tokens,
        winner.config.as_dict(),
        winner.evidence.word,
        needs,
        rounded(winner.time_us),
        *pin,
    )


def rounded(time_us: float) -> float:
    """Return a time as tables hold it: a nanosecond is finer than any clock here."""
    return int(time_us * 1000 + 0.5) / 1000


def _records(document: Document, groups: _Winners) -> dict[str, Any]:
    """Return the rest of each winner, in the order of the document's rows."""
    kept: dict[str, dict[str, int]] = {name: {} for name in _POINTERS.values()}
    rows = [
        _record(groups[place][row[0]], kept) for place, own in groups_of(document) for row in own
    ]
    lists = {name: [codec.loads(text) for text in found] for name, found in kept.items()}
    return {**lists, "rows": rows}


def _record(winner: Winner, kept: dict[str, dict[str, int]]) -> dict[str, Any]:
    found = codec.winner_to_json(winner)
    problem = found["problem"]
    found["layer"] = {name: problem[name] for name in ("shape", "layout", "routing")}
    for name, place in _POINTERS.items():
        if found[name] is not None:
            text = codec.dumps(found[name])
            found[name] = kept[place].setdefault(text, len(kept[place]))
    told = ("schema", "kernel", "unit", "problem", "config", "evidence")
    row = {name: value for name, value in found.items() if name not in told}
    return {**row, "capacity": problem["capacity"]}


def _winners(document: Document, records: Mapping[str, Any]) -> list[Winner]:
    rows = ((place, row) for place, own in groups_of(document) for row in own)
    return [
        _winner(place, row, record, records)
        for (place, row), record in zip(rows, records["rows"], strict=True)
    ]


def _winner(
    place: Place, row: TableRow, record: Mapping[str, Any], records: Mapping[str, Any]
) -> Winner:
    pointed: dict[str, Any] = {
        name: None if record[name] is None else records[where][record[name]]
        for name, where in _POINTERS.items()
    }
    own = {n: v for n, v in record.items() if n not in _POINTERS and n != "capacity"}
    tokens, config, evidence, *_ = row
    return codec.winner_from_json(
        {
            **own,
            "schema": codec.WINNER_SCHEMA,
            "kernel": place[0],
            "unit": place[1],
            "config": config,
            "evidence": evidence,
            "problem": {**pointed["layer"], "tokens": tokens, "capacity": record["capacity"]},
            "silicon": pointed["silicon"],
            "toolchain": pointed["toolchain"],
            "compile": pointed["compile"],
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
        groups = _grouped(winners)
        document = _document(groups)
        return write_together({path: document_text(document, _records(document, groups))})

    def load(self, path: Path) -> list[Winner]:
        """Return the winners of a table file."""
        return load(path)


PROVIDES: Format = JsonFormat()
