"""Trials as Optuna studies, one a table (a unit at one token count), for Optuna's dashboard and samplers."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event

from ...errors import InvalidInput
from ...search_spaces import Unit, Value
from ..records import Trial
from ._format import TrialFormat, draft_of, stem

ENDINGS = (".db", ".sqlite", ".sqlite3")
Distributions = Mapping[str, CategoricalDistribution]


class OptunaFormat:
    """An Optuna RDB storage in SQLite."""

    def export_trials(
        self, trials: Sequence[Trial], started: Mapping[str, datetime], out: Path
    ) -> list[Path]:
        """Write a study a table.

        A trial's value is its time in microseconds; a refused one is a failed trial. Parameters that never
        vary in a table stand on its study. A study database that is there is replaced.
        """
        path = out if out.suffix in ENDINGS else out / f"{stem(trials)}.db"
        _check_replaceable(path)
        with draft_of(path) as draft, _storage(draft) as storage:
            for name, table in _tables(trials).items():
                _write(storage, name, table, started)
        return [path]


PROVIDES: TrialFormat = OptunaFormat()


def _check_replaceable(path: Path) -> None:
    if path.exists() and not _is_study_database(path):
        raise InvalidInput(f"file {str(path)!r} exists and is no Optuna database: name another")


def _is_study_database(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as found:
            names = {row[0] for row in found.execute("SELECT name FROM sqlite_master")}
    except sqlite3.Error:
        return False
    return {"studies", "trials", "version_info"} <= names


@contextmanager
def _storage(path: Path) -> Iterator[RDBStorage]:
    """Open a storage that does not wait for the disk: the draft is worth nothing until it is whole."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = RDBStorage(f"sqlite:///{path}")

    @event.listens_for(storage.engine, "connect")
    def hurry(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")

    # What is open was opened without.
    storage.engine.dispose()
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _tables(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Return the trials of each study under its name, by unit and token count."""
    units = list(Unit)
    keyed: dict[tuple[Any, ...], list[Trial]] = defaultdict(list)
    for t in trials:
        place = t.problem.tokens, units.index(t.unit), t.problem.key
        keyed[(*place, t.silicon.key, t.toolchain.key, t.source_hash, t.policy)].append(t)
    names: Counter[str] = Counter()
    found = {}
    for key in sorted(keyed):
        first = keyed[key][0]
        name = (
            f"{first.kernel} {first.problem.shape.model} {first.unit.value} "
            f"at {first.problem.tokens} tokens on {first.silicon.name}"
        )
        names[name] += 1
        number = names[name]
        found[name if number == 1 else f"{name} ({number})"] = keyed[key]
    return found


def _write(
    storage: RDBStorage, name: str, table: Sequence[Trial], started: Mapping[str, datetime]
) -> None:
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
    varying = _varying(table)
    for attribute, value in _of_study(table[0], varying).items():
        study.set_user_attr(attribute, value)
    for trial in table:
        study.add_trial(_frozen(trial, varying, started.get(trial.sweep_id)))


def _varying(table: Sequence[Trial]) -> Distributions:
    values: dict[str, dict[Value, None]] = defaultdict(dict)
    for trial in table:
        for name, value in trial.config.items:
            values[name][value] = None
    return {
        name: CategoricalDistribution(sorted(seen, key=lambda v: (str(type(v)), v)))
        for name, seen in sorted(values.items())
        if len(seen) > 1
    }


def _of_study(first: Trial, varying: Distributions) -> dict[str, object]:
    fixed = {n: v for n, v in first.config.items if n not in varying}
    return {
        "value": "time_us",
        "kernel": first.kernel,
        "kernel_source": first.source_hash,
        "model": first.problem.shape.model,
        "layout": first.problem.layout.name,
        "routing": first.problem.routing.name,
        "unit": first.unit.value,
        "tokens": first.problem.tokens,
        "silicon": first.silicon.key,
        "toolchain": first.toolchain.key,
        "policy": first.policy,
        "fixed": json.dumps(fixed),
    }


def _frozen(trial: Trial, varying: Distributions, started: datetime | None) -> FrozenTrial:
    values = trial.config.as_dict()
    # A config that lacks a parameter of the others is told without it.
    own = {name: d for name, d in varying.items() if name in values}
    frozen = create_trial(
        state=TrialState.FAIL if trial.time_us is None else TrialState.COMPLETE,
        value=trial.time_us,
        params={name: values[name] for name in own},
        distributions=dict(own),
        user_attrs=_of_trial(trial),
    )
    if started is not None and trial.spent is not None:
        end = started + timedelta(seconds=trial.spent.at_s)
        frozen.datetime_start = end - timedelta(seconds=trial.spent.time_s or 0.0)
        frozen.datetime_complete = end
    return frozen


def _of_trial(trial: Trial) -> dict[str, object]:
    found: dict[str, object] = {"evidence": trial.evidence.word}
    if trial.rejected is not None:
        found["refused"] = f"{trial.rejected.why.value}: {trial.rejected.detail[:500]}"
    if trial.compile is not None:
        found |= {"registers": trial.compile.registers, "spill_bytes": trial.compile.spill_bytes}
    return found
