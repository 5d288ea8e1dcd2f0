"""Which configs our kernel and vLLM's are launched with: a database's winners, a short sweep's, defaults."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rubin_tune.db import Rejected
from rubin_tune.db.silicon import silicon_of
from rubin_tune.db.table_file import problem_keys
from rubin_tune.registry import load
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import GEMMS, LaunchConfig, Problem, Unit
from rubin_tune.topology import Gpu
from rubin_tune.tuner import SweepRequest, sweep
from rubin_tune.tuner.compile import over_limits
from rubin_tune.tuner.farm import CompileFarm, CompileJob

from ._layer_regimes import Regime

Variant = tuple[Problem, Unit, LaunchConfig]


def code_of(problem: Problem) -> Problem:
    """Return a problem that stands for all token counts: the code is the same."""
    return problem.at(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Configs of both GEMMs; `unfit` says why there are none, `why` where they are from.

    `is_exact`: both were tuned for this very problem and token count.
    """

    configs: dict[Unit, LaunchConfig]
    why: str = ""
    unfit: str = ""
    is_exact: bool = False


def defaults(kernel: str, problem: Problem, gpu: Gpu) -> Choice:
    """Return what a kernel launches when nothing is known."""
    found: Any = load("kernels", kernel)
    return Choice(
        configs={unit: found.default(problem, unit, gpu) for unit in GEMMS}, why="its default"
    )


def winners(table: Table | None, kernel: str, problem: Problem, gpu: Gpu) -> Choice:
    """Return the configs that a table of winners answers with for a problem."""
    if table is None:
        return Choice(configs={}, unfit="no database of winners was given")
    found: Any = load("kernels", kernel)
    keys = problem_keys(problem, silicon_of(gpu))
    configs, words, exact = {}, [], True
    for unit in GEMMS:
        choice = table.lookup(kernel, keys, problem.tokens, unit=unit.value)
        if not choice.config:
            return Choice(configs={}, unfit="the database has no winner whose code would fit")
        config = LaunchConfig.of(dict(choice.config))
        if not found.space(problem, unit, gpu).contains(config):
            return Choice(configs={}, unfit=f"{unit.value}'s winner is not legal here: {config}")
        configs[unit] = config
        words.append(f"{unit.value} {choice.why}")
        exact = exact and choice.why.startswith("exact")
    if len({found.coupling(config) for config in configs.values()}) > 1:
        return Choice(configs={}, unfit="the winners of the two GEMMs do not fit together")
    return Choice(configs=configs, why="; ".join(words), is_exact=exact)


def lacking(
    table: Table | None, kernel: str, regimes: Iterable[tuple[Regime, Problem]], gpu: Gpu
) -> list[Regime]:
    """Return the regimes for which the table has no exact winners."""
    return [
        regime for regime, problem in regimes if not winners(table, kernel, problem, gpu).is_exact
    ]


def sweep_into(
    database: str, regimes: Sequence[Regime], *, routing: str, trials: int, cache_dir: Path
) -> None:
    """Run a short sweep for each model among some regimes."""
    for key in dict.fromkeys(regime.sweep_key for regime in regimes):
        ladder = sorted({r.tokens for r in regimes if r.sweep_key == key})
        model, dtype, activations, layout = key
        print(f"sweeping {model} {dtype or ''} {layout} at {ladder} tokens", file=sys.stderr)
        request = SweepRequest(
            model=model, dtype=dtype, activations=activations, layout=layout, routing=routing,
            tokens=",".join(map(str, ladder)), evaluator="gpu", trials=trials,
        )  # fmt: skip
        sweep(request, database=database, cache_dir=cache_dir)


def compile_all(variants: Iterable[Variant], gpu: Gpu, cache_dir: Path) -> dict[Variant, str]:
    """Compile variants of megamoe on all cores, into the cache they are launched from.

    Returns those that cannot run, and why; their problems are `code_of` the given ones.
    """
    jobs = {
        CompileJob(
            kernel="megamoe", problem=code_of(problem), unit=unit, config=config, arch=gpu.arch
        )
        for problem, unit, config in variants
    }
    farm, refused = CompileFarm(cache_dir=cache_dir), {}
    try:
        for job, outcome in farm.run(sorted(jobs, key=lambda j: (j.unit.value, j.config.key))):
            over = (
                outcome if isinstance(outcome, Rejected) else over_limits(job.config, outcome, gpu)
            )
            if over is not None:
                refused[job.problem, job.unit, job.config] = f"{over.why}: {over.detail}"
    finally:
        farm.close()
    return refused
