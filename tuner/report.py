"""What one sweep found, read from the database: winners, trials, roofs, predictions, refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from ..db import Evidence, Store, SweepNote, Trial, Winner, open_store
from ..errors import InvalidConfig, InvalidInput, UnknownFact
from ..kernels._kernel import Kernel
from ..search_spaces import (
    GEMMS,
    LaunchConfig,
    Problem,
    Unit,
    expected_active_experts,
    expected_rows,
)
from ..topology import Gpu, gpu_names, load_gpu
from . import choose, cost_model
from .evaluation import Outcome, Setting
from .physics import floor_us, rate_name
from .report_parts import FEWEST_PAIRS, agreements_of, refusals_of, seconds_of
from .report_records import (
    Agreement,
    Floor,
    Point,
    Report,
    Roofs,
    Step,
    Variant,
    Verdict,
)
from .report_words import command_of, summary_of
from .request import load_kernel
from .sweep import FINAL

Key = tuple[Unit, int, LaunchConfig]
Row = Winner | Trial


def report(
    sweep_id: str | None = None, *, database: str | Path | None = None, wait_s: float = 30.0
) -> Report:
    """Return everything that the database knows of a sweep.

    Args:
        sweep_id: Its id or the beginning of one; None = the newest finished, else the newest.
        database: URL or path; None = the user's own SQLite file.
        wait_s: Seconds to wait for a database that another process has locked.

    Raises:
        InvalidInput: no such sweep, or nothing is stored of it.
        DatabaseRefused: no such database.
    """
    with open_store(database, wait_s=wait_s, create=False) as store:
        note = find_note(store, sweep_id)
        return _Material.of(store, note).report()


def find_note(store: Store, sweep_id: str | None) -> SweepNote:
    """Return the sweep that an id, the beginning of one, or None (the newest) means.

    Raises:
        InvalidInput: none, or several.
    """
    notes = store.sweep_notes()
    if not notes:
        raise InvalidInput(f"database {store.url!r} holds no sweep: run rubin-tune sweep first")
    if sweep_id is None:
        finished = [note for note in notes if note.state == "finished"]
        return (finished or notes)[-1]
    exact = [note for note in notes if note.sweep_id == sweep_id]
    found = exact or [note for note in notes if sweep_id and note.sweep_id.startswith(sweep_id)]
    if len(found) == 1:
        return found[0]
    newest = ", ".join(note.sweep_id for note in (found or notes)[:-6:-1])
    if found:
        raise InvalidInput(f"sweep {sweep_id!r} means {len(found)}: write more of {newest}")
    raise InvalidInput(
        f"unknown sweep {sweep_id!r}: database {store.url!r} has none of that name; "
        f"its newest are {newest}"
    )


def rows_of(store: Store, note: SweepNote) -> tuple[Row, ...]:
    """Return a sweep's winners, then the trials that are its own.

    Raises:
        InvalidInput: it has none.
    """
    winners = store.winners(sweep_id=note.sweep_id)
    rows: tuple[Row, ...] = (*winners, *store.trials_of(note.sweep_id))
    if not rows:
        raise InvalidInput(
            f"sweep {note.sweep_id!r} ({note.state}) holds no trial and no winner: "
            "run the same rubin-tune sweep again"
        )
    return rows


def trials_behind(store: Store, rows: Sequence[Row]) -> list[Trial]:
    """Return the search's trials under the keys that rows share, whichever sweep stored them.

    A trial that an earlier sweep stored keeps that sweep's id.
    """
    row = rows[0]
    return store.trials_for(
        kernel=row.kernel,
        source_hash=row.source_hash,
        silicon=row.silicon,
        toolchain=row.toolchain,
        policy=row.policy.removesuffix(FINAL),
        problems=_problems(rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Material:
    """A sweep's rows, before anything is made of them."""

    note: SweepNote
    database: str
    winners: tuple[Winner, ...]
    searched: tuple[Trial, ...]
    finals: dict[Key, Trial]
    kernel: Kernel
    setting: Setting | None
    why_no_gpu: str

    @classmethod
    def of(cls, store: Store, note: SweepNote) -> _Material:
        """Read a sweep's winners, its own trials, and those it found under the same keys."""
        rows = rows_of(store, note)
        winners = tuple(row for row in rows if isinstance(row, Winner))
        own = [row for row in rows if isinstance(row, Trial)]
        searched = tuple(trials_behind(store, rows))
        finals = {_key(t): t for t in own if t.policy.endswith(FINAL)}
        kernel = load_kernel(rows[0].kernel)
        problems = _problems(rows)
        gpu = _gpu_of(rows[0])
        setting = None
        if gpu is not None:
            setting = Setting(kernel=kernel, gpu=gpu, problems=problems, seed=0)
        return cls(
            note=note,
            database=store.url,
            winners=winners,
            searched=searched,
            finals=finals,
            kernel=kernel,
            setting=setting,
            why_no_gpu="" if gpu else "no GPU of that silicon is described in topology/gpus",
        )

    @property
    def rows(self) -> tuple[Row, ...]:
        """Winners, then trials; all share kernel, source, silicon, toolchain and layer."""
        return (*self.winners, *self.searched)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The ladder."""
        return _problems(self.rows)

    def report(self) -> Report:
        """Make the report of the rows."""
        first = self.rows[0]
        variants, points, predicted_from = self._points()
        verdicts = tuple(self._verdict(w) for w in _in_order(self.winners))
        agreements = agreements_of(variants, points)
        roofs, no_roofs_because = self._roofs()
        refusals = refusals_of(self.searched)
        return Report(
            note=self.note,
            database=self.database,
            kernel=first.kernel,
            source_hash=first.source_hash,
            current_source_hash=self.kernel.source_hash(),
            problem=self.problems[0],
            silicon=first.silicon,
            toolchain=first.toolchain,
            policy=first.policy.removesuffix(FINAL),
            evidence=min(row.evidence for row in self.rows),
            command=command_of(self.note.request, first.silicon),
            summary=summary_of(verdicts, points, agreements, refusals, first, self.note.state),
            verdicts=verdicts,
            variants=variants,
            points=points,
            floors=tuple(self._floors()) if roofs else (),
            roofs=roofs,
            no_roofs_because=no_roofs_because,
            agreements=agreements,
            no_agreement_because=self._no_agreement(points, agreements),
            predicted_from=predicted_from,
            refusals=refusals,
            seconds=seconds_of(
                [t for t in self.searched if t.sweep_id == self.note.sweep_id],
                self.finals.values(),
            ),
            ladder=tuple(self._step(p, roofs is not None) for p in self.problems),
            expert_shares=_shares(self.problems[0]),
        )

    def _verdict(self, winner: Winner) -> Verdict:
        base = self._default_trial(winner)
        interval = base.interval_us if base is not None else None
        own = Outcome(config=winner.config, time_us=winner.time_us, interval_us=winner.interval_us)
        default = Outcome(
            config=winner.default_config, time_us=winner.default_time_us, interval_us=interval
        )
        if winner.config == winner.default_config:
            word = "default kept"
        elif choose.beats(own, default):
            word = "faster"
        else:
            word = "slower" if choose.beats(default, own) else "tie"
        return Verdict(winner=winner, default_interval_us=interval, word=word)

    def _default_trial(self, winner: Winner) -> Trial | None:
        """Return the default's trial in the last rounds, else its trial in the search."""
        key = winner.unit, winner.problem.tokens, winner.default_config
        if key in self.finals:
            return self.finals[key]
        return next((t for t in self.searched if _key(t) == key and t.time_us is not None), None)

    def _points(self) -> tuple[tuple[Variant, ...], tuple[Point, ...], str]:
        places: dict[tuple[Unit, LaunchConfig], int] = {}
        variants: list[Variant] = []
        for trial in self.searched:
            if (trial.unit, trial.config) not in places:
                places[trial.unit, trial.config] = len(variants)
                variants.append(
                    Variant(unit=trial.unit, config=trial.config, compile=trial.compile)
                )
        predicted, source = self._predictions()
        points = tuple(
            Point(
                variant=places[t.unit, t.config],
                tokens=t.problem.tokens,
                evidence=t.evidence,
                time_us=t.time_us,
                interval_us=t.interval_us,
                predicted_us=predicted.get(_key(t)),
                is_own=t.sweep_id == self.note.sweep_id,
                at_s=None if t.spent is None else t.spent.at_s,
                why=t.rejected.why.value if t.rejected is not None else "",
            )
            for t in self.searched
        )
        return tuple(variants), points, source

    def _predictions(self) -> tuple[dict[Key, float], str]:
        """Return the cost model's times of what was timed, and what they were made from."""
        timed = [t for t in self.searched if t.evidence >= Evidence.RECORDED and t.time_us]
        if self.setting is None or not timed:
            return {}, ""
        gpu = self.setting.gpu
        found = {_key(t): time_us for t in timed if (time_us := _predicted(t, gpu)) is not None}
        source = "compiler facts" if found else "guessed compiler facts"
        rest = [t for t in timed if t.compile is None]
        for problem in self.problems:
            for unit in GEMMS:
                ours = [t for t in rest if (t.problem.tokens, t.unit) == (problem.tokens, unit)]
                times = cost_model.rank(problem, unit, [t.config for t in ours], gpu)
                found.update((_key(t), float(x)) for t, x in zip(ours, times, strict=True))
        # Where a block would not fit an SM by the model's guess there is nothing to compare.
        return {key: time_us for key, time_us in found.items() if isfinite(time_us)}, source

    def _no_agreement(self, points: Sequence[Point], found: Sequence[Agreement]) -> str:
        if found:
            return ""
        if all(p.evidence < Evidence.RECORDED for p in points):
            return "no time of this sweep was measured or recorded: there is nothing to compare"
        return self.why_no_gpu or f"fewer than {FEWEST_PAIRS} variants have both times"

    def _roofs(self) -> tuple[Roofs | None, str]:
        if self.setting is None:
            return None, self.why_no_gpu
        gpu, rate = self.setting.gpu, rate_name(self.problems[0])
        try:
            memory = gpu.fact("memory_peak_bandwidth")
            flops = gpu.peak_flops(rate)
        except UnknownFact as error:
            return None, str(error)
        roofs = Roofs(
            gpu=gpu.name,
            bytes_per_s=memory.number,
            flops_per_s=flops,
            rate=rate,
            sources=(f"{memory.source} ({memory.confidence.value})",),
        )
        return roofs, ""

    def _floors(self) -> Iterable[Floor]:
        if self.setting is None:
            return
        for problem in self.problems:
            for unit in self.kernel.units():
                work = self.kernel.work(problem, unit)
                yield Floor(
                    tokens=problem.tokens,
                    unit=unit,
                    flops=work.flops,
                    min_bytes=work.min_bytes,
                    floor_us=floor_us(self.setting, unit, problem.tokens),
                )

    def _step(self, problem: Problem, has_roofs: bool) -> Step:
        floor = None
        if self.setting is not None and has_roofs:
            setting = self.setting
            floor = sum(floor_us(setting, unit, problem.tokens) for unit in self.kernel.units())
        return Step(
            tokens=problem.tokens,
            tokens_per_rank=problem.tokens / problem.layout.ranks,
            rows=expected_rows(problem),
            active_experts=expected_active_experts(problem),
            layer_floor_us=floor,
        )


