"""What a sweep would cost and could gain, before anything is written.

The cost: points of the spaces, variants to compile and to time, and minutes, at the rate of stored
sweeps on the same silicon under the same policy, or at a stated assumption where there are none. The
gain: at each token count the cost model's time of what is deployed (an imported table's row by the
engine's own rule, else the kernel's default) over its time of the best point. Both are predicted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ..db import Seed, Silicon, Store, default_path, open_store
from ..search_spaces import LaunchConfig, Problem, Space, Unit
from . import cost_model
from .budget import spell_seconds
from .choose import TIE_BAND
from .evaluation import Evaluator
from .evaluators._target import TargetEvaluator
from .imports import Deployed, deployed
from .jobs import CompileJob
from .make import make_evaluator
from .request import Resolved, SweepRequest, resolve

# Seconds of one core a compilation, where no report is stored (measured: sm_107 and sm_90 GEMMs of
# the default spaces, 0.7 to 5.4 s; facts, autotuners 0.2).
ASSUMED_COMPILE_S = 1.5
# Seconds a variant and token count to evaluate, where no sweep is stored: a GPU verifies and times a
# ladder of 18 in under 3 s; a prediction and a look-up are arithmetic.
ASSUMED_TRIAL_S = {"gpu": 3.0 / 18, "model": 0.002, "recorded": 0.001}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """What tuning could gain at one token count, by the cost model (both GEMMs, no glue).

    Attributes:
        tokens: The count.
        deployed_us: Time of what is launched today; None where the model guesses that it fits no SM.
        best_us: Time of the best point.
        deployed: What is launched today.
    """

    tokens: int
    deployed_us: float | None
    best_us: float
    deployed: str

    @property
    def share(self) -> float | None:
        """Deployed time over the best, less 1."""
        return None if self.deployed_us is None else self.deployed_us / self.best_us - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one sweep would cost and could gain.

    Attributes:
        resolved: What was asked, resolved.
        space: Points of the product of all parameters, over the GEMMs.
        legal: Distinct legal points.
        variants: Variants that would be evaluated, at most.
        compiles: Variants that would be compiled, at most; None where the evaluator compiles none.
        known: Trials of this sweep's problems that are stored.
        seconds: Expected wall time, under the budget where there is one.
        rates: Where the rates come from.
        headroom: By token count.
    """

    resolved: Resolved
    space: int
    legal: int
    variants: int
    compiles: int
    known: int
    seconds: float
    rates: str
    headroom: tuple[Headroom, ...]

    @property
    def worth_it(self) -> bool:
        """Whether more than the tie band is predicted to be gained anywhere."""
        return any(row.share is None or row.share > TIE_BAND for row in self.headroom)

    @property
    def verdict(self) -> str:
        """The gain in a sentence."""
        if not self.worth_it:
            return (
                "predicted headroom is within the tie band of 1 % everywhere: tuning may not pay"
            )
        share, tokens = max((row.share or 0.0, row.tokens) for row in self.headroom)
        return f"predicted headroom over what is deployed: up to {share:.0%}, at {tokens} tokens"

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form."""
        setting = self.resolved.setting
        return {
            "kernel": setting.kernel.name,
            "model": setting.problems[0].shape.model,
            "layout": setting.problems[0].layout.name,
            "weights": setting.problems[0].shape.weights,
            "target": {"gpu": setting.gpu.name, "arch": f"sm_{setting.gpu.arch}"},
            "evaluator": self.resolved.evaluator,
            "space": self.space,
            "legal": self.legal,
            "variants": self.variants,
            "compiles": self.compiles,
            "known_trials": self.known,
            "expected_s": round(self.seconds, 1),
            "rates": self.rates,
            "headroom": [
                {
                    "tokens": row.tokens,
                    "deployed_us": row.deployed_us,
                    "best_us": row.best_us,
                    "share": row.share,
                    "deployed": row.deployed,
                    "evidence": "predicted",
                }
                for row in self.headroom
            ],
            "verdict": self.verdict,
        }


def estimate(
    requests: Sequence[SweepRequest],
    *,
    database: str | Path | None = None,
    cache_dir: Path | None = None,
    jobs: int | None = None,
) -> list[Estimate]:
    """Return what each sweep of a plan would cost and could gain; nothing is written.

    A variant that an earlier sweep of the list compiles is not counted again.

    Args:
        requests: The sweeps, in order.
        database: Read where it exists.
        cache_dir: Where compiled variants are kept.
        jobs: Compile processes; None = one a core.

    Raises:
        RubinTuneError: a sweep that cannot be meant.
    """
    resolved = [resolve(request) for request in requests]
    shared: dict[str, int] = {}
    if not _exists(database):
        return [_estimate(one, None, cache_dir, jobs, shared) for one in resolved]
    with open_store(database, create=False) as store:
        return [_estimate(one, store, cache_dir, jobs, shared) for one in resolved]


def _exists(database: str | Path | None) -> bool:
    target = default_path() if database is None else database
    return "://" in str(target) or Path(target).exists()


def _estimate(
    resolved: Resolved,
    store: Store | None,
    cache_dir: Path | None,
    jobs: int | None,
    shared: dict[str, int],
) -> Estimate:
    setting, request = resolved.setting, resolved.request
    silicon, policy, compiles, spaces = _identity(resolved, cache_dir)
    legal = {unit: space.legal() for unit, space in spaces.items()}
    wanted = {u: min(len(points), resolved.trials + request.audit) for u, points in legal.items()}
    new = _compiles(resolved, wanted, shared) if compiles else 0
    variants = sum(wanted.values())
    known = _known(resolved, store, silicon, policy)
    compile_s, trial_s, rates = _rates(resolved, store, silicon, policy)
    evaluated = max(0, variants * len(setting.ladder) - known)
    # Compiling runs beside timing: the slower of the two decides.
    seconds = max(new * compile_s / (jobs or os.cpu_count() or 1), evaluated * trial_s)
    if request.budget_s is not None:
        seconds = min(seconds, request.budget_s)
    seeds = store.seeds_for(setting.kernel.name, setting.problems[0]) if store else []
    return Estimate(
        resolved=resolved,
        space=sum(space.size for space in spaces.values()),
        legal=sum(map(len, legal.values())),
        variants=variants,
        compiles=new,
        known=known,
        seconds=seconds,
        rates=rates,
        headroom=tuple(_headroom(resolved, problem, legal, seeds) for problem in setting.problems),
    )


def _identity(
    resolved: Resolved, cache_dir: Path | None
) -> tuple[Silicon, str, bool, dict[Unit, Space]]:
    """Return silicon, policy, whether variants are compiled, and the spaces of a sweep's units."""
    setting = resolved.setting
    whole = {
        unit: setting.kernel.space(setting.problems[-1], unit, setting.gpu)
        for unit in setting.kernel.units()
    }
    if resolved.evaluator == "gpu":
        # The evaluator itself would take the GPU for itself.
        from .timing import POLICY

        return TargetEvaluator(setting).silicon, POLICY, True, whole
    evaluator: Evaluator = make_evaluator(resolved, cache_dir)
    kept = {unit: evaluator.restrict(space, unit) for unit, space in whole.items()}
    found = evaluator.silicon, evaluator.policy, evaluator.compiles, kept
    evaluator.close()
    return found


