"""The main job: compile -> prune -> predict -> evaluate -> choose, every trial committed as it ends."""

from __future__ import annotations

import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from math import inf
from pathlib import Path

from ..db import CompileReport, Rejected, Seed, Spent, Store, Trial, Winner, open_store
from ..errors import DatabaseGone
from ..search_spaces import LaunchConfig, Unit
from . import audit, cost_model
from .budget import Budget, Enough, progress_note
from .choose import couple, timed
from .compile import over_limits
from .edges import pinned
from .evaluation import Evaluator, LayerOutcome, Outcome
from .farm import CompileFarm, CompileJob
from .imports import Baseline, baselines, over_baselines
from .layer import layer_config
from .make import make_evaluator
from .portfolio import Column, Portfolio, choose, held_to
from .progress import Progress, Silence
from .prune import doubtful_later
from .request import Resolved, SweepRequest, resolve
from .result import Counts, SweepResult
from .search import UnitSearch
from .warm_start import warm_starts

# Share of the trials that defaults, warm starts and heads of the cost model's ranking fill before the
# sampler is asked.
PRIOR_SHARE = 0.25
# Couplings, and configs of each coupling, that are measured again together.
FINAL_COUPLINGS = 4
FINAL_CONFIGS = 2
# Ways to fit units together whose whole layers are compared.
FINAL_LAYERS = 3

# Marks the policy of trials that were measured together, to choose between them.
FINAL = "+final"

Variant = tuple[Unit, LaunchConfig]
Outcomes = dict[Unit, dict[int, dict[LaunchConfig, Outcome]]]
Report = CompileReport | Rejected | None


def sweep(
    request: SweepRequest,
    *,
    database: str | Path | None = None,
    wait_s: float = 30.0,
    cache_dir: Path | None = None,
    jobs: int | None = None,
    fresh: bool = False,
    wait_gpu_s: float = 0.0,
    progress: Progress | None = None,
) -> SweepResult:
    """Tune a kernel for a problem's token ladder and return the winners.

    Every trial is committed before the next starts; the same request again goes on where it was broken
    off, and returns at once when it was finished.

    Args:
        request: What to tune.
        database: URL or path; None = the user's own SQLite file.
        wait_s: Seconds to wait for a database that another process has locked or that is gone.
        cache_dir: Where compiled variants are kept; None = the user's cache folder.
        jobs: Compile processes; None = one a core.
        fresh: Measure again what is already in the database.
        wait_gpu_s: Seconds to wait for a GPU that another sweep holds or another process uses.
        progress: Listener.

    Raises:
        RubinTuneError: the request makes no sense (nothing was written), or the run broke off.
    """
    started = time.monotonic()
    resolved = resolve(request)
    farm = CompileFarm(jobs=jobs, cache_dir=cache_dir)
    with (
        closing(make_evaluator(resolved, cache_dir)) as evaluator,
        closing(farm),
        open_store(database, wait_s=wait_s) as store,
    ):
        run = _Run(
            resolved=resolved,
            evaluator=evaluator,
            store=store,
            farm=farm,
            progress=progress or Silence(),
            started=started,
            fresh=fresh,
            wait_gpu_s=wait_gpu_s,
        )
        return run.result()


def time_again(
    resolved: Resolved,
    variants: Sequence[Variant],
    *,
    evaluator: Evaluator,
    store: Store,
    farm: CompileFarm,
    progress: Progress | None = None,
) -> tuple[SweepResult, Outcomes]:
    """Evaluate these variants only, choose among them as a sweep does, and commit both.

    Returns:
        The result, and every outcome by unit, token count and config.

    Raises:
        RubinTuneError: the run broke off; what was committed is kept.
    """
    run = _Run(
        resolved=resolved,
        evaluator=evaluator,
        store=store,
        farm=farm,
        progress=progress or Silence(),
        started=time.monotonic(),
        fresh=False,
    )
    return run.over(variants), run.outcomes


