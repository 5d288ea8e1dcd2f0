"""Our own table of winners as a file, "rubin-tune.table/3": what a serving engine loads.

Light on purpose: runtime imports this module and its neighbours (frozen, table_check, table_read) and
nothing else of db, so they import only the standard library (not numpy, SQLAlchemy or
search_spaces; problems are read by their attributes).

The document, JSON, by columns so that 10,000 rows load in a few milliseconds:

    {"schema": "rubin-tune.table/3",
     "content_hash": what ranks compare (`content_hash`),
     "configs": [{"count": N, "values": {parameter: [N values], ...}}, ...,
                 {"count": N, "parts": {unit: [N numbers of configs above], ...}}, ...],
     "needs": {"shared_bytes": [...], "threads": [...], "registers": [...], "tmem_columns": [...]},
     "problems": [{what look-ups are made by: see `problem_keys`}, ...],
     "groups": [{"op": the kernel, "unit": gate_up | down | glue | layer,
                 "problem": its number, "rows": how many of the rows are its own}, ...],
     "rows": {"tokens": [...], "config": [numbers counted through all "configs"],
              "evidence": a letter a row (m: measured, r: recorded, p: predicted),
              "needs": [numbers], "time_us": [...],
              "last": the last token count of a row's bucket, where the times of its config and of
                      the next row's cross (0 = the geometric mean of both token counts),
              "edge": a letter a row, the evidence of that (m, r, p; a: assumed)},
     "records_bytes": length of "records", "records_sha256": its hash,
     "records": {what a winner has beside: see formats/json.py; look-ups do not read it}}

A config in parts (a layer's) has all parameters of its parts, the unit's name and a dot before.
Needs are of one block (registers: of one thread); zeros are not known. Each name begins a line and
"records" is the last, so that a reader that wants look-ups only stops there. Any order of rows,
groups, problems and configs is read, and means the same; `make_document` writes the one order that
has a hash. Readers ignore names they do not know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from .frozen import FrozenDict
from .table_check import (
    ASSUMED,
    COLUMNS,
    EDGES,
    EVIDENCE,
    NEEDS,
    TABLE_SCHEMA,
    Document,
    plain_text,
    ranges,
)
from .table_configs import configs_of, number_configs

if TYPE_CHECKING:
    from ..search_spaces import Problem
    from .records import CompileReport, Silicon

Needs = tuple[int, int, int, int]
T = TypeVar("T")
NO_NEEDS: Needs = (0, 0, 0, 0)
Key = int | float | str | bool
# Last token count of a row's bucket (0 = assumed), and the evidence of that.
Pin = tuple[int, str]
NO_PIN: Pin = (0, ASSUMED)
# Tokens, config, evidence, needs, time in microseconds, pin: as COLUMNS.
TableRow = tuple[int, Mapping[str, Any], str, Needs, float, int, str]
Place = tuple[str, str, FrozenDict[Key]]
Groups = Mapping[Place, Sequence[TableRow]]
# Whose needs are a layer's.
LAYER_GEMMS = ("gate_up", "down")
# What look-ups read and the hash is of, in the order in which it is written.
BODY = ("configs", "needs", "problems", "groups", "rows")
_tokens = itemgetter(0)
_LETTERS = {word: letter for letter, word in EDGES.items()}


def problem_keys(problem: Problem, silicon: Silicon) -> FrozenDict[Key]:
    """Return what a look-up is made by: plain values for everything that changes code or work.

    "intermediate" is the width on one rank, "routing" and "layout" are spelled as users type them.
    """
    shape = problem.shape
    keys: dict[str, Key] = {
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
    return FrozenDict(keys)


def needs_of(report: CompileReport | None) -> Needs:
    """Return what a variant asks of the GPU, zeros where it was not compiled by us."""
    if report is None:
        return NO_NEEDS
    return report.shared_bytes, report.threads, report.registers, report.tmem_columns


def make_document(tables: Iterable[Mapping[str, Any]]) -> Document:
    """Return the document of some tables.

    Args:
        tables: Each {"op", "unit", "problem", "rows": [{"tokens", "config", "evidence",
            "time_us", and "needs" and "pin" where they are known}]}; no two of one op, unit and
            problem.
    """
    return document_of(
        {
            (table["op"], table["unit"], FrozenDict(table["problem"])): [
                (
                    row["tokens"],
                    row["config"],
                    row["evidence"],
                    tuple(row.get("needs", NO_NEEDS)),
                    row["time_us"],
                    *row.get("pin", NO_PIN),
                )
                for row in table["rows"]
            ]
            for table in tables
        }
    )


def document_of(groups: Groups) -> Document:
    """Return the document of rows by (op, unit, problem), in the one order that has a hash."""
    texts = {problem: plain_text(problem) for problem in {place[2] for place in groups}}
    problems = {text: problem for problem, text in texts.items()}
    numbers = _numbers(sorted(problems))
    places = sorted(groups, key=lambda place: (place[0], place[1], texts[place[2]]))
    rows = [row for place in places for row in sorted(groups[place], key=_tokens)]
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    tokens, configs, evidence, needs, times, lasts, edges = columns
    kinds, config_numbers = number_configs(configs)
    known = _numbers(sorted(set(needs)))
    return {
        "schema": TABLE_SCHEMA,
        "configs": kinds,
        "needs": {name: [one[i] for one in known] for i, name in enumerate(NEEDS)},
        "problems": [dict(problems[text]) for text in numbers],
        "groups": [
            {
                "op": op,
                "unit": unit,
                "problem": numbers[texts[problem]],
                "rows": len(groups[place]),
            }
            for place in places
            for op, unit, problem in [place]
        ],
        "rows": {
            "tokens": list(tokens),
            "config": config_numbers,
            "evidence": "".join(map(_LETTERS.__getitem__, evidence)),
            "needs": list(map(known.__getitem__, needs)),
            "time_us": list(times),
            "last": list(lasts),
            "edge": "".join(map(_LETTERS.__getitem__, edges)),
        },
    }


def groups_of(document: Document) -> list[tuple[Place, list[TableRow]]]:
    """Return each group's rows, as `document_of` takes them, in the order in which they stand."""
    columns, configs = document["rows"], configs_of(document["configs"])
    needs = list(zip(*(document["needs"][name] for name in NEEDS), strict=True))
    rows: list[TableRow] = [
        (tokens, configs[config], EVIDENCE[letter], needs[need], time_us, last, EDGES[edge])
        for tokens, config, letter, need, time_us, last, edge in zip(
            *(columns[n] for n in COLUMNS), strict=True
        )
    ]
    problems = [FrozenDict(problem) for problem in document["problems"]]
    return [
        ((group["op"], group["unit"], problems[group["problem"]]), rows[start:end])
        for group, (start, end) in zip(document["groups"], ranges(document["groups"]), strict=True)
    ]


