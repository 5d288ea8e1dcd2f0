"""Reading a GPU or a rack from TOML; whatever is wrong with a file is said in one sentence."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CorruptFile, InvalidInput
from .exchange import Copies, ExchangeFit, Stage
from .facts import Confidence, Fact, Sheet
from .gpu import Gpu
from .rack import Collective, Fit, Rack, Traffic
from .schema import SCHEMAS

_Word = TypeVar("_Word", bound=StrEnum)

_EXPECTED = {
    "gpu": "a GPU's TOML like topology/gpus/h200.toml",
    "rack": "a rack's TOML like topology/racks/vr_nvl72.toml",
}
_FACT_KEYS = {"value", "unit", "source", "confidence"}
_FIT_NUMBERS = ("base_us", "per_rank_us", "bandwidth_gb_per_s")
_FIT_KEYS = {"multicast", "traffic", "source", "confidence", *_FIT_NUMBERS}
_EXCHANGE_NUMBERS = (*_FIT_NUMBERS, "per_expert_us", "block_token_us", "block_gb_per_s")
_EXCHANGE_KEYS = {"copies", "blocks", "tokens", "source", "confidence", *_EXCHANGE_NUMBERS}


class _Fault(Exception):
    """What is wrong with a file; it becomes a CorruptFile where the path is known."""


def read_gpu(path: Path) -> Gpu:
    """Return the GPU that a TOML file describes; its name is the file's.

    Raises:
        CorruptFile: the file is missing, no TOML, or some figure in it cannot be meant.
    """
    try:
        table = _parsed(path)
        _only(table, {"title", "reference", "facts"}, "the file")
        reference = table.get("reference", False)
        if not isinstance(reference, bool):
            raise _Fault(f"reference is {reference!r}: must be true or false")
        return Gpu(
            name=path.stem,
            title=_text(table, "title", "the file"),
            sheet=_sheet(path.stem, "gpu", table),
            reference=reference,
        )
    except (_Fault, InvalidInput) as fault:
        raise CorruptFile(path, str(fault), _EXPECTED["gpu"]) from fault


def read_rack(path: Path) -> Rack:
    """Return the rack that a TOML file describes; its name is the file's.

    Raises:
        CorruptFile: the file is missing, no TOML, or some figure in it cannot be meant.
    """
    try:
        table = _parsed(path)
        _only(table, {"title", "gpu", "facts", "collectives", "exchanges"}, "the file")
        return Rack(
            name=path.stem,
            title=_text(table, "title", "the file"),
            gpu=_text(table, "gpu", "the file"),
            sheet=_sheet(path.stem, "rack", table),
            fits=_fits(table),
            exchanges=_exchanges(table),
        )
    except (_Fault, InvalidInput) as fault:
        raise CorruptFile(path, str(fault), _EXPECTED["rack"]) from fault


def read_described(path: Path) -> Gpu | Rack:
    """Return the GPU or the rack that a TOML file describes: a rack says of which `gpu` it is.

    Raises:
        CorruptFile: the file is missing, no TOML, or some figure in it cannot be meant.
    """
    try:
        table = _parsed(path)
    except _Fault as fault:
        raise CorruptFile(path, str(fault), " or ".join(_EXPECTED.values())) from fault
    return read_rack(path) if "gpu" in table else read_gpu(path)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _Fault((error.strerror or type(error).__name__).lower()) from error
    except UnicodeDecodeError as error:
        raise _Fault(f"not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise _Fault(f"not TOML: {str(error).splitlines()[0]}") from error


def _sheet(owner: str, kind: str, table: Mapping[str, Any]) -> Sheet:
    schema = SCHEMAS[kind]
    facts = _tables(table, "facts")
    _only(facts, set(schema), "[facts]")
    missing = [name for name, expect in schema.items() if expect.required and name not in facts]
    if missing:
        raise _Fault(f"[facts] lacks {', '.join(missing)}")
    return Sheet(
        owner=owner,
        kind=kind,
        facts=tuple((name, _fact(kind, name, cells)) for name, cells in facts.items()),
    )


def _fact(kind: str, name: str, cells: Mapping[str, Any]) -> Fact:
    where = f"[facts.{name}]"
    _only(cells, _FACT_KEYS, where)
    value, unit = cells.get("value"), _text(cells, "unit", where)
    if fault := SCHEMAS[kind][name].fault(value, unit):
        raise _Fault(f"{where} {fault}")
    return Fact(
        value=value,
        unit=unit,
        source=_text(cells, "source", where),
        confidence=_confidence(cells, where, known=value is not None),
    )


def _confidence(cells: Mapping[str, Any], where: str, *, known: bool) -> Confidence:
    if known:
        confidence = _word(Confidence, cells, "confidence", where)
        if confidence is not Confidence.UNKNOWN:
            return confidence
        raise _Fault(f"{where} has a value of unknown confidence: leave the value out")
    if cells.get("confidence", "unknown") != "unknown":
        raise _Fault(f"{where} has no value: leave confidence out too")
    return Confidence.UNKNOWN


def _fits(table: Mapping[str, Any]) -> tuple[Fit, ...]:
    collectives = _tables(table, "collectives") if "collectives" in table else {}
    _only(collectives, set(Collective), "[collectives]")
    return tuple(
        _fit(Collective(name), algorithm, cells)
        for name in collectives
        for algorithm, cells in _tables(collectives, name).items()
    )


def _fit(collective: Collective, algorithm: str, cells: Mapping[str, Any]) -> Fit:
    where = f"[collectives.{collective}.{algorithm}]"
    _only(cells, _FIT_KEYS, where)
    multicast = cells.get("multicast", False)
    if not isinstance(multicast, bool):
        raise _Fault(f"{where} multicast is {multicast!r}: must be true or false")
    base_us, per_rank_us, bandwidth = (_positive(cells, key, where) for key in _FIT_NUMBERS)
    if not bandwidth:
        raise _Fault(f"{where} bandwidth_gb_per_s is 0: must be more")
    return Fit(
        collective=collective,
        algorithm=algorithm,
        multicast=multicast,
        traffic=_word(Traffic, cells, "traffic", where),
        base_us=base_us,
        per_rank_us=per_rank_us,
        bytes_per_s=bandwidth * 1e9,
        source=_text(cells, "source", where),
        confidence=_confidence(cells, where, known=True),
    )


def _exchanges(table: Mapping[str, Any]) -> tuple[ExchangeFit, ...]:
    exchanges = _tables(table, "exchanges") if "exchanges" in table else {}
    _only(exchanges, set(Stage), "[exchanges]")
    return tuple(
        _exchange(Stage(name), algorithm, cells)
        for name in exchanges
        for algorithm, cells in _tables(exchanges, name).items()
    )


def _exchange(stage: Stage, algorithm: str, cells: Mapping[str, Any]) -> ExchangeFit:
    where = f"[exchanges.{stage}.{algorithm}]"
    _only(cells, _EXCHANGE_KEYS, where)
    numbers = {key: _positive(cells, key, where, default=0.0) for key in _EXCHANGE_NUMBERS}
    if not numbers["bandwidth_gb_per_s"]:
        raise _Fault(f"{where} bandwidth_gb_per_s is 0: must be more")
    return ExchangeFit(
        stage=stage,
        algorithm=algorithm,
        copies=_word(Copies, cells, "copies", where),
        base_us=numbers["base_us"],
        per_rank_us=numbers["per_rank_us"],
        per_expert_us=numbers["per_expert_us"],
        bytes_per_s=numbers["bandwidth_gb_per_s"] * 1e9,
        block_token_us=numbers["block_token_us"],
        block_bytes_per_s=numbers["block_gb_per_s"] * 1e9,
        blocks=int(_positive(cells, "blocks", where, default=0.0)),
        tokens=_range(cells, "tokens", where),
        source=_text(cells, "source", where),
        confidence=_confidence(cells, where, known=True),
    )


def _range(cells: Mapping[str, Any], key: str, where: str) -> tuple[int, int]:
    pair = cells.get(key)
    match pair:
        case [int(fewest), int(most)] if 1 <= fewest <= most:
            return fewest, most
    raise _Fault(f"{where} {key} is {pair!r}: must be [fewest, most]")


def _positive(
    cells: Mapping[str, Any], key: str, where: str, *, default: float | None = None
) -> float:
    value = cells.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Fault(f"{where} {key} is {value!r}: must be a number")
    if not 0 <= value < math.inf:
        raise _Fault(f"{where} {key} is {value!r}: must be at least 0")
    return float(value)


def _tables(table: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    found = table.get(key)
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise _Fault(f"[{key}] must be a table of tables")
    return found


def _text(cells: Mapping[str, Any], key: str, where: str) -> str:
    text = cells.get(key)
    if not isinstance(text, str) or not text.strip():
        raise _Fault(f"{where} has no {key}: must be a text")
    return text


def _word(words: type[_Word], cells: Mapping[str, Any], key: str, where: str) -> _Word:
    text = _text(cells, key, where)
    if text not in words.__members__.values():
        raise _Fault(f"{where} {key} is {text!r}: must be one of {', '.join(words)}")
    return words(text)


def _only(
    table: Mapping[str, Any], known: set[str] | set[Collective] | set[Stage], where: str
) -> None:
    if unknown := sorted(set(table) - known):
        raise _Fault(f"{where} has unknown {', '.join(map(repr, unknown))}")
