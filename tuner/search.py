"""Proposing configs: one Optuna study a table (a unit at one token count), fed with every result.

A variant is compiled once and evaluated at every token count of the ladder, so each result is told to
all studies of its unit, and the studies take turns in asking: what one token count learns the others know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import optuna
from optuna.trial import TrialState, create_trial

from ..registry import load
from ..search_spaces import LaunchConfig, Space
from . import samplers
from .candidates import Candidates

# Heads of a ranking often differ in one parameter only; starting points differ in this many.
DIFFERENT = 2

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
    """

    space: Space
    rankings: Mapping[int, Rankings]
    sampler: str = samplers.DEFAULT
    seed: int = 0
    seen: set[LaunchConfig] = field(default_factory=set)
    _candidates: Candidates = field(init=False)
    _studies: dict[int, optuna.Study] = field(default_factory=dict)
    _running: dict[LaunchConfig, dict[int, int]] = field(default_factory=dict)
    _turn: int = 0

    def __post_init__(self) -> None:
        """Open a study a token count."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        make = load("tuner.samplers", self.sampler)
        if not callable(make):
            raise TypeError(f"sampler {self.sampler} offers no factory")
        self._candidates = Candidates.of(self.space)
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
        heads = [list(ranking) for ranking in self.heads.values()]
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
            tokens = tables[self._turn % len(tables)]
            self._turn += 1
            found.append(self._propose(tokens))
        return found

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

    def _propose(self, tokens: int) -> LaunchConfig:
        study = self._studies[tokens]
        trial = study.ask(dict(self._candidates.distributions))
        config = self.space.canonical(LaunchConfig.of(trial.params))
        if config in self._candidates.rows and config not in self.seen:
            return self._take(config, {tokens: trial.number})
        # Samplers of Optuna know no constraints: the nearest legal point stands for what they meant.
        study.tell(trial, state=TrialState.FAIL)
        unseen = [row for c, row in self._candidates.rows.items() if c not in self.seen]
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
