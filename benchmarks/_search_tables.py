"""Recorded tables for the comparison of samplers: a space, every point's time, and rankings from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from rubin_tune.db.importers import read_results
from rubin_tune.db.landscape import Landscape, read_landscape
from rubin_tune.db.recorded_spaces import RecordedSpace
from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import (
    GEMMS,
    Constraint,
    LaunchConfig,
    Parameter,
    Problem,
    Routing,
    Space,
    Unit,
    fused_moe,
)
from rubin_tune.topology import load_gpu
from rubin_tune.tuner import cost_model

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One thing to search: every legal point's recorded time (None = it failed).

    Attributes:
        name: The file's name, and (tokens, GEMM) where it holds several tables.
        space: The recorded points.
        times: Microseconds, or whatever unit the file has.
        rankings: Lists of configs, the fastest first, from what is known without this table.
    """

    name: str
    space: Space
    times: Mapping[LaunchConfig, float | None]
    rankings: tuple[tuple[LaunchConfig, ...], ...] = ()

    @property
    def optimum(self) -> float:
        """The shortest time."""
        return min(t for t in self.times.values() if t is not None)

    def fractions(self, order: Sequence[LaunchConfig]) -> Floats:
        """Return the share of the optimum's speed that the best so far has, after each evaluation."""
        found: Floats = self.optimum / self.best_so_far(order)
        return found

    def best_so_far(self, order: Sequence[LaunchConfig]) -> Floats:
        """Return the best time after each evaluation, inf before the first that did not fail."""
        times = [self.times[config] for config in order]
        found: Floats = np.minimum.accumulate([math.inf if t is None else t for t in times])
        return found

    def random_curve(self, count: int) -> Floats:
        """Return the expected best time after 1 ... `count` random draws without replacement.

        Calculated, not sampled (Willemsen et al., FGCS 2024, 10.1016/j.future.2024.05.021): with
        times t_1 <= ... <= t_n the best of k is t_i with probability C(n-i, k-1) / C(n, k). Failures count
        as the slowest time.
        """
        slowest = max(t for t in self.times.values() if t is not None)
        times = np.sort([slowest if t is None else t for t in self.times.values()])
        curve = np.empty(count)
        left = len(times) - np.arange(1, len(times) + 1)
        log_factorials = np.array([math.lgamma(i + 1) for i in range(len(times) + 1)])
        for k in range(1, count + 1):
            ways = np.full(len(times), -np.inf)
            some = left >= k - 1
            kept = left[some]
            ways[some] = (
                log_factorials[kept] - log_factorials[k - 1] - log_factorials[kept - k + 1]
            )
            n = len(times)
            whole = log_factorials[n] - log_factorials[k] - log_factorials[n - k]
            curve[k - 1] = float(np.exp(ways - whole) @ times)
        return curve

    def score(self, orders: Sequence[Sequence[LaunchConfig]]) -> float:
        """Return the performance score: mean over evaluations of (random - own) / (random - optimum)."""
        count = min(len(order) for order in orders)
        random = self.random_curve(count)
        slowest = max(t for t in self.times.values() if t is not None)
        own = np.mean([np.minimum(self.best_so_far(o[:count]), slowest) for o in orders], axis=0)
        ahead = random - self.optimum
        return float(np.mean((random - own)[ahead > 0] / ahead[ahead > 0]))


def read_tables(path: Path, *, prior: bool, others: Sequence[Path] = ()) -> list[Table]:
    """Return the tables of a landscape, a Kernel Tuner cache or a KTT file.

    Args:
        path: The file.
        prior: Whether the cost model ranks the points (landscapes only).
        others: Landscapes of the same layer in other formats, whose times rank the points too.

    Raises:
        RubinTuneError: the file is none of these, or a prior is asked of a space that is not ours.
    """
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        return list(_landscape(read_landscape(path), path, prior, [*map(read_landscape, others)]))
    found = read_results(path)
    if not isinstance(found, RecordedSpace):
        raise InvalidInput(f"{path} is an engine's table: it holds winners, not a space to search")
    if prior or others:
        raise InvalidInput(f"{path} is no kernel of ours: no prior is known for it")
    times = {point.config: point.time_us for point in found.points}
    return [Table(name=_stem(path), space=_recorded(_stem(path), found, times), times=times)]


def _stem(path: Path) -> str:
    return path.name.split(".")[0]


def _recorded(
    name: str, found: RecordedSpace, times: Mapping[LaunchConfig, float | None]
) -> Space:
    names = [parameter for parameter, _ in found.parameters]
    parameters = tuple(
        Parameter(name=p, values=tuple(sorted(values, key=lambda v: (isinstance(v, str), v))))
        for p, values in found.parameters
    )
    held = Constraint(
        name="recorded",
        reason="the recording holds no such point",
        on=tuple(names),
        holds=lambda point: LaunchConfig.of({p: point[p] for p in names}) in times,
    )
    return Space(name=name, parameters=parameters, constraints=(held,))


def _landscape(
    landscape: Landscape, path: Path, prior: bool, others: Sequence[Landscape]
) -> Iterator[Table]:
    gpu = load_gpu(landscape.gpu.split()[-1].lower())
    for tokens in landscape.tokens:
        problem = Problem(
            shape=landscape.header.shape,
            layout=landscape.header.layout,
            routing=Routing(kind="uniform"),
            tokens=tokens,
        )
        for unit in GEMMS:
            rows = _rows(landscape, tokens, unit)
            whole = fused_moe.space(problem, unit, gpu)
            times = {config: t for config, t in rows.items() if whole.contains(config)}
            name = f"{_stem(path)} {tokens} {unit.value}"
            space = Space(
                name=name,
                parameters=_used(whole, times),
                constraints=(_held(whole, times),),
            )
            rankings = []
            if prior:
                legal = space.legal()
                order = cost_model.rank(problem, unit, legal, gpu).argsort(kind="stable")
                rankings.append(tuple(legal[i] for i in order))
            rankings += [_fastest(_rows(other, tokens, unit)) for other in others]
            yield Table(name=name, space=space, times=times, rankings=tuple(rankings))


def _used(space: Space, times: Mapping[LaunchConfig, float | None]) -> tuple[Parameter, ...]:
    """Return the axes with only the values that were recorded."""
    return tuple(
        Parameter(
            name=p.name, values=tuple(v for v in p.values if any(c[p.name] == v for c in times))
        )
        for p in space.parameters
    )


def _held(space: Space, times: Mapping[LaunchConfig, float | None]) -> Constraint:
    names = [p.name for p in space.parameters]
    return Constraint(
        name="recorded",
        reason="the landscape holds no such point",
        on=tuple(names),
        holds=lambda point: LaunchConfig.of({p: point[p] for p in names}) in times,
    )


def _rows(landscape: Landscape, tokens: int, unit: Unit) -> dict[LaunchConfig, float | None]:
    return {
        row.config: median(row.samples_us) if row.samples_us else None
        for row in landscape.rows
        if (row.tokens, row.unit) == (tokens, unit)
    }


def _fastest(times: Mapping[LaunchConfig, float | None]) -> tuple[LaunchConfig, ...]:
    known = [(t, config.key, config) for config, t in times.items() if t is not None]
    return tuple(config for _, _, config in sorted(known, key=lambda item: item[:2]))
