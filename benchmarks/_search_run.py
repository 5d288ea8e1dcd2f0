"""Running samplers on recorded tables, as `rubin-tune sweep` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rubin_tune.search_spaces import LaunchConfig
from rubin_tune.tuner.processes import spawn_context
from rubin_tune.tuner.search import UnitSearch

from ._search_tables import Table, read_tables

# Heads of the first ranking that are evaluated first, where there is one.
HEADS = 3
PEER = "kt:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How one sampler did on one table after so many evaluations.

    Attributes:
        landscape: The table's name.
        sampler: The sampler's name.
        evaluations: Points evaluated, failures included.
        median: Share of the optimum's speed, median over seeds.
        worst: The same, worst seed.
        seeds: Repetitions.
    """

    landscape: str
    sampler: str
    evaluations: int
    median: float
    worst: float
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where tables come from; every field pickles."""

    path: Path
    prior: bool
    others: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One sampler on one table with some seeds."""

    source: Source
    table: int
    sampler: str
    seeds: tuple[int, ...]
    count: int


@lru_cache(maxsize=4)
def tables_of(source: Source) -> list[Table]:
    """Read a file once a process."""
    return read_tables(source.path, prior=source.prior, others=source.others)


def search(table: Table, sampler: str, seed: int, count: int) -> list[LaunchConfig]:
    """Return the points that a sampler evaluates, in order."""
    found = UnitSearch(space=table.space, rankings={0: table.rankings}, sampler=sampler, seed=seed)
    nearby = [ranking[0] for ranking in table.rankings[1:] if ranking[0] in table.times]
    heads = HEADS + len(nearby) if table.rankings else 0
    order: list[LaunchConfig] = []
    for config in found.first(min(heads, count), nearby):
        order.append(config)
        found.tell(config, {0: table.times[config]})
    while len(order) < count:
        asked = found.ask(1)
        if not asked:
            break
        order += asked
        found.tell(asked[0], {0: table.times[asked[0]]})
    return order


def run(task: Task) -> list[list[LaunchConfig]]:
    """Return each seed's points."""
    table = tables_of(task.source)[task.table]
    if task.sampler.startswith(PEER):
        from ._search_peers import kernel_tuner_order

        strategy = task.sampler.removeprefix(PEER)
        return [kernel_tuner_order(table, strategy, seed, task.count) for seed in task.seeds]
    return [search(table, task.sampler, seed, task.count) for seed in task.seeds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One sampler on one table: its points for every seed."""

    table: Table
    sampler: str
    orders: list[list[LaunchConfig]]

    def entry(self, evaluations: int) -> Entry:
        """Summarise after some evaluations (or all, where the space has fewer points)."""
        shares = [float(self.table.fractions(o)[:evaluations][-1]) for o in self.orders]
        return Entry(
            landscape=self.table.name,
            sampler=self.sampler,
            evaluations=evaluations,
            median=median(shares),
            worst=min(shares),
            seeds=len(shares),
        )

    def curve(self) -> Any:
        """Return the median share of the optimum after each evaluation."""
        return np.median([self.table.fractions(order) for order in self.orders], axis=0)


def compare(
    sources: Sequence[Source], samplers: Sequence[str], count: int, seeds: int, jobs: int
) -> list[Outcome]:
    """Run every sampler on every table, seeds spread over processes."""
    parts = [tuple(part.tolist()) for part in np.array_split(np.arange(seeds), min(seeds, 6))]
    wanted = [
        (source, number, sampler)
        for source in sources
        for number, sampler in product(range(len(tables_of(source))), samplers)
    ]
    tasks = [
        Task(source=s, table=n, sampler=name, seeds=part, count=count)
        for s, n, name in wanted
        for part in parts
    ]
    if jobs == 1:
        found = [run(task) for task in tasks]
    else:
        with ProcessPoolExecutor(jobs, mp_context=spawn_context()) as pool:
            found = list(pool.map(run, tasks))
    outcomes = []
    for place, (source, number, sampler) in enumerate(wanted):
        pieces = found[place * len(parts) : (place + 1) * len(parts)]
        orders = [order for piece in pieces for order in piece]
        outcomes.append(Outcome(table=tables_of(source)[number], sampler=sampler, orders=orders))
    return outcomes
