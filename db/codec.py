"""Records as plain JSON values, one function each way; SQL columns and files both hold these.

Every function `*_to_json` returns what `json.dumps(..., allow_nan=False)` takes; its
`*_from_json` gives an equal record back. Numbers that JSON cannot spell (an error of infinity)
are the strings "inf" and "-inf".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from ..errors import InvalidInput
from ..search_spaces import (
    Activation,
    LaunchConfig,
    Layout,
    MoEShape,
    Problem,
    Routing,
    Unit,
    Value,
)
from .records import (
    Assumption,
    CompileReport,
    Edge,
    Evidence,
    Measurement,
    Prediction,
    Rejected,
    Silicon,
    Spent,
    Toolchain,
    Trial,
    Why,
    Winner,
)

# History: 1 = the first.
TRIAL_SCHEMA = 1
# History: 1 = the first.
WINNER_SCHEMA = 1

Json = dict[str, Any]
_T = TypeVar("_T")


def dumps(value: object) -> str:
    """Return canonical JSON text: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> Json:
    """Return the object that a stored text holds.

    Raises:
        InvalidInput: it holds none.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"stored text {text[:40]!r} is not JSON: must be an object") from error
    return _object("stored text", found)


def number_to_json(value: float | None) -> float | str | None:
    """Return a number as JSON can spell it; NaN becomes "inf": for an error both are the worst."""
    if value is None or math.isfinite(value):
        return value
    return "-inf" if value < 0 else "inf"


def number_from_json(value: float | str | None) -> float | None:
    """Return the number."""
    return None if value is None else float(value)


def problem_to_json(problem: Problem) -> Json:
    """Return a problem as JSON values."""
    return problem.as_dict()


def problem_from_json(found: Mapping[str, Any]) -> Problem:
    """Return the problem."""
    shape = dict(_object("shape", _take(found, "problem", "shape")))
    shape["activation"] = _make(Activation, shape.get("activation", {}))
    shape["also"] = tuple(shape.get("also", ()))
    return _make(
        Problem,
        {
            **found,
            "shape": _make(MoEShape, shape),
            "layout": _make(Layout, _take(found, "problem", "layout")),
            "routing": Routing.from_dict(_object("routing", _take(found, "problem", "routing"))),
        },
    )


def config_to_json(config: LaunchConfig) -> dict[str, Value]:
    """Return a config as JSON values."""
    return config.as_dict()


def config_from_json(found: Mapping[str, Value]) -> LaunchConfig:
    """Return the config."""
    return LaunchConfig.of(_object("config", found))


def silicon_to_json(silicon: Silicon) -> Json:
    """Return silicon as JSON values."""
    return _flat(silicon)


def silicon_from_json(found: Mapping[str, Any]) -> Silicon:
    """Return the silicon."""
    return _make(Silicon, found)


def toolchain_to_json(toolchain: Toolchain) -> Json:
    """Return a toolchain as JSON values."""
    return _flat(toolchain)


def toolchain_from_json(found: Mapping[str, Any]) -> Toolchain:
    """Return the toolchain."""
    return _make(Toolchain, found)


def compile_to_json(report: CompileReport) -> Json:
    """Return a compile report as JSON values."""
    return _flat(report)


def compile_from_json(found: Mapping[str, Any]) -> CompileReport:
    """Return the compile report."""
    return _make(CompileReport, found)


def prediction_to_json(prediction: Prediction) -> Json:
    """Return a prediction as JSON values."""
    return {
        "time_us": prediction.time_us,
        "breakdown": [list(part) for part in prediction.breakdown],
        "assumptions": [_flat(assumption) for assumption in prediction.assumptions],
        "facts": list(prediction.facts),
    }


def prediction_from_json(found: Mapping[str, Any]) -> Prediction:
    """Return the prediction."""
    return _make(
        Prediction,
        {
            **found,
            "breakdown": tuple((name, us) for name, us in found.get("breakdown", ())),
            "assumptions": tuple(_make(Assumption, a) for a in found.get("assumptions", ())),
            "facts": tuple(found.get("facts", ())),
        },
    )


def measurement_to_json(measurement: Measurement) -> Json:
    """Return a measurement as JSON values; clocks that were not read are left out, as in older rows."""
    found = {**_flat(measurement), "samples_us": list(measurement.samples_us)}
    unread = [name for name in ("clock_low_mhz", "clock_high_mhz") if not found[name]]
    return {name: value for name, value in found.items() if name not in unread}


def measurement_from_json(found: Mapping[str, Any]) -> Measurement:
    """Return the measurement."""
    return _make(Measurement, {**found, "samples_us": tuple(found.get("samples_us", ()))})


def spent_to_json(spent: Spent) -> Json:
    """Return the seconds of a trial as JSON values."""
    return _flat(spent)


def spent_from_json(found: Mapping[str, Any]) -> Spent:
    """Return the seconds of a trial."""
    return _make(Spent, found)


def edge_to_json(edge: Edge) -> Json:
    """Return the edge of a winner's bucket as JSON values."""
    return {**_flat(edge), "evidence": edge.evidence.word}


def edge_from_json(found: Mapping[str, Any]) -> Edge:
    """Return the edge of a winner's bucket."""
    values = _object("edge", found)
    return _make(Edge, {**values, "evidence": evidence_from_word(values.get("evidence"))})


def rejected_to_json(rejected: Rejected) -> Json:
    """Return a rejection as JSON values."""
    return {
        "config": config_to_json(rejected.config),
        "why": rejected.why.value,
        "detail": rejected.detail,
    }


