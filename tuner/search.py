"""Proposing configs: one Optuna study a table (a unit at one token count), fed with every result.

A variant is compiled once and evaluated at every token count of the ladder, so each result is told to
all studies of its unit; the studies take turns in asking. What the cost model ranks first goes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState, create_trial

from ..registry import load
from ..search_spaces import LaunchConfig, Space

# Asks before a study that only proposes known or illegal points is helped out with the best-ranked new one.
_MAX_ASKS = 20


@dataclass(slots=True, kw_only=True)
class UnitSearch:
    """The search over one unit's space for a whole token ladder.

    Args:
        space: The legal points.
        ranking: For each token count, legal configs from the predicted fastest on.
        sampler: A name of tuner/samplers.
        seed: Same seed, same proposals.
    """

    space: Space
    ranking: Mapping[int, Sequence[LaunchConfig]]
    sampler: str
    seed: int
    seen: set[LaunchConfig] = field(default_factory=set)
    _studies: dict[int, optuna.Study] = field(default_factory=dict)
    _turn: int = 0

    def __post_init__(self) -> None:
        """Open a study a token count."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        make = load("tuner.samplers", self.sampler)
        if not callable(make):
            raise TypeError(f"sampler {self.sampler} offers no factory")
        for number, tokens in enumerate(self.ranking):
            self._studies[tokens] = optuna.create_study(sampler=make(self.seed * 1009 + number))

    @property
    def distributions(self) -> dict[str, CategoricalDistribution]:
        """The space as Optuna sees it."""
        return {p.name: CategoricalDistribution(p.values) for p in self.space.parameters}

    def first(self, count: int, always: Sequence[LaunchConfig]) -> list[LaunchConfig]:
        """Return up to `count` starting points: `always`, then the ranking's heads in turns."""
        chosen = [c for c in dict.fromkeys(always) if c not in self.seen]
        depth = max((len(r) for r in self.ranking.values()), default=0)
        for place in range(depth):
            for ranked in self.ranking.values():
                if len(chosen) >= count:
                    return self._take(chosen[:count])
                if place < len(ranked) and ranked[place] not in {*chosen, *self.seen}:
                    chosen.append(ranked[place])
        return self._take(chosen[:count])

    def ask(self, count: int) -> list[LaunchConfig]:
        """Return up to `count` new legal points; fewer only when the space is exhausted."""
        tables = list(self._studies)
        found: list[LaunchConfig] = []
        while len(found) < count:
            tokens = tables[self._turn % len(tables)]
            self._turn += 1
            config = self._propose(tokens)
            if config is None:
                break
            found.extend(self._take([config]))
        return found

    def tell(self, config: LaunchConfig, times_us: Mapping[int, float | None]) -> None:
        """Tell every study how a config did; None = it failed there."""
        self.seen.add(config)
        params = {p.name: config[p.name] for p in self.space.parameters}
        for tokens, time_us in times_us.items():
            if tokens not in self._studies:
                continue
            state = TrialState.FAIL if time_us is None else TrialState.COMPLETE
            trial = create_trial(
                params=params,
                distributions=dict(self.distributions),
                value=time_us,
                state=state,
            )
            self._studies[tokens].add_trial(trial)

    def _take(self, configs: list[LaunchConfig]) -> list[LaunchConfig]:
        self.seen.update(configs)
        return configs

    def _propose(self, tokens: int) -> LaunchConfig | None:
        study = self._studies[tokens]
        for _ in range(_MAX_ASKS):
            trial = study.ask(dict(self.distributions))
            config = self.space.canonical(LaunchConfig.of(trial.params))
            fresh = config not in self.seen and self.space.contains(config)
            # The proposal itself is closed as failed; its result is told by `tell`, in canonical form.
            study.tell(trial, state=TrialState.FAIL)
            if fresh:
                return config
        unseen = (c for c in self.ranking[tokens] if c not in self.seen)
        return next(unseen, None)