def layer_needs(
    groups: Mapping[Place, Mapping[int, T]], asked: Callable[[T], tuple[object, Needs]]
) -> dict[Place, list[Needs]]:
    """Return the needs of each group's rows; a layer without needs of its own has its GEMMs'.

    Args:
        groups: Rows of any kind by place and tokens.
        asked: Returns a row's sweep and what it needs itself: a layer's GEMMs are those that its
            own sweep chose.
    """
    told = {place: [asked(row) for row in rows.values()] for place, rows in groups.items()}
    found = {place: [needs for _, needs in own] for place, own in told.items()}
    for place in groups:
        op, unit, problem = place
        gemms = [(op, gemm, problem) for gemm in LAYER_GEMMS]
        if unit != "layer" or not all(gemm in groups for gemm in gemms):
            continue
        rows = [dict(zip(groups[gemm], told[gemm], strict=True)) for gemm in gemms]
        for number, tokens in enumerate(groups[place]):
            sweep, own = told[place][number]
            if own == NO_NEEDS:
                found[place][number] = needs_of_layer(sweep, [one.get(tokens) for one in rows])
    return found


def needs_of_layer(sweep: object, gemms: Sequence[tuple[object, Needs] | None]) -> Needs:
    """Return what a layer needs: what both of its GEMMs do, nothing where one is not known.

    Args:
        sweep: The layer's.
        gemms: The sweep of each GEMM's row at the same token count and what it needs: another
            sweep's row is not what the layer launches.
    """
    parts = [one[1] for one in gemms if one is not None and one[0] == sweep]
    if len(parts) < len(LAYER_GEMMS) or NO_NEEDS in parts:
        return NO_NEEDS
    shared, threads, registers, columns = map(max, *parts)
    return shared, threads, registers, columns


def content_hash(document: Document) -> str:
    """Return the hash by which ranks agree that they hold the same table (SHA-256, hex).

    It is of what look-ups read, and the same on every machine; the document must be in order.
    """
    return body_hash(_body(document).encode())


def body_hash(body: bytes) -> str:
    """Return the hash of a body as it stands in a file that we wrote."""
    return hashlib.sha256(TABLE_SCHEMA.encode() + b"\n" + body).hexdigest()


def document_text(document: Document, records: Mapping[str, Any] | None = None) -> str:
    """Return a document as the text of its file."""
    body = _body(document)
    head = {"schema": TABLE_SCHEMA, "content_hash": body_hash(body.encode())}
    lines = [*_lines(head), body]
    if records is not None:
        text = plain_text(records)
        check = {"records_bytes": len(text), "records_sha256": records_hash(text)}
        lines += [*_lines(check), f'"records": {text}']
    return "{\n" + ",\n".join(lines) + "\n}\n"


def records_hash(text: str) -> str:
    """Return the hash of the canonical text of a file's records."""
    return hashlib.sha256(text.encode()).hexdigest()


def _body(document: Document) -> str:
    groups = [{n: g[n] for n in ("op", "unit", "problem", "rows")} for g in document["groups"]]
    own = {**{name: document[name] for name in BODY}, "groups": groups}
    own["rows"] = {name: document["rows"][name] for name in COLUMNS}
    return ",\n".join(_lines(own))


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [
        f'"{name}": {json.dumps(value, separators=(",", ":"), allow_nan=False)}'
        for name, value in values.items()
    ]


def _numbers(things: Iterable[Any]) -> dict[Any, int]:
    return {thing: number for number, thing in enumerate(things)}


def _spell_activation(activation: Any) -> str:
    """Return "swiglu", or "swiglu:alpha=1.702,limit=7,up_shift=1" where it has parameters."""
    parameters = {"alpha": 1.0, "limit": None, "up_shift": 0.0}
    changed = [
        f"{name}={getattr(activation, name):g}"
        for name, usual in parameters.items()
        if getattr(activation, name) != usual
    ]
    return ":".join([activation.kind, *([",".join(changed)] if changed else [])])