def _predicted(trial: Trial, gpu: Gpu) -> float | None:
    """Return the cost model's time from a trial's compile report; None where it has none of use."""
    if trial.compile is None:
        return None
    try:
        found = cost_model.predict(trial.problem, trial.unit, trial.config, trial.compile, gpu)
    except InvalidConfig:  # by our facts no SM runs what another toolchain or driver did run
        return None
    return found.time_us


def _problems(rows: Iterable[Row]) -> tuple[Problem, ...]:
    return tuple(sorted({row.problem for row in rows}, key=lambda p: p.tokens))


def _key(trial: Trial) -> Key:
    return trial.unit, trial.problem.tokens, trial.config


def _in_order(winners: Iterable[Winner]) -> list[Winner]:
    units = list(Unit)
    return sorted(winners, key=lambda w: (w.problem.tokens, units.index(w.unit)))


def _gpu_of(row: Row) -> Gpu | None:
    """Return the described GPU of the row's architecture and size whose memory is nearest."""
    silicon = row.silicon
    alike = [
        gpu
        for gpu in map(load_gpu, gpu_names())
        if (gpu.arch, gpu.sms) == (silicon.arch, silicon.sms)
    ]
    return min(alike, key=lambda g: abs(g.memory_bytes - silicon.memory_bytes), default=None)


def _shares(problem: Problem) -> tuple[float, ...]:
    shape = problem.shape
    q = problem.routing.inclusion(shape.experts, shape.top_k)[: problem.local_experts]
    return tuple(sorted((float(x) for x in q / q.sum()), reverse=True))
