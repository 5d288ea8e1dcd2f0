"""Samplers that choose among a space's legal points, so that no proposal is wasted."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from ...search_spaces import LaunchConfig
from ..candidates import Candidates, Floats, Rows

# Timed points of a class from which a sampler may learn about it.
ENOUGH = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a study knows.

    Attributes:
        rows: Candidates that were evaluated, in order, shape [n].
        times: Their values, inf where they failed, shape [n].
        unseen: Candidates that were neither evaluated nor are being evaluated, shape [m], m > 0.
        count: Evaluated candidates and those under evaluation.
    """

    rows: Rows
    times: Floats
    unseen: Rows
    count: int

    @property
    def timed(self) -> int:
        """How many did not fail."""
        return int(np.isfinite(self.times).sum())

    def among(self, allowed: Rows) -> Seen:
        """Return what is known of some rows; of all where too little is known of those."""
        unseen = self.unseen[np.isin(self.unseen, allowed)]
        own = np.isin(self.rows, allowed)
        known = replace(self, rows=self.rows[own], times=self.times[own], unseen=unseen)
        return known if known.timed >= ENOUGH else replace(self, unseen=unseen)


@dataclass(slots=True, kw_only=True, eq=False)
class PoolSampler(optuna.samplers.BaseSampler):
    """An Optuna sampler over a finite set of points; subclasses choose one of those not seen."""

    candidates: Candidates
    seed: int
    allowed: Rows | None = None
    """Rows among which the next point is chosen, None = all; the search sets it before it asks."""
    rng: np.random.Generator = field(init=False)
    _rows: dict[int, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the generator."""
        self.rng = np.random.default_rng(self.seed)

    @abstractmethod
    def choose(self, seen: Seen) -> int:
        """Return one of `seen.unseen`."""

    def reseed_rng(self) -> None:
        """Draw otherwise than a copy of this sampler in another process."""
        self.rng = np.random.default_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all parameters: they are proposed together."""
        return dict(self.candidates.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a point that the study has not seen; any point once it has seen all."""
        seen = self._seen(study, trial)
        row = self.choose(seen) if len(seen.unseen) else 0
        return dict(self.candidates.configs[row].as_dict())

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse: a parameter that is no axis of the space has no meaning here."""
        raise ValueError(f"{param_name} is no parameter of {self.candidates.space.name}")

    def _seen(self, study: Study, asked: FrozenTrial) -> Seen:
        rows, times = [], []
        unseen = np.ones(len(self.candidates.configs), dtype=bool)
        for trial in study.get_trials(deepcopy=False):
            row = None if trial.number == asked.number else self._row(trial)
            if row is None:
                continue
            unseen[row] = False
            if trial.state.is_finished():
                rows.append(row)
                times.append(_value(trial))
        found = Seen(
            rows=np.array(rows, dtype=np.intp),
            times=np.array(times, dtype=np.float64),
            unseen=np.flatnonzero(unseen),
            count=int((~unseen).sum()),
        )
        return found if self.allowed is None else found.among(self.allowed)

    def _row(self, trial: FrozenTrial) -> int | None:
        if trial.number not in self._rows:
            config = self.candidates.space.canonical(LaunchConfig.of(trial.params))
            self._rows[trial.number] = self.candidates.rows.get(config)
        return self._rows[trial.number]


def _value(trial: FrozenTrial) -> float:
    if trial.state is not TrialState.COMPLETE or trial.value is None:
        return np.inf
    return trial.value
