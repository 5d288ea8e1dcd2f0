"""Timing the best of an earlier toolchain again, instead of sweeping again, and saying what moved."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..db import Evidence, Store, Winner, open_store
from ..db.silicon import silicon_of
from ..db.staleness import Present, Reason, in_words, reasons
from ..errors import InvalidInput
from ..kernels._kernel import Kernel
from ..search_spaces import LaunchConfig, Problem, Unit, parse_tokens
from ..topology import Gpu
from .evaluation import Evaluator, Setting
from .farm import CompileFarm
from .make import make_evaluator
from .progress import Progress, Silence
from .request import Resolved, SweepRequest, choose_evaluator, load_kernel, resolve_gpu
from .sweep import Outcomes, Variant, time_again
from .toolchain import require_target

TOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RequalifyRequest:
    """What to time again.

    Attributes:
        kernel: A name of kernels/.
        target: A GPU name, sm_NNN or a GPU's TOML; None = the GPU present, else vr200.
        model: Only this model's winners.
        tokens: Only these token counts, comma-separated.
        evaluator: auto, gpu, model or recorded:FILE.
        top: Fastest configs of each stale row that are timed again beside its winner.
        everything: Also rows that are not stale.
    """

    kernel: str = "megamoe"
    target: str | None = None
    model: str | None = None
    tokens: str | None = None
    evaluator: str = "auto"
    top: int = TOP
    everything: bool = False

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        if self.top < 1:
            raise InvalidInput(f"top is {self.top}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One row: what won before, what wins now.

    Attributes:
        before: The stale winner.
        why: Why it was stale; nothing with `everything`.
        after: The winner now; None where no config has a time any more.
        old_config_us: What the old winner's config takes now; None where it has no time.
    """

    before: Winner
    why: tuple[Reason, ...]
    after: Winner | None
    old_config_us: float | None

    @property
    def kept(self) -> bool:
        """Whether the same config wins."""
        return self.after is not None and self.after.config == self.before.config

    @property
    def share(self) -> float | None:
        """How much slower (or, negative, faster) the row is now, as a share of its time before."""
        return None if self.after is None else self.after.time_us / self.before.time_us - 1

    @property
    def displaces(self) -> bool:
        """Whether the new row stands: weaker evidence never displaces stronger."""
        return self.after is not None and self.after.evidence >= self.before.evidence

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        before, after = self.before, self.after
        return {
            "model": before.problem.shape.model,
            "tokens": before.problem.tokens,
            "unit": before.unit.value,
            "stale": [str(reason) for reason in self.why],
            "winner": "lost" if after is None else "kept" if self.kept else "changed",
            "before": {
                "config": before.config.as_dict(),
                "time_us": before.time_us,
                "evidence": before.evidence.word,
            },
            "after": None
            if after is None
            else {
                "config": after.config.as_dict(),
                "time_us": after.time_us,
                "default_time_us": after.default_time_us,
                "evidence": after.evidence.word,
            },
            "old_config_us": self.old_config_us,
            "change_percent": None if self.share is None else 100 * self.share,
            "displaces": self.displaces,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Requalified:
    """What came of it: rows by problem, token count and unit; sweeps that hold the new trials."""

    database: str
    evidence: Evidence
    rows: tuple[Moved, ...]
    sweeps: tuple[str, ...]
    variants: int
    left_out: tuple[str, ...]
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "schema": "rubin-tune.requalify/1",
            "database": self.database,
            "evidence": self.evidence.word,
            "rows": [row.as_json() for row in self.rows],
            "sweeps": list(self.sweeps),
            "variants": self.variants,
            "left_out": list(self.left_out),
            "wall_s": round(self.wall_s, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stale:
    """Winners of one problem (its token counts and units) that are timed again together."""

    resolved: Resolved
    winners: tuple[Winner, ...]
    why: Mapping[int, tuple[Reason, ...]]


def requalify(
    request: RequalifyRequest,
    *,
    database: str | Path | None = None,
    wait_s: float = 30.0,
    cache_dir: Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Requalified:
    """Time the old best configs and the default again, under the present source and toolchain.

    Old rows stay. New trials and winners are committed as a sweep commits them; broken off, the
    same command goes on with the rows that are still stale.

    Args:
        request: What to time again.
        database: URL or path; None = the user's own SQLite file.
        wait_s: Seconds to wait for a database that another process has locked.
        cache_dir: Where compiled variants are kept; None = the user's cache folder.
        jobs: Compile processes; None = one a core.
        progress: Listener.

    Raises:
        InvalidInput: there are no such winners, or what could be had here is weaker than what
            is stored.
        RubinTuneError: the run broke off.
    """
    started = time.monotonic()
    kernel = load_kernel(request.kernel)
    gpu, live = resolve_gpu(request.target)
    name, argument = choose_evaluator(request.evaluator, gpu, live)
    kernel.require(name)
    if name != "recorded":
        require_target(gpu.arch)
    with open_store(database, wait_s=wait_s, create=False) as store:
        groups = _groups(store, request, kernel, gpu)
        plan = _Planner(request, kernel, gpu, name, argument, cache_dir)
        found = plan.stale(groups)
        farm = CompileFarm(jobs=jobs, cache_dir=cache_dir)
        rows: list[Moved] = []
        sweeps = []
        variants = 0
        with closing(farm):
            for stale in found:
                with closing(make_evaluator(stale.resolved, cache_dir)) as evaluator:
                    again = _variants(store, stale, evaluator, request.top)
                    variants += len(again)
                    result, outcomes = time_again(
                        stale.resolved,
                        again,
                        evaluator=evaluator,
                        store=store,
                        farm=farm,
                        progress=progress or Silence(),
                    )
                sweeps.append(result.sweep_id)
                rows += _moved(stale, result.winners, outcomes)
        return Requalified(
            database=store.url,
            evidence=plan.evidence,
            rows=tuple(rows),
            sweeps=tuple(sweeps),
            variants=variants,
            left_out=tuple(plan.left_out),
            wall_s=time.monotonic() - started,
        )


def _groups(
    store: Store, request: RequalifyRequest, kernel: Kernel, gpu: Gpu
) -> list[list[Winner]]:
    """Return the winners asked for, by problem."""
    wanted = None if request.tokens is None else set(parse_tokens(request.tokens))
    groups: dict[str, list[Winner]] = defaultdict(list)
    for winner in store.winners(kernel=kernel.name, like=silicon_of(gpu)):
        shape = winner.problem.shape
        named = request.model in (None, shape.model, *shape.also)
        if named and (wanted is None or winner.problem.tokens in wanted):
            groups[winner.problem.at(1).key].append(winner)
    if not groups:
        of = "" if request.model is None else f" for {request.model!r}"
        at = "" if request.tokens is None else f" at {request.tokens} tokens"
        raise InvalidInput(
            f"no winners of {kernel.name}{of}{at} on {gpu.name} in {store.url!r}: run rubin-tune "
            "sweep first, or give another --target"
        )
    return list(groups.values())


@dataclass(slots=True)
class _Planner:
    """Finds what is stale, before anything is written."""

    request: RequalifyRequest
    kernel: Kernel
    gpu: Gpu
    evaluator: str
    argument: str
    cache_dir: Path | None
    evidence: Evidence = Evidence.PREDICTED
    left_out: list[str] = field(default_factory=list)

    def stale(self, groups: Sequence[Sequence[Winner]]) -> list[_Stale]:
        """Return what is stale of each group.

        A recording is of one problem: the others are left out, unless it is of none.
        """
        found: list[_Stale] = []
        refused: InvalidInput | None = None
        for group in groups:
            try:
                found += self._stale(group)
            except InvalidInput as error:
                if self.evaluator != "recorded":
                    raise
                refused = error
                self.left_out.append(f"{group[0].problem.shape.model}: {error}")
        if refused is not None and len(self.left_out) == len(groups):
            raise refused
        return found

    def _stale(self, group: Sequence[Winner]) -> Iterator[_Stale]:
        resolved = self._resolved(group)
        with closing(make_evaluator(resolved, self.cache_dir)) as evaluator:
            present = Present(
                sources={self.kernel.name: self.kernel.source_hash()},
                toolchains={self.gpu.arch: evaluator.toolchain},
                silicon=evaluator.silicon,
            )
            self.evidence = evaluator.evidence
        why: dict[int, tuple[Reason, ...]] = {}
        for winner in group:
            found = reasons(winner, present)
            if found or self.request.everything:
                why[winner.problem.tokens] = found or why.get(winner.problem.tokens, ())
        chosen = tuple(winner for winner in group if winner.problem.tokens in why)
        if chosen:
            self._refuse_weaker(chosen, why)
            yield _Stale(resolved=self._resolved(chosen), winners=chosen, why=why)

    def _refuse_weaker(
        self, winners: Sequence[Winner], why: Mapping[int, tuple[Reason, ...]]
    ) -> None:
        strongest = max(winners, key=lambda winner: winner.evidence)
        if self.request.evaluator != "auto" or self.evidence >= strongest.evidence:
            return
        said = in_words(why[strongest.problem.tokens]) or "asked for"
        here = (
            "give the recording of the new toolchain: --evaluator recorded:FILE"
            if strongest.evidence is Evidence.RECORDED
            else f"run requalify on a machine with {self.gpu.name}"
        )
        raise InvalidInput(
            f"winners of {self.kernel.name} on {self.gpu.name} are {strongest.evidence.word} "
            f"({said}) and that GPU is not in this machine: {here}; or give --evaluator "
            f"{self.evaluator}, whose rows are {self.evidence.word} and displace none"
        )

    def _resolved(self, winners: Sequence[Winner]) -> Resolved:
        problems = {winner.problem.tokens: winner.problem for winner in winners}
        ladder = sorted(problems)
        first = problems[ladder[0]]
        request = SweepRequest(
            kernel=self.kernel.name,
            model=first.shape.model,
            target=self.gpu.name,
            layout=first.layout.name,
            dtype=first.shape.weights,
            activations=first.shape.activations,
            tokens=",".join(map(str, ladder)),
            evaluator=self.request.evaluator,
            audit=0,
        )
        setting = Setting(
            kernel=self.kernel,
            gpu=self.gpu,
            problems=tuple(problems[tokens] for tokens in ladder),
            seed=0,
        )
        return Resolved(
            request=request,
            setting=setting,
            evaluator=self.evaluator,
            argument=self.argument,
            trials=self.request.top,
        )


def _variants(store: Store, stale: _Stale, evaluator: Evaluator, top: int) -> list[Variant]:
    """Return the old best and the default of each row, as far as they are legal now."""
    setting = stale.resolved.setting
    found: dict[Variant, None] = {}
    for unit in setting.kernel.units():
        whole = setting.kernel.space(setting.problems[-1], unit, setting.gpu)
        space = evaluator.restrict(whole, unit)
        legal = set(space.legal())
        for winner in stale.winners:
            if winner.unit is not unit:
                continue
            default = _default(setting, evaluator, winner.problem, unit)
            for config in (default, winner.config, *_best(store, winner, top)):
                now = space.canonical(_completed(config, default))
                if now in legal:
                    found[unit, now] = None
    return list(found)


def _default(setting: Setting, evaluator: Evaluator, problem: Problem, unit: Unit) -> LaunchConfig:
    config = setting.kernel.default(problem, unit, setting.gpu)
    return evaluator.stand_in(problem.tokens, config)


def _completed(config: LaunchConfig, default: LaunchConfig) -> LaunchConfig:
    """Return a config of an older space in the present one's axes; new ones as the default's."""
    own = config.as_dict()
    return LaunchConfig.of({name: own.get(name, value) for name, value in default.items})


def _best(store: Store, winner: Winner, top: int) -> list[LaunchConfig]:
    """Return the fastest configs of the trials that a winner was chosen from."""
    trials = store.trials_for(
        kernel=winner.kernel,
        source_hash=winner.source_hash,
        silicon=winner.silicon,
        toolchain=winner.toolchain,
        policy=winner.policy,
        problems=[winner.problem],
        units=[winner.unit],
    )
    timed = [(trial.time_us, trial.config.key, trial.config) for trial in trials if trial.time_us]
    return [config for *_, config in sorted(timed, key=lambda one: one[:2])[:top]]


def _moved(stale: _Stale, winners: Sequence[Winner], outcomes: Outcomes) -> Iterator[Moved]:
    """Say of every row that was stale what became of it; glue has nothing to choose."""
    now = {(winner.problem.tokens, winner.unit): winner for winner in winners}
    order = sorted(stale.winners, key=lambda winner: (winner.problem.tokens, winner.unit.value))
    for before in order:
        if before.unit is Unit.GLUE:
            continue
        tokens, unit = before.problem.tokens, before.unit
        after = now.get((tokens, unit))
        held = outcomes.get(unit, {}).get(tokens, {}).get(before.config)
        same = after is not None and after.config == before.config
        yield Moved(
            before=before,
            why=stale.why[tokens],
            after=after,
            old_config_us=after.time_us if same and after else (held.time_us if held else None),
        )
