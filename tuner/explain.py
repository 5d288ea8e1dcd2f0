"""Why a look-up is answered as it is: the row, what lost to it, what was refused, how old it is.

Everything comes from the database's trials; nothing is measured or compiled here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..db import Rejected, Store, Toolchain, Trial, Why, Winner, open_store
from ..db.staleness import Present, reasons
from ..runtime import Choice
from ..search_spaces import GEMMS, LaunchConfig, Problem, Unit
from .choose import TIE_BAND
from .engine_files import EngineFile, engine_files
from .request import SweepRequest, load_kernel, resolve_gpu, resolve_problem
from .tables import choice_of, database_exists, row_of, stored_winners
from .toolchain import toolchain

SCHEMA = "rubin-tune.explain/1"
# Measured again together, as finalists: see sweep.py.
_FINAL = "+final"
_MOST_WORDS = 160
_MEANINGS: Mapping[Why, str] = {
    Why.ILLEGAL: "breaks a rule of the space",
    Why.DUPLICATE: "launches the code of another config",
    Why.SHARED_MEMORY: "needs more shared memory than the GPU has",
    Why.TENSOR_MEMORY: "needs more tensor memory than the GPU has",
    Why.THREADS: "needs more threads or registers than an SM has",
    Why.COMPILE_ERROR: "did not compile",
    Why.COMPILE_TIMEOUT: "took too long to compile",
    Why.CRASH: "crashed",
    Why.HANG: "hung",
    Why.WRONG_RESULT: "failed verification: its result differs from float64",
    Why.BEATS_PHYSICS: "was faster than the hardware can be: its time cannot be true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A config that was tried for the same problem and is not the one chosen.

    Attributes:
        unit: Which GEMM it is of.
        config: Its parameters.
        time_us: Its time, microseconds.
        interval_us: 95 % interval of the time, None where there is none.
        evidence: "measured", "recorded" or "predicted".
        lost_by: Its time over the chosen config's, less one; negative where it was faster.
        verdict: Why it is not the one, in words.
        is_default: Whether it is what the kernel launches without a table.
    """

    unit: str
    config: LaunchConfig
    time_us: float
    interval_us: tuple[float, float] | None
    evidence: str
    lost_by: float
    verdict: str
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Configs that were refused for one reason: how many, and one of them."""

    unit: str
    why: str
    meaning: str
    count: int
    example: LaunchConfig
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a look-up is answered as it is.

    Attributes:
        kernel: Its name.
        tokens: What was asked for.
        unit: gate_up, down or layer.
        choice: What the look-up answers.
        row: The winner that the answer is from, None for a default.
        tried: Trials of the row's problem, by unit.
        alternatives: What lost, fastest first, some of each unit.
        refused: What was refused and why, most frequent first.
        stale: In what today's toolchain and source differ from the row's.
        files: What each rank of an engine asks for, where an engine was named.
    """

    kernel: str
    tokens: int
    unit: str
    choice: Choice
    row: Winner | None
    tried: Mapping[str, int]
    alternatives: tuple[Alternative, ...]
    refused: tuple[Refusal, ...]
    stale: tuple[str, ...]
    files: tuple[EngineFile, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the stable machine-readable form (`rubin-tune.explain/1`)."""
        choice = self.choice
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "tokens": self.tokens,
            "unit": self.unit,
            "choice": {
                "config": dict(choice.config),
                "evidence": choice.evidence,
                "bucket": list(choice.bucket),
                "edges": list(choice.edges),
                "reason": choice.reason.value,
                "why": choice.why,
            },
            "row": None if self.row is None else _row_json(self.row),
            "tried": dict(self.tried),
            "alternatives": [_flat(one) for one in self.alternatives],
            "refused": [_flat(one) for one in self.refused],
            "stale": list(self.stale),
            "files": [_flat(one) for one in self.files],
        }


def explain(
    request: SweepRequest,
    *,
    tokens: int,
    unit: str = "layer",
    database: str | Path | None = None,
    engine: str | None = None,
    device_name: str | None = None,
    most: int = 5,
) -> Explanation:
    """Explain one look-up.

    Args:
        request: Kernel, model, target, layout, formats.
        tokens: Tokens over all ranks.
        unit: "gate_up", "down" or "layer".
        database: URL or path; None = the user's own. One that does not exist explains a default.
        engine: Also say which file and key each rank of this engine asks for.
        device_name: The GPU's name as the engine spells it.
        most: How many alternatives of each unit to tell.

    Raises:
        RubinTuneError: an option cannot be meant, or the database cannot be read.
    """
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    exists = database_exists(database)
    winners = stored_winners(request, database=database) if exists else []
    choice = choice_of(request, winners, tokens=tokens, unit=unit)
    row = row_of(choice, [w for w in winners if w.unit.value == unit])
    trials: dict[str, list[Trial]] = {}
    if row is not None:
        with open_store(database, create=False) as store:
            trials = {u.value: _trials(store, row, u) for u in _units_of(row)}
    problem = row.problem.at(tokens) if row else resolve_problem(request, gpu, tokens=tokens)
    files: Iterable[EngineFile] = ()
    if engine is not None:
        counts = [w.problem.tokens for w in winners if w.unit is Unit.LAYER]
        files = engine_files(
            engine, kernel, problem, gpu, row=row, tuned=counts, device_name=device_name
        )
    return Explanation(
        kernel=kernel.name,
        tokens=tokens,
        unit=unit,
        choice=choice,
        row=row,
        tried={name: len(found) for name, found in trials.items()},
        alternatives=_alternatives(row, trials, _defaults(request, problem), most),
        refused=_refusals(trials),
        stale=() if row is None else _stale(row, kernel.source_hash(), toolchain(gpu.arch)),
        files=tuple(files),
    )


def _units_of(row: Winner) -> list[Unit]:
    """Return the tuned units that stand behind a row: a layer's trials are its GEMMs'."""
    return [Unit(unit) for unit, _ in row.parts] or [row.unit]


def _config_of(row: Winner, unit: str) -> LaunchConfig:
    return dict(row.parts).get(unit, row.config)


def _trials(store: Store, row: Winner, unit: Unit) -> list[Trial]:
    """Return the trials that the row was chosen over, measured again ones instead of first ones."""
    found: dict[LaunchConfig, Trial] = {}
    for policy in (row.policy, row.policy + _FINAL):
        trials = store.trials_for(
            kernel=row.kernel,
            source_hash=row.source_hash,
            silicon=row.silicon,
            toolchain=row.toolchain,
            policy=policy,
            problems=(row.problem,),
            units=(unit,),
        )
        found.update({trial.config: trial for trial in trials})
    return list(found.values())


def _defaults(request: SweepRequest, problem: Problem) -> dict[str, LaunchConfig]:
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    units = [unit for unit in kernel.units() if unit in GEMMS]
    return {unit.value: kernel.default(problem, unit, gpu) for unit in units}


def _alternatives(
    row: Winner | None,
    trials: Mapping[str, Sequence[Trial]],
    defaults: Mapping[str, LaunchConfig],
    most: int,
) -> tuple[Alternative, ...]:
    if row is None:
        return ()
    found: list[Alternative] = []
    for unit, tried in trials.items():
        chosen = _config_of(row, unit)
        default = row.default_config if unit == row.unit.value else defaults.get(unit)
        timed = sorted(
            (t for t in tried if t.time_us is not None and t.config != chosen),
            key=lambda t: (t.time_us or 0.0, t.config.key),
        )
        own = next((t for t in tried if t.config == chosen and t.time_us is not None), None)
        kept = timed[:most] + [t for t in timed[most:] if t.config == default]
        found += [_alternative(trial, own, row, default) for trial in kept]
    return tuple(found)


def _alternative(
    trial: Trial, own: Trial | None, row: Winner, default: LaunchConfig | None
) -> Alternative:
    time_us, chosen_us = trial.time_us or 0.0, row.time_us
    if own is not None and own.time_us is not None:
        chosen_us = own.time_us
    return Alternative(
        unit=trial.unit.value,
        config=trial.config,
        time_us=time_us,
        interval_us=trial.interval_us,
        evidence=trial.evidence.word,
        lost_by=time_us / chosen_us - 1 if chosen_us else 0.0,
        verdict=_verdict(trial, own, chosen_us),
        is_default=trial.config == default,
    )


def _verdict(trial: Trial, own: Trial | None, chosen_us: float) -> str:
    time_us = trial.time_us or 0.0
    band = max(_half(trial), 0.0 if own is None else _half(own), TIE_BAND * chosen_us)
    again = own is not None and own.policy.endswith(_FINAL)
    if time_us > chosen_us + band:
        return "slower by more than the tie band"
    if time_us >= chosen_us - band:
        return f"within the tie band of {band:.2f} us: the two cannot be told apart"
    if again and not trial.policy.endswith(_FINAL):
        return "faster when first timed; the chosen one's time is of the final, measured together"
    return "faster by itself, but does not fit the other GEMM's config or makes the layer slower"


def _half(trial: Trial) -> float:
    if trial.interval_us is None:
        return 0.0
    return (trial.interval_us[1] - trial.interval_us[0]) / 2


def _refusals(trials: Mapping[str, Sequence[Trial]]) -> tuple[Refusal, ...]:
    found = []
    for unit, tried in trials.items():
        rejected = [t.rejected for t in tried if t.rejected is not None]
        for why, count in Counter(r.why for r in rejected).most_common():
            first = next(r for r in rejected if r.why == why)
            found.append(
                Refusal(
                    unit=unit,
                    why=why.value,
                    meaning=_MEANINGS[why],
                    count=count,
                    example=first.config,
                    detail=_short(first),
                )
            )
    return tuple(found)


def _short(rejected: Rejected) -> str:
    lines = rejected.detail.strip().splitlines()
    return lines[0][:_MOST_WORDS] if lines else ""


def _stale(row: Winner, source_hash: str, now: Toolchain) -> tuple[str, ...]:
    """Say in what the row's code differs from what would be built now; unknown is no difference."""
    present = Present(sources={row.kernel: source_hash}, toolchains={row.silicon.arch: now})
    return tuple(map(str, reasons(row, present)))


def _row_json(row: Winner) -> dict[str, Any]:
    return {
        "tokens": row.problem.tokens,
        "config": row.config.as_dict(),
        "time_us": row.time_us,
        "interval_us": list(row.interval_us),
        "default_config": row.default_config.as_dict(),
        "default_time_us": row.default_time_us,
        "speedup": row.speedup,
        "evidence": row.evidence.word,
        "sweep_id": row.sweep_id,
        "policy": row.policy,
        "source_hash": row.source_hash,
        "toolchain": row.toolchain.key,
        "silicon": row.silicon.key,
    }


def _flat(record: Any) -> dict[str, Any]:
    found = {field.name: getattr(record, field.name) for field in fields(record)}
    return {n: v.as_dict() if isinstance(v, LaunchConfig) else v for n, v in found.items()}