def rejected_from_json(found: Mapping[str, Any]) -> Rejected:
    """Return the rejection."""
    config = config_from_json(_take(found, "rejected", "config"))
    return _make(Rejected, {**found, "config": config, "why": _why(found.get("why"))})


def evidence_from_word(word: object) -> Evidence:
    """Return the evidence that a stored word means."""
    for evidence in Evidence:
        if evidence.word == word:
            return evidence
    raise InvalidInput(
        f"evidence is {word!r}: must be one of {', '.join(e.word for e in Evidence)}"
    )


def trial_to_json(trial: Trial) -> Json:
    """Return a trial as JSON values."""
    return {
        "schema": TRIAL_SCHEMA,
        **_shared_to_json(trial),
        "time_us": trial.time_us,
        "interval_us": None if trial.interval_us is None else list(trial.interval_us),
        "prediction": _maybe(prediction_to_json, trial.prediction),
        "measurement": _maybe(measurement_to_json, trial.measurement),
        "rejected": _maybe(rejected_to_json, trial.rejected),
        "error": number_to_json(trial.error),
        "spent": _maybe(spent_to_json, trial.spent),
    }


def trial_from_json(found: Mapping[str, Any]) -> Trial:
    """Return the trial."""
    interval = found.get("interval_us")
    return _make(
        Trial,
        {
            **_shared_from_json(found, "trial", TRIAL_SCHEMA),
            "interval_us": None if interval is None else _pair(interval),
            "prediction": _maybe(prediction_from_json, found.get("prediction")),
            "measurement": _maybe(measurement_from_json, found.get("measurement")),
            "rejected": _maybe(rejected_from_json, found.get("rejected")),
            "error": number_from_json(found.get("error")),
            "spent": _maybe(spent_from_json, found.get("spent")),
        },
    )


def winner_to_json(winner: Winner) -> Json:
    """Return a winner as JSON values."""
    return {
        "schema": WINNER_SCHEMA,
        **_shared_to_json(winner),
        "time_us": winner.time_us,
        "interval_us": list(winner.interval_us),
        "default_config": config_to_json(winner.default_config),
        "default_time_us": winner.default_time_us,
        "parts": [[unit, config_to_json(config)] for unit, config in winner.parts],
        "edge": _maybe(edge_to_json, winner.edge),
    }


def winner_from_json(found: Mapping[str, Any]) -> Winner:
    """Return the winner."""
    return _make(
        Winner,
        {
            **_shared_from_json(found, "winner", WINNER_SCHEMA),
            "interval_us": _pair(_take(found, "winner", "interval_us")),
            "default_config": config_from_json(_take(found, "winner", "default_config")),
            "parts": tuple((unit, config_from_json(c)) for unit, c in found.get("parts", ())),
            "edge": _maybe(edge_from_json, found.get("edge")),
        },
    )


def _shared_to_json(row: Trial | Winner) -> Json:
    return {
        "sweep_id": row.sweep_id,
        "kernel": row.kernel,
        "source_hash": row.source_hash,
        "problem": problem_to_json(row.problem),
        "unit": row.unit.value,
        "config": config_to_json(row.config),
        "silicon": silicon_to_json(row.silicon),
        "toolchain": toolchain_to_json(row.toolchain),
        "policy": row.policy,
        "evidence": row.evidence.word,
        "compile": _maybe(compile_to_json, row.compile),
    }


def _shared_from_json(found: Mapping[str, Any], kind: str, schema: int) -> Json:
    if found.get("schema") != schema:
        raise InvalidInput(
            f"{kind} has schema {found.get('schema')!r}: this version reads {schema}; "
            "upgrade rubin-tune if the file is newer"
        )
    return {
        **{name: value for name, value in found.items() if name != "schema"},
        "problem": problem_from_json(_object("problem", _take(found, kind, "problem"))),
        "unit": _unit(_take(found, kind, "unit")),
        "config": config_from_json(_take(found, kind, "config")),
        "silicon": silicon_from_json(_take(found, kind, "silicon")),
        "toolchain": toolchain_from_json(_take(found, kind, "toolchain")),
        "evidence": evidence_from_word(found.get("evidence")),
        "compile": _maybe(compile_from_json, found.get("compile")),
    }


def _flat(record: Any) -> Json:
    """Return a record's own fields; for records whose fields are plain values."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _make(record: type[_T], found: object) -> _T:
    """Make a record from a mapping of its fields, refusing fields it has not."""
    try:
        return record(**_object(record.__name__, found))
    except TypeError as error:
        raise InvalidInput(
            f"stored {record.__name__} does not fit this version: {error}"
        ) from error


def _maybe(convert: Any, value: Any) -> Any:
    return None if value is None else convert(value)


def _object(what: str, found: object) -> Json:
    if not isinstance(found, dict):
        raise InvalidInput(f"{what} is {found!r:.60}: must be a JSON object")
    return found


def _take(found: Mapping[str, Any], what: str, name: str) -> Any:
    if name not in found:
        raise InvalidInput(f"{what} lacks {name!r}: must have it")
    return found[name]


def _pair(found: Any) -> tuple[float, float]:
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise InvalidInput(f"interval is {found!r:.60}: must be [low, high]")
    return found[0], found[1]


def _unit(found: object) -> Unit:
    if found not in {unit.value for unit in Unit}:
        raise InvalidInput(f"unit is {found!r}: must be one of {', '.join(u.value for u in Unit)}")
    return Unit(found)


def _why(found: object) -> Why:
    if found not in {why.value for why in Why}:
        raise InvalidInput(
            f"rejection is {found!r}: must be one of {', '.join(w.value for w in Why)}"
        )
    return Why(found)
