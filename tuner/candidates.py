"""A space as samplers see it: its legal points as numbers, and how others rank them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution

from ..search_spaces import LaunchConfig, Space

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Every legal point of a space, for one table (a unit at one token count).

    Attributes:
        space: The space.
        configs: Its legal points.
        rows: Each config's place in `configs`.
        codes: Which value of each axis a point has, shape [configs, parameters].
        points: `space.encode` of each point, shape [configs, features], in [0, 1].
        prior: One column a ranking: the share of it that goes before a config, shape
            [configs, rankings], in [0, 1]; 1 for configs that it leaves out.
    """

    space: Space
    configs: tuple[LaunchConfig, ...]
    rows: dict[LaunchConfig, int]
    codes: Rows
    points: Floats
    prior: Floats

    @classmethod
    def of(cls, space: Space) -> Candidates:
        """Return the legal points of a space, ranked by nobody."""
        configs = space.legal()
        axes = [{value: i for i, value in enumerate(p.values)} for p in space.parameters]
        codes = np.array(
            [
                [axis[config[p.name]] for axis, p in zip(axes, space.parameters, strict=True)]
                for config in configs
            ],
            dtype=np.intp,
        ).reshape(len(configs), len(axes))
        blocks = [p.places()[codes[:, i]] for i, p in enumerate(space.parameters)]
        return cls(
            space=space,
            configs=configs,
            rows={config: i for i, config in enumerate(configs)},
            codes=codes,
            points=np.concatenate(blocks, axis=1),
            prior=np.ones((len(configs), 0)),
        )

    def ranked(self, rankings: Sequence[Sequence[LaunchConfig]]) -> Candidates:
        """Return the same points under rankings; each lists configs, the fastest first."""
        prior = np.ones((len(self.configs), len(rankings)))
        for column, ranking in enumerate(rankings):
            known = [self.rows[config] for config in ranking if config in self.rows]
            prior[known, column] = np.arange(len(known)) / max(len(known), 1)
        return replace(self, prior=prior)

    @property
    def distributions(self) -> dict[str, CategoricalDistribution]:
        """The space as Optuna sees it."""
        return {p.name: CategoricalDistribution(p.values) for p in self.space.parameters}

    def nearest(self, config: LaunchConfig, rows: Rows) -> int:
        """Return the row among `rows` that is nearest to a point of the axes (L1 distance)."""
        far = np.abs(self.points[rows] - self.space.encode(config)).sum(axis=1)
        return int(rows[far.argmin()])

    def differences(self, row: int, rows: Rows) -> Rows:
        """Return in how many parameters each of `rows` differs from a point."""
        return np.asarray((self.codes[rows] != self.codes[row]).sum(axis=1), dtype=np.intp)
