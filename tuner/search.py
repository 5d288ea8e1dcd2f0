"""Proposing configs: one Optuna study a table (a unit at one token count), fed with every result.

A variant is compiled once and evaluated at every token count of the ladder, so each result is told to
all studies of its unit, and the studies take turns in asking: what one token count learns the others know.
Where units must agree on something (a coupling), each way to agree is searched in turns: the best of
one unit alone may have no partner that is any good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from ..registry import load
from ..search_spaces import LaunchConfig, Space
from . import samplers
from .candidates import Candidates, Rows
from .samplers._pool import PoolSampler

# Heads of a ranking often differ in one parameter only; starting points differ in this many.
DIFFERENT = 2
# Couplings that are searched in turns; with more of them (an engine that takes one config for all units has
# one a config) they are searched together.
MOST_CLASSES = 8

Rankings = Sequence[Sequence[LaunchConfig]]


@dataclass(slots=True, kw_only=True)
class UnitSearch:
    """The search over one unit's space for a whole token ladder.

    Args:
        space: The legal points.
        rankings: For each token count, lists of configs, the (predicted) fastest first; the first list
            is the one that starting points are taken from. Empty = nothing is known.
        sampler: A name of tuner/samplers.
        seed: Same seed, same proposals.
        coupling: Names what a config agrees on with the other units' (`Kernel.coupling`).
    """

    space: Space
    rankings: Mapping[int, Rankings]
    sampler: str = samplers.DEFAULT
    seed: int = 0
    coupling: Callable[[LaunchConfig], str] = lambda config: ""
    seen: set[LaunchConfig] = field(default_factory=set)
    _candidates: Candidates = field(init=False)
    _studies: dict[int, optuna.Study] = field(default_factory=dict)
    _running: dict[LaunchConfig, dict[int, int]] = field(default_factory=dict)
    _classes: list[Rows] = field(init=False)
    _joins: bool = False
    _turn: int = 0

    def __post_init__(self) -> None:
        """Open a study a token count."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        make = load("tuner.samplers", self.sampler)
        if not callable(make):
            raise TypeError(f"sampler {self.sampler} offers no factory")
        self._candidates = Candidates.of(self.space)
        self._classes = self._coupled()
        for number, (tokens, rankings) in enumerate(self.rankings.items()):
            sampler = make(self.seed * 1009 + number, self._candidates.ranked(rankings))
            self._studies[tokens] = optuna.create_study(sampler=sampler)

    @property
    def heads(self) -> dict[int, Sequence[LaunchConfig]]:
        """The first ranking of each token count."""
        return {tokens: lists[0] for tokens, lists in self.rankings.items() if lists}

    def first(self, count: int, always: Sequence[LaunchConfig]) -> list[LaunchConfig]:
        """Return up to `count` starting points: `always`, then heads of the rankings in turns."""
        chosen = [c for c in dict.fromkeys(always) if c not in self.seen][:count]
        heads = [
            [ranked[i] for i in places]
            for ranked in self.heads.values()
            for places in self._split(ranked)
        ]
        while len(chosen) < count and any(heads):
            for ranked in heads:
                if len(chosen) < count:
                    chosen += self._head(ranked, chosen)
        return [self._take(config) for config in chosen]

    def ask(self, count: int) -> list[LaunchConfig]:
        """Return up to `count` new legal points; fewer only when the space is exhausted."""
        tables = list(self._studies)
        found: list[LaunchConfig] = []
        while len(found) < count and len(self.seen) < len(self._candidates.configs):
            tokens = tables[self._turn // len(self._classes) % len(tables)]
            rows = self._classes[self._turn % len(self._classes)]
            self._turn += 1
            if not all(self._candidates.configs[row] in self.seen for row in rows):
                found.append(self._propose(tokens, rows))
        return found

    def join(self, config: LaunchConfig) -> list[LaunchConfig]:
        """Take up what another unit evaluates, where units must agree on so much that few pairs would match."""
        wanted = self._joins and config not in self.seen and config in self._candidates.rows
        return [self._take(config)] if wanted else []

    def tell(self, config: LaunchConfig, times_us: Mapping[int, float | None]) -> None:
        """Tell every study how a config did; None = it failed there."""
        if config not in self._running:
            self._take(config)
        for tokens, number in self._running.pop(config).items():
            time_us = times_us.get(tokens)
            state = TrialState.FAIL if time_us is None else TrialState.COMPLETE
            self._studies[tokens].tell(number, time_us, state=state)

    def _head(self, ranked: list[LaunchConfig], chosen: list[LaunchConfig]) -> list[LaunchConfig]:
        """Take a ranking's first new config that differs enough from those chosen."""
        ranked[:] = [c for c in ranked if c not in self.seen and c not in chosen]
        known = [self._candidates.rows[c] for c in chosen if c in self._candidates.rows]
        rows = np.array(known, dtype=np.intp)
        for place, config in enumerate(ranked):
            row = self._candidates.rows[config]
            if not len(rows) or self._candidates.differences(row, rows).min() >= DIFFERENT:
                return [ranked.pop(place)]
        return [ranked.pop(0)] if ranked else []

    def _coupled(self) -> list[Rows]:
        """Return the candidates of each coupling; all together where there are too many."""
        found: dict[str, list[int]] = {}
        for row, config in enumerate(self._candidates.configs):
            found.setdefault(self.coupling(config), []).append(row)
        self._joins = len(found) > MOST_CLASSES
        if self._joins:
            return [np.arange(len(self._candidates.configs))]
        return [np.array(rows, dtype=np.intp) for _, rows in sorted(found.items())]

    def _split(self, ranking: Sequence[LaunchConfig]) -> list[list[int]]:
        """Return the places in a ranking of each class's configs."""
        number = {int(row): i for i, rows in enumerate(self._classes) for row in rows}
        places: list[list[int]] = [[] for _ in self._classes]
        for place, config in enumerate(ranking):
            if config in self._candidates.rows:
                places[number[self._candidates.rows[config]]].append(place)
        return places

    def _propose(self, tokens: int, rows: Rows) -> LaunchConfig:
        study = self._studies[tokens]
        if isinstance(study.sampler, PoolSampler):
            study.sampler.allowed = rows
        trial = study.ask(dict(self._candidates.distributions))
        config = self.space.canonical(LaunchConfig.of(trial.params))
        row = self._candidates.rows.get(config)
        if row is not None and config not in self.seen and row in rows:
            return self._take(config, {tokens: trial.number})
        # Samplers of Optuna know no constraints: the nearest legal point stands for what they meant.
        study.tell(trial, state=TrialState.FAIL)
        unseen = [row for row in rows if self._candidates.configs[row] not in self.seen]
        row = self._candidates.nearest(config, np.array(unseen, dtype=np.intp))
        return self._take(self._candidates.configs[row])

    def _take(self, config: LaunchConfig, asked: Mapping[int, int] | None = None) -> LaunchConfig:
        """Open a running trial of a config in every study, unless it is open there."""
        numbers = dict(asked or {})
        params = {p.name: config[p.name] for p in self.space.parameters}
        for tokens, study in self._studies.items():
            if tokens not in numbers:
                study.add_trial(
                    create_trial(
                        params=params,
                        distributions=dict(self._candidates.distributions),
                        state=TrialState.RUNNING,
                    )
                )
                numbers[tokens] = len(study.get_trials(deepcopy=False)) - 1
        self._running[config] = numbers
        self.seen.add(config)
        return config
