"""Rows and records: what stands in a column, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import Row

from ..errors import InvalidInput
from ..search_spaces import LaunchConfig, Problem, Unit
from . import codec
from .codec import dumps, loads
from .records import (
    CompileReport,
    Edge,
    Evidence,
    Rejected,
    Silicon,
    Toolchain,
    Trial,
    Why,
    Winner,
)
from .seeds import Seed

_SEED_COLUMNS = (
    *("kernel", "source", "file", "triton", "device", "experts", "intermediate"),
    *("weights", "tokens", "unit", "time_us"),
)


def trial_values(trial: Trial) -> dict[str, Any]:
    """Return a trial's own columns (those that point at other tables are left out).

    Raises:
        InvalidInput: it has both a time and a rejection, or neither, or two configs.
    """
    if (trial.time_us is None) == (trial.rejected is None):
        both = "neither a time nor a rejection" if trial.rejected is None else "both"
        raise InvalidInput(
            f"trial of {trial.config} has {both}: must have one of time and rejection"
        )
    if trial.rejected is not None and trial.rejected.config != trial.config:
        raise InvalidInput(
            f"trial of {trial.config} rejects {trial.rejected.config}: must be the same"
        )
    low, high = trial.interval_us or (None, None)
    prediction, measurement = trial.prediction, trial.measurement
    return {
        **_shared_values(trial),
        "low_us": low,
        "high_us": high,
        "prediction": prediction and dumps(codec.prediction_to_json(prediction)),
        "measurement": measurement and dumps(codec.measurement_to_json(measurement)),
        "why": trial.rejected and trial.rejected.why.value,
        "detail": trial.rejected and _storable(trial.rejected.detail),
        "error": trial.error,
        "spent": trial.spent and dumps(codec.spent_to_json(trial.spent)),
    }


def winner_values(winner: Winner) -> dict[str, Any]:
    """Return a winner's own columns."""
    return {
        **_shared_values(winner),
        "low_us": winner.interval_us[0],
        "high_us": winner.interval_us[1],
        "default_config": winner.default_config.key,
        "default_time_us": winner.default_time_us,
        "parts": dumps({"units": [[u, codec.config_to_json(c)] for u, c in winner.parts]}),
        "edge_tokens": winner.edge and winner.edge.tokens,
        "edge_evidence": winner.edge and int(winner.edge.evidence),
    }


def seed_values(seed: Seed) -> dict[str, Any]:
    """Return a seed's columns."""
    values = {name: getattr(seed, name) for name in _SEED_COLUMNS}
    return {**values, "config": seed.config.key}


def seed_of(row: Row[Any]) -> Seed:
    """Return the seed of a row."""
    values = {name: getattr(row, name) for name in _SEED_COLUMNS}
    return Seed(**values, config=codec.config_from_json(loads(row.config)))


@lru_cache(maxsize=4096)
def report_key(report: CompileReport) -> str:
    """Return the key of a compile report: equal reports are one row."""
    return hashlib.sha256(dumps(codec.compile_to_json(report)).encode()).hexdigest()


def _shared_values(row: Trial | Winner) -> dict[str, Any]:
    return {
        "kernel": row.kernel,
        "source_hash": row.source_hash,
        "model": row.problem.shape.model,
        "unit": row.unit.value,
        "config": row.config.key,
        "silicon_name": row.silicon.name,
        "policy": row.policy,
        "evidence": int(row.evidence),
        "time_us": row.time_us,
    }


def _storable(text: str) -> str:
    """Return a compiler's words as both databases take them: no NUL, no half characters."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


@dataclass(slots=True)
class RowReader:
    """Makes records of rows, each problem, config, report and toolchain once."""

    _problems: dict[tuple[str, str], Problem] = field(default_factory=dict)
    _configs: dict[str, LaunchConfig] = field(default_factory=dict)
    _reports: dict[int, CompileReport] = field(default_factory=dict)
    _toolchains: dict[int, Toolchain] = field(default_factory=dict)

    def trial(self, row: Row[Any], given: Mapping[str, Problem]) -> Trial:
        """Return the trial of a joined row; `given` problems are used where they fit."""
        config = self._config(row.config)
        rejected = None
        if row.why is not None:
            rejected = Rejected(config=config, why=Why(row.why), detail=row.detail)
        interval = None if row.low_us is None else (row.low_us, row.high_us)
        prediction, measurement = row.prediction, row.measurement
        return Trial(
            **self._shared(row, given),
            config=config,
            time_us=row.time_us,
            interval_us=interval,
            prediction=prediction and codec.prediction_from_json(loads(prediction)),
            measurement=measurement and codec.measurement_from_json(loads(measurement)),
            rejected=rejected,
            error=row.error,
            spent=row.spent and codec.spent_from_json(loads(row.spent)),
        )

    def winner(self, row: Row[Any], given: Mapping[str, Problem]) -> Winner:
        """Return the winner of a joined row; `given` problems are used where they fit."""
        parts = loads(row.parts)["units"]
        return Winner(
            **self._shared(row, given),
            config=self._config(row.config),
            time_us=row.time_us,
            interval_us=(row.low_us, row.high_us),
            default_config=self._config(row.default_config),
            default_time_us=row.default_time_us,
            parts=tuple((unit, codec.config_from_json(config)) for unit, config in parts),
            edge=_edge(row),
        )

    def _shared(self, row: Row[Any], given: Mapping[str, Problem]) -> dict[str, Any]:
        return {
            "sweep_id": row.sweep_key,
            "kernel": row.kernel,
            "source_hash": row.source_hash,
            "problem": given.get(row.problem_key) or self._problem(row),
            "unit": Unit(row.unit),
            "silicon": _silicon(row),
            "toolchain": self._toolchain(row),
            "policy": row.policy,
            "evidence": Evidence(row.evidence),
            "compile": self._report(row),
        }

    def _problem(self, row: Row[Any]) -> Problem:
        place = row.problem_key, row.model
        if place not in self._problems:
            stored = codec.problem_from_json(loads(row.problem_record))
            named = replace(stored, shape=replace(stored.shape, model=row.model))
            self._problems[place] = named
        return self._problems[place]

    def _config(self, key: str) -> LaunchConfig:
        if key not in self._configs:
            self._configs[key] = codec.config_from_json(loads(key))
        return self._configs[key]

    def _report(self, row: Row[Any]) -> CompileReport | None:
        if row.compile_id is None:
            return None
        if row.compile_id not in self._reports:
            self._reports[row.compile_id] = codec.compile_from_json(loads(row.compile_record))
        return self._reports[row.compile_id]

    def _toolchain(self, row: Row[Any]) -> Toolchain:
        if row.toolchain_id not in self._toolchains:
            found = codec.toolchain_from_json(loads(row.toolchain_record))
            self._toolchains[row.toolchain_id] = found
        return self._toolchains[row.toolchain_id]


def _edge(row: Row[Any]) -> Edge | None:
    if row.edge_tokens is None:
        return None
    return Edge(tokens=row.edge_tokens, evidence=Evidence(row.edge_evidence))


def _silicon(row: Row[Any]) -> Silicon:
    return Silicon(
        name=row.silicon_name,
        arch=row.arch,
        sms=row.sms,
        memory_bytes=row.memory_bytes,
        shared_limit_bytes=row.shared_limit_bytes,
        power_limit_w=row.power_limit_w,
    )