def _compiles(resolved: Resolved, wanted: Mapping[Unit, int], shared: dict[str, int]) -> int:
    """Return how many variants a sweep compiles beyond those of the sweeps before it.

    Sweeps whose variants have one key for one config propose much the same ones: of n and m
    variants the larger number is counted.
    """
    setting = resolved.setting
    problem = setting.problems[-1]
    new = 0
    for unit, count in wanted.items():
        job = CompileJob(
            kernel=setting.kernel.name,
            problem=problem,
            unit=unit,
            config=LaunchConfig.of(),
            arch=setting.gpu.arch,
        )
        key = job.key(setting.kernel.source_hash(), TargetEvaluator(setting).toolchain)
        new += max(0, count - shared.get(key, 0))
        shared[key] = max(count, shared.get(key, 0))
    return new


def _known(resolved: Resolved, store: Store | None, silicon: Silicon, policy: str) -> int:
    if store is None:
        return 0
    setting = resolved.setting
    return store.count_known(
        kernel=setting.kernel.name,
        source_hash=setting.kernel.source_hash(),
        silicon=silicon,
        policy=policy,
        problems=setting.problems,
    )


def _rates(
    resolved: Resolved, store: Store | None, silicon: Silicon, policy: str
) -> tuple[float, float, str]:
    """Return seconds a compilation (of one core), seconds a trial, and where both come from."""
    assumed = ASSUMED_TRIAL_S.get(resolved.evaluator, ASSUMED_TRIAL_S["gpu"])
    if store is not None:
        compiled = store.compile_seconds(resolved.setting.gpu.arch)
        rate = store.seconds_a_trial(silicon, policy)
        if rate is not None:
            return compiled or ASSUMED_COMPILE_S, rate, "rates of stored sweeps on this GPU"
        if compiled is not None:
            words = f"compile rate of stored reports; assumed {assumed * 1e3:.0f} ms a trial"
            return compiled, assumed, words
    words = (
        f"assumed: {ASSUMED_COMPILE_S:g} s a compilation and core, {assumed * 1e3:.0f} ms a trial"
    )
    return ASSUMED_COMPILE_S, assumed, words


def _headroom(
    resolved: Resolved,
    problem: Problem,
    legal: Mapping[Unit, Sequence[LaunchConfig]],
    seeds: Sequence[Seed],
) -> Headroom:
    kernel, gpu = resolved.setting.kernel, resolved.setting.gpu
    today: dict[Unit, Deployed] = {}
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    deployed_us = 0.0
    for unit, points in legal.items():
        today[unit] = deployed(seeds, kernel, problem, unit, gpu)
        deployed_us += float(cost_model.rank(problem, unit, [today[unit].config], gpu)[0])
        fastest: dict[str, float] = {}
        for config, time_us in zip(
            points, cost_model.rank(problem, unit, points, gpu), strict=True
        ):
            kind = kernel.coupling(config)
            fastest[kind] = min(float(time_us), fastest.get(kind, float("inf")))
        for kind, time_us in fastest.items():
            sums[kind] = sums.get(kind, 0.0) + time_us
            counts[kind] = counts.get(kind, 0) + 1
    whole = [total for kind, total in sums.items() if counts[kind] == len(legal)]
    return Headroom(
        tokens=problem.tokens,
        deployed_us=deployed_us if isfinite(deployed_us) else None,
        best_us=min([*whole, deployed_us]),
        deployed=" and ".join(dict.fromkeys(one.source for one in today.values())),
    )


def summary(estimates: Sequence[Estimate]) -> str:
    """Return the whole cost in a sentence."""
    variants = sum(one.variants for one in estimates)
    compiles = sum(one.compiles for one in estimates)
    seconds = sum(one.seconds for one in estimates)
    return (
        f"{len(estimates)} sweeps: {variants} variants, {compiles} compilations at most, "
        f"about {spell_seconds(seconds)}; nothing was written"
    )