@dataclass(slots=True, kw_only=True)
class _Run:
    """One sweep under way."""

    resolved: Resolved
    evaluator: Evaluator
    store: Store
    farm: CompileFarm
    progress: Progress
    started: float
    fresh: bool
    wait_gpu_s: float = 0.0
    sweep_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    outcomes: Outcomes = field(default_factory=dict)
    reports: dict[Variant, CompileReport] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    stopped: bool = False
    audited: set[Variant] = field(default_factory=set)
    portfolio: Portfolio | None = None
    references: dict[int, float] = field(default_factory=dict)
    source_hash: str = field(init=False)
    budget: Budget = field(init=False)
    enough: Enough = field(init=False)

    def __post_init__(self) -> None:
        """Read the kernel's sources once: every trial of a run is of the code that was imported."""
        self.source_hash = self.resolved.setting.kernel.source_hash()
        self.store.outages.says = self.progress.say
        request = self.resolved.request
        self.budget = Budget(seconds=request.budget_s, started=self.started)
        self.enough = Enough(until=request.until, units=self.resolved.setting.kernel.units())

    def result(self) -> SweepResult:
        """Return stored winners if this very sweep was finished before; else run it."""
        fingerprint = self.resolved.fingerprint(
            self.source_hash,
            self.evaluator.silicon.key,
            self.evaluator.toolchain.key,
            self.evaluator.policy,
        )
        done = None if self.fresh else self.store.finished_sweep(fingerprint)
        if done is not None:
            winners = tuple(self.store.winners(sweep_id=done))
            self.sweep_id = done
            self.counts = replace(self._stored_counts(done), reused=self.store.count_trials(done))
            held = self.store.portfolio(done)
            self.portfolio = None if held is None else Portfolio.from_json(held)
            return self._result(winners, complete=True)
        self.evaluator.hold(self.wait_gpu_s, self.progress.say)
        self.store.begin_sweep(self.sweep_id, fingerprint, asdict(self.resolved.request))
        try:
            self._search()
        except KeyboardInterrupt:
            # What was committed stays; the same command goes on from here.
            self._note_stop()
            raise
        winners = tuple(self._choose())
        if self.resolved.request.portfolio is not None and winners:
            winners = self._held_to_set(winners, self.resolved.request.portfolio)
        winners = self._pinned(winners)
        self.store.add_winners(winners)
        if self.portfolio is not None:
            self.store.put_portfolio(self.sweep_id, self.portfolio.as_json())
        if self.stopped:
            self.store.stop_sweep(self.sweep_id)
        else:
            self.store.finish_sweep(self.sweep_id, asdict(self.counts))
        return self._result(winners, complete=not self.stopped)

    def over(self, variants: Sequence[Variant]) -> SweepResult:
        """Evaluate and choose among given variants; never taken for a sweep's own result."""
        fingerprint = f"again:{self.sweep_id}"
        self.evaluator.hold(self.wait_gpu_s, self.progress.say)
        self.store.begin_sweep(self.sweep_id, fingerprint, asdict(self.resolved.request))
        self.outcomes = {unit: defaultdict(dict) for unit in self.resolved.setting.kernel.units()}
        self.progress.stage("variants", len(variants))
        try:
            self._evaluate(variants, self._known(), {})
        except KeyboardInterrupt:
            self._note_stop()
            raise
        winners = self._pinned(tuple(self._choose()))
        self.store.add_winners(winners)
        self.store.finish_sweep(self.sweep_id, asdict(self.counts))
        return self._result(winners, complete=True)

    def _note_stop(self) -> None:
        """Note that the sweep was interrupted, where the database is there: its user waits for nothing more."""
        self.store.outages.wait_s = 0.0
        try:
            self.store.stop_sweep(self.sweep_id)
        except DatabaseGone as error:
            self.progress.say(str(error))

    def _result(self, winners: Sequence[Winner], *, complete: bool) -> SweepResult:
        return SweepResult(
            resolved=self.resolved,
            sweep_id=self.sweep_id,
            database=self.store.url,
            evidence=self.evaluator.evidence,
            counts=self.counts,
            winners=tuple(winners),
            wall_s=time.monotonic() - self.started,
            complete=complete,
            portfolio=self.portfolio,
            baselines=self._over_baselines(winners),
            refused=self._refused(),
            outages_s=tuple(self.store.outages.seconds),
        )

    def _refused(self) -> dict[str, int]:
        """Return how many variants of this run were refused at some token count, by why."""
        whys = {
            (unit, config, outcome.rejected.why.value)
            for unit, tables in self.outcomes.items()
            for table in tables.values()
            for config, outcome in table.items()
            if outcome.rejected is not None
        }
        return dict(sorted(Counter(why for *_, why in whys).items()))

    def _stored_counts(self, sweep_id: str) -> Counts:
        return Counts(**self.store.sweep_counts(sweep_id))

    # Searching

    def _search(self) -> None:
        setting, request = self.resolved.setting, self.resolved.request
        units = setting.kernel.units()
        self.evaluator.warm_up()
        self.progress.stage("space", len(units) * len(setting.ladder))
        searches = {unit: self._open(unit) for unit in units}
        self.outcomes = {unit: defaultdict(dict) for unit in units}
        known = {} if self.fresh else self._known()
        self.progress.stage("variants", len(units) * (self.resolved.trials + request.audit))
        self._evaluate(self._proposals(searches), known, searches)
        if not self.stopped:
            self._audit(known, searches)

    def _proposals(self, searches: Mapping[Unit, UnitSearch]) -> Iterator[Variant]:
        """Yield variants in turns of the units, each decided on when it is asked for."""
        trials = self.resolved.trials
        left = dict.fromkeys(searches, trials)
        begun = [
            [(unit, config) for config in self._first(unit, search)]
            for unit, search in searches.items()
        ]
        for variant in chain.from_iterable(zip_longest(*begun)):
            if variant is not None:
                yield from self._with_partners(variant, searches, left)
        open_ = list(searches)
        while open_ and not self._gained_enough():
            for unit in tuple(open_):
                asked = searches[unit].ask(1) if left[unit] > 0 else []
                if asked:
                    yield from self._with_partners((unit, asked[0]), searches, left)
                else:
                    open_.remove(unit)

    def _with_partners(
        self, variant: Variant, searches: Mapping[Unit, UnitSearch], left: dict[Unit, int]
    ) -> Iterator[Variant]:
        """Yield a variant, and the same config of units that must have it too."""
        unit, config = variant
        left[unit] -= 1
        yield variant
        for other, search in searches.items():
            for joined in search.join(config) if other is not unit else ():
                left[other] -= 1
                yield other, joined

    def _step(self) -> int:
        """Variants a unit that the sampler is asked for at a time."""
        return max(2, self.resolved.trials // 8)

    def _gained_enough(self) -> bool:
        # The audit comes after the search: what it times does not bring the search back.
        return not self.audited and self.enough.reached(self._step())

    def _audit(
        self,
        known: Mapping[tuple[Unit, int, LaunchConfig], Trial],
        searches: Mapping[Unit, UnitSearch],
    ) -> None:
        """Time a few points that were pruned or rank low.

        Low-ranked ones may win like all others; pruned ones are no points of the space, and what
        they show is that a rule is wrong.
        """
        request = self.resolved.request
        drawn = [
            (unit, config)
            for unit, search in searches.items()
            for config in audit.sample(
                search.space, search.heads, search.seen, request.audit, request.seed
            )
        ]
        self.audited.update(drawn)
        self._evaluate(drawn, known, searches)
        found = audit.judge(self.outcomes, self.audited)
        for unit, config in drawn:
            if not searches[unit].space.contains(config):
                for table in self.outcomes[unit].values():
                    table.pop(config, None)
        self.counts = replace(self.counts, audited=found.timed, misranked=found.misranked)

    def _open(self, unit: Unit) -> UnitSearch:
        setting = self.resolved.setting
        problem = setting.problems[-1]
        space = self.evaluator.restrict(setting.kernel.space(problem, unit, setting.gpu), unit)
        legal = space.legal()
        self.counts = replace(
            self.counts,
            space=self.counts.space + space.size,
            legal=self.counts.legal + len(legal),
        )
        rankings = {}
        for one in setting.problems:
            times = cost_model.rank(one, unit, legal, setting.gpu)
            rankings[one.tokens] = [[legal[i] for i in times.argsort(kind="stable")]]
            self.progress.step()
        return UnitSearch(
            space=space,
            rankings=rankings,
            sampler=self.resolved.request.sampler,
            seed=self.resolved.request.seed,
            coupling=setting.kernel.coupling,
        )

    def _first(self, unit: Unit, search: UnitSearch) -> list[LaunchConfig]:
        """Return defaults and imported rows, which winners are compared with, what won nearby, and heads."""
        setting = self.resolved.setting
        defaults = [self._default(unit, tokens) for tokens in setting.ladder]
        warm = warm_starts(self.store, setting.kernel.name, setting.problems, unit, search.space)
        imported = [seed.config for seed in self._baselines(unit).values()]
        always = list(dict.fromkeys([*defaults, *imported, *warm]))
        count = max(len(always), int(self.resolved.trials * PRIOR_SHARE))
        return search.first(min(count, self.resolved.trials), always)

    def _baselines(self, unit: Unit) -> dict[int, Seed]:
        """Return an imported table's rows at each token count, as points that can be evaluated."""
        setting = self.resolved.setting
        space = setting.kernel.space(setting.problems[-1], unit, setting.gpu)
        found = baselines(self.store, setting, unit, space)
        return {
            tokens: seed.moved_to(self.evaluator.stand_in(tokens, seed.config))
            for tokens, seed in found.items()
        }

    def _over_baselines(self, winners: Sequence[Winner]) -> tuple[Baseline, ...]:
        rows = {unit: self._baselines(unit) for unit in self.resolved.setting.kernel.units()}
        if not all(rows.values()):
            return ()
        return over_baselines(rows, self._known().values(), winners)

    def _default(self, unit: Unit, tokens: int) -> LaunchConfig:
        setting = self.resolved.setting
        config = setting.kernel.default(setting.problem(tokens), unit, setting.gpu)
        return self.evaluator.stand_in(tokens, config)

    def _out_of_time(self) -> bool:
        return self.budget.spent

    # Evaluating

    def _known(self, policy: str | None = None) -> dict[tuple[Unit, int, LaunchConfig], Trial]:
        setting = self.resolved.setting
        trials = self.store.trials_for(
            kernel=setting.kernel.name,
            source_hash=self.source_hash,
            problems=setting.problems,
            silicon=self.evaluator.silicon,
            toolchain=self.evaluator.toolchain,
            policy=policy or self.evaluator.policy,
        )
        return {(t.unit, t.problem.tokens, t.config): t for t in trials}

    def _evaluate(
        self,
        variants: Iterable[Variant],
        known: Mapping[tuple[Unit, int, LaunchConfig], Trial],
        searches: Mapping[Unit, UnitSearch],
    ) -> None:
        """Recall or judge variants until they end or time is up; each is told before the next is drawn."""
        ladder = self.resolved.setting.ladder
        stored = {
            variant: trials
            for variant in {(unit, config) for unit, _, config in known}
            if all(trials := [known.get((variant[0], t, variant[1])) for t in ladder])
        }
        for variant, report, found in self._judged(variants, stored):
            unit, config = variant
            if found is None:
                self._recall(unit, config, [t for t in stored[variant] if t is not None])
            else:
                self._commit(unit, config, report, found)
            self._tell(searches.get(unit), unit, config)
            self.progress.step("reused" if variant in stored else self._note(unit))
            if self._out_of_time():
                self.stopped = True
                return
            if self._gained_enough():
                return

    def _tell(self, search: UnitSearch | None, unit: Unit, config: LaunchConfig) -> None:
        times = self._times(unit, config)
        if search is not None:
            search.tell(config, times)
        if (unit, config) not in self.audited:
            self.enough.note(unit, times)

    def _recall(self, unit: Unit, config: LaunchConfig, trials: Iterable[Trial]) -> None:
        for trial in trials:
            if trial.compile is not None:
                self.reports[unit, config] = trial.compile
            self.outcomes[unit][trial.problem.tokens][config] = _outcome_of(trial)
            self.counts = replace(self.counts, reused=self.counts.reused + 1)
        self._count(unit, config)

    def _compiled(
        self, variants: Iterable[Variant], stored: Container[Variant]
    ) -> Iterator[tuple[Variant, Report]]:
        """Compile ahead of the caller what is not stored, where the evaluator needs it compiled."""
        setting = self.resolved.setting

        def job(variant: Variant) -> CompileJob | None:
            if variant in stored or not self.evaluator.compiles:
                return None
            unit, config = variant
            return CompileJob(
                kernel=setting.kernel.name,
                problem=setting.problems[-1],
                unit=unit,
                config=config,
                arch=setting.gpu.arch,
            )

        if not self.evaluator.compiles:
            return ((variant, None) for variant in variants)
        return self.farm.stream((variant, job(variant)) for variant in variants)

    def _judged(
        self, variants: Iterable[Variant], stored: Container[Variant]
    ) -> Iterator[tuple[Variant, Report, Mapping[int, Outcome] | None]]:
        """Yield variants with their outcomes (None = stored), one being evaluated ahead of the caller.

        While the caller commits a variant and the search decides on a further one, the GPU is at
        the next.
        """
        lane = ThreadPoolExecutor(1)
        line: deque[tuple[Variant, Report, Future[Mapping[int, Outcome] | None]]] = deque()
        compiled = self._compiled(variants, stored)
        try:
            for variant, report in doubtful_later(compiled, self.resolved.setting.gpu):
                best = self._best(variant[0])
                work = (
                    _nothing if variant in stored else partial(self._judge, variant, report, best)
                )
                line.append((variant, report, lane.submit(work)))
                if len(line) > 1:
                    done, told, future = line.popleft()
                    yield done, told, future.result()
            for done, told, future in line:
                yield done, told, future.result()
        finally:
            # Where the caller left early the evaluator is closed next, which ends what runs.
            lane.shutdown(wait=False, cancel_futures=True)

    def _judge(
        self, variant: Variant, report: Report, best_us: Mapping[int, float]
    ) -> Mapping[int, Outcome]:
        """Return a variant's outcome at every token count; runs beside the caller, changes nothing of ours."""
        setting = self.resolved.setting
        unit, config = variant
        if isinstance(report, CompileReport):
            report = over_limits(config, report, setting.gpu) or report
        if isinstance(report, Rejected):
            return {tokens: Outcome.refused(report) for tokens in setting.ladder}
        return self.evaluator.evaluate(unit, config, report, best_us)

    def _commit(
        self, unit: Unit, config: LaunchConfig, report: Report, found: Mapping[int, Outcome]
    ) -> None:
        if isinstance(report, CompileReport):
            self.reports[unit, config] = report
        for tokens, outcome in found.items():
            self.outcomes[unit][tokens][config] = outcome
            self.store.add_trial(self._trial(unit, tokens, outcome), fresh=self.fresh)
        self._count(unit, config)

    def _count(self, unit: Unit, config: LaunchConfig) -> None:
        outcomes = [table[config] for table in self.outcomes[unit].values() if config in table]
        has_time = sum(o.time_us is not None for o in outcomes)
        cubins = {r.cubin_sha256 for r in self.reports.values()}
        self.counts = replace(
            self.counts,
            compiled=len(self.reports),
            cubins=len(cubins),
            failed=self.counts.failed + (has_time == 0),
            evaluated=self.counts.evaluated + has_time,
        )

    def _best(self, unit: Unit) -> dict[int, float]:
        best = {}
        for tokens, table in self.outcomes[unit].items():
            times = [o.time_us for o in table.values() if o.time_us is not None]
            if times:
                best[tokens] = min(times)
        return best

    def _times(self, unit: Unit, config: LaunchConfig) -> dict[int, float | None]:
        tables = self.outcomes[unit]
        return {
            tokens: table[config].time_us for tokens, table in tables.items() if config in table
        }

    def _note(self, unit: Unit) -> str:
        request, units = self.resolved.request, len(self.outcomes)
        return progress_note(
            unit,
            self._best(unit),
            self.evaluator.evidence.word,
            done=sum(
                len({c for t in tables.values() for c in t}) for tables in self.outcomes.values()
            ),
            total=units * (self.resolved.trials + request.audit),
            left=self.budget.left,
        )

    def _trial(self, unit: Unit, tokens: int, outcome: Outcome, policy: str = "") -> Trial:
        setting = self.resolved.setting
        return Trial(
            sweep_id=self.sweep_id,
            kernel=setting.kernel.name,
            source_hash=self.source_hash,
            problem=setting.problem(tokens),
            unit=unit,
            config=outcome.config,
            silicon=self.evaluator.silicon,
            toolchain=self.evaluator.toolchain,
            policy=policy or self.evaluator.policy,
            evidence=self.evaluator.evidence,
            time_us=outcome.time_us,
            interval_us=outcome.interval_us,
            compile=self.reports.get((unit, outcome.config)),
            prediction=outcome.prediction,
            measurement=outcome.measurement,
            rejected=outcome.rejected,
            error=outcome.error,
            spent=Spent(
                at_s=time.monotonic() - self.started,
                verify_s=outcome.verify_s,
                time_s=outcome.time_s,
            ),
        )

    # Choosing

    def _choose(self) -> Iterator[Winner]:
        ladder = self.resolved.setting.ladder
        self.progress.stage("finalists", len(ladder))
        for tokens in ladder:
            yield from self._choose_at(tokens)
            self.progress.step()

    def _pinned(self, winners: Sequence[Winner]) -> tuple[Winner, ...]:
        """Return the winners with their edges, from every trial of these problems."""
        final = self._known(f"{self.evaluator.policy}{FINAL}")
        return pinned(winners, self._known().values(), final.values())

    def _held_to_set(self, winners: Sequence[Winner], cap: int) -> tuple[Winner, ...]:
        """Return the winners of the smallest set of configs that serves the ladder (portfolio.py)."""
        units = self.resolved.setting.kernel.units()
        won: dict[int, dict[Unit, Winner]] = defaultdict(dict)
        for winner in winners:
            if winner.unit in units:
                won[winner.problem.tokens][winner.unit] = winner
        ladder = {tokens: self._column(tokens, own) for tokens, own in won.items()}
        chosen = choose(ladder, self.resolved.setting.kernel.coupling, cap=cap)
        self.references = {t: sum(w.time_us for w in own.values()) for t, own in won.items()}
        rows: list[Winner] = []
        for tokens, own in won.items():
            there = [w for w in winners if w.problem.tokens == tokens]
            if not all(winner.config in chosen.of(unit) for unit, winner in own.items()):
                there = self._choose_within(tokens, dict(chosen.configs), own) or there
            rows += there
        self.portfolio = held_to(chosen, rows, self.references)
        return tuple(rows)

    def _column(self, tokens: int, won: Mapping[Unit, Winner]) -> Column:
        times = {
            unit: {c: o.time_us for c, o in self.outcomes[unit][tokens].items() if o.time_us}
            for unit in won
        }
        picks = {unit: winner.config for unit, winner in won.items()}
        defaults = {unit: self._default(unit, tokens) for unit in won}
        return Column(times_us=times, winner=picks, default=defaults)

    def _choose_at(self, tokens: int) -> list[Winner]:
        units = self.resolved.setting.kernel.units()
        defaults = {unit: self._default(unit, tokens) for unit in units}
        finals = {}
        for unit in units:
            configs = self._finalists(unit, tokens, defaults[unit])
            if configs:
                finals[unit] = list(self.evaluator.together(unit, tokens, configs).values())
        return self._rows_of(tokens, finals, defaults)

    def _choose_within(
        self,
        tokens: int,
        within: Mapping[Unit, Sequence[LaunchConfig]],
        won: Mapping[Unit, Winner],
    ) -> list[Winner]:
        """Return the rows of one token count from a set and the default only.

        What won without that limit is timed beside them, so that the loss is known.
        """
        defaults = {unit: self._default(unit, tokens) for unit in won}
        finals: dict[Unit, list[Outcome]] = {}
        reference = 0.0
        for unit, winner in won.items():
            known = self.outcomes[unit][tokens]
            allowed = [
                c for c in (*within[unit], defaults[unit]) if c in known and known[c].time_us
            ]
            asked = list(dict.fromkeys([*allowed, winner.config]))
            found = self.evaluator.together(unit, tokens, asked)
            finals[unit] = [outcome for config, outcome in found.items() if config in allowed]
            again = found.get(winner.config)
            reference += (again and again.time_us) or winner.time_us
        self.references[tokens] = reference
        return self._rows_of(tokens, finals, defaults)

    def _rows_of(
        self,
        tokens: int,
        finals: Mapping[Unit, Sequence[Outcome]],
        defaults: Mapping[Unit, LaunchConfig],
    ) -> list[Winner]:
        """Return the rows of one token count from outcomes that were timed together."""
        kernel = self.resolved.setting.kernel
        units = kernel.units()
        if any(not timed(finals.get(unit, [])) for unit in units):
            return []
        options = couple(finals, defaults, kernel.coupling, kernel.glue)[:FINAL_LAYERS]
        if not options:
            return []
        *layers, base = self.evaluator.layers(tokens, [*map(_configs, options), defaults])
        times = [o.layer.time_us if o.layer.time_us is not None else inf for o in layers]
        best = times.index(min(times))
        chosen, layer = options[best], layers[best]
        held = _defaults(finals, defaults)
        if held and base.layer.time_us is not None and times[best] > base.layer.time_us:
            # What the GEMMs gain, the rest of the layer loses.
            chosen, layer = held, base
        rows = [
            self._winner(unit, tokens, outcome, held.get(unit, outcome))
            for unit, outcome in chosen.items()
        ]
        return [*rows, *self._surroundings(tokens, layer, base, chosen, defaults)]

    def _finalists(self, unit: Unit, tokens: int, default: LaunchConfig) -> list[LaunchConfig]:
        """Return the default and the best configs of the best couplings (by time summed over units).

        Of each coupling the best for every kind of glue are kept: whole layers decide between them.
        """
        kernel = self.resolved.setting.kernel
        sums: dict[str, float] = defaultdict(float)
        seen: dict[str, int] = defaultdict(int)
        for table in self.outcomes.values():
            best: dict[str, float] = {}
            for outcome in timed(list(table[tokens].values())):
                best.setdefault(kernel.coupling(outcome.config), outcome.time_us or 0.0)
            for name, time_us in best.items():
                sums[name] += time_us
                seen[name] += 1
        whole = [name for name in sums if seen[name] == len(self.outcomes)]
        kept = sorted(whole, key=lambda name: (sums[name], name))[:FINAL_COUPLINGS]
        ranked = timed(list(self.outcomes[unit][tokens].values()))
        taken: dict[tuple[str, str], int] = defaultdict(int)
        configs = []
        for outcome in ranked:
            kind = kernel.coupling(outcome.config), kernel.glue(unit, outcome.config)
            if kind[0] in kept and taken[kind] < FINAL_CONFIGS:
                taken[kind] += 1
                configs.append(outcome.config)
        if any(o.config == default for o in ranked):
            configs.insert(0, default)
        return list(dict.fromkeys(configs))

    def _surroundings(
        self,
        tokens: int,
        layer: LayerOutcome,
        base: LayerOutcome,
        chosen: Mapping[Unit, Outcome],
        defaults: Mapping[Unit, LaunchConfig],
    ) -> list[Winner]:
        kernel = self.resolved.setting.kernel
        rows = []
        if layer.glue is not None:
            # Glue has nothing to tune: its row says what these GEMMs' glue takes; layers are compared.
            glue = replace(layer.glue, config=LaunchConfig(()))
            rows.append(self._winner(Unit.GLUE, tokens, glue, glue))
        if layer.layer.time_us is not None and base.layer.time_us is not None:
            own = replace(layer.layer, config=layer_config(kernel, _configs(chosen)))
            other = replace(base.layer, config=layer_config(kernel, defaults))
            parts = tuple((unit.value, o.config) for unit, o in chosen.items())
            rows.append(replace(self._winner(Unit.LAYER, tokens, own, other), parts=parts))
        return rows

    def _winner(self, unit: Unit, tokens: int, outcome: Outcome, default: Outcome) -> Winner:
        setting = self.resolved.setting
        if unit is not Unit.GLUE:
            # The default's time of the same rounds is kept too: with its interval a gain can be judged.
            final = f"{self.evaluator.policy}{FINAL}"
            for one in {default.config: default, outcome.config: outcome}.values():
                self.store.add_trial(self._trial(unit, tokens, one, final), fresh=True)
        time_us = outcome.time_us or 0.0
        base_us = default.time_us if default.time_us is not None else time_us
        return Winner(
            sweep_id=self.sweep_id,
            kernel=setting.kernel.name,
            source_hash=self.source_hash,
            problem=setting.problem(tokens),
            unit=unit,
            config=outcome.config,
            time_us=time_us,
            interval_us=outcome.interval_us or (time_us, time_us),
            default_config=default.config,
            default_time_us=base_us,
            evidence=self.evaluator.evidence,
            silicon=self.evaluator.silicon,
            toolchain=self.evaluator.toolchain,
            policy=self.evaluator.policy,
            compile=self.reports.get((unit, outcome.config)),
        )


def _nothing() -> None:
    """Stand for the evaluation of what is stored."""


def _configs(chosen: Mapping[Unit, Outcome]) -> dict[Unit, LaunchConfig]:
    return {unit: outcome.config for unit, outcome in chosen.items()}


def _defaults(
    finals: Mapping[Unit, Sequence[Outcome]], defaults: Mapping[Unit, LaunchConfig]
) -> dict[Unit, Outcome]:
    """Return the defaults' outcomes, or nothing where one of them has no time."""
    held = {
        unit: next((o for o in outcomes if o.config == defaults[unit]), None)
        for unit, outcomes in finals.items()
    }
    found = {unit: o for unit, o in held.items() if o is not None and o.time_us is not None}
    return found if len(found) == len(finals) else {}


def _outcome_of(trial: Trial) -> Outcome:
    return Outcome(
        config=trial.config,
        time_us=trial.time_us,
        interval_us=trial.interval_us,
        measurement=trial.measurement,
        prediction=trial.prediction,
        rejected=trial.rejected,
        error=trial.error,
    )
