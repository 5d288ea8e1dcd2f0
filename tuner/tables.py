"""Using what sweeps found: spaces described, one config inspected, winners looked up and exported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..db import Rejected, Trial, Winner, default_path, open_store
from ..db.formats._format import TrialFormat
from ..db.formats.json import rounded, table_document
from ..db.silicon import silicon_of
from ..db.table_file import problem_keys
from ..errors import ExportRefused, InvalidConfig, InvalidInput
from ..registry import load
from ..runtime import Choice, Table
from ..search_spaces import Unit
from . import cost_model
from .farm import CompileJob, compile_one
from .layer import layer_config
from .present import stale_words
from .report import find_note, rows_of, trials_behind
from .request import (
    DEFAULT_ROUTING,
    RECORDED_ROUTING,
    SweepRequest,
    load_kernel,
    resolve_gpu,
    resolve_problem,
)
from .result import compile_json
from .table_diff import Difference, Load, differences
from .toolchain import require_target


def describe_spaces(request: SweepRequest) -> list[dict[str, Any]]:
    """Return axes, sizes and what each constraint removes, for every tuned unit of a kernel."""
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    problem = resolve_problem(request, gpu)
    described = []
    for unit in kernel.units():
        space = kernel.space(problem, unit, gpu)
        removed = [
            {"name": c.name, "reason": c.reason, "removes": count} for c, count in space.removed()
        ]
        described.append(
            {
                "unit": unit.value,
                "size": space.size,
                "legal": len(space.legal()),
                "duplicates": space.duplicates,
                "parameters": [
                    {"name": p.name, "values": list(p.values), "what": p.meaning}
                    for p in space.parameters
                ],
                "constraints": removed,
            }
        )
    return described


def inspect_config(
    request: SweepRequest,
    *,
    unit: str = "gate_up",
    tokens: int = 128,
    settings: Sequence[str] = (),
    python: str | None = None,
    cache_dir: Path | None = None,
) -> dict[str, Any]:
    """Compile one config and return the compiler's facts and the predicted time.

    Args:
        request: Kernel, model, target, layout, formats.
        unit: "gate_up" or "down".
        tokens: Token count of the prediction; the code does not depend on it.
        settings: Changes to the default config, each NAME=VALUE.
        python: Another Python whose triton compiles.
        cache_dir: Where the result is cached.

    Raises:
        InvalidConfig: the config is not legal, or did not compile (with the compiler's words).
        UnsupportedTarget: this triton cannot compile for that GPU.
    """
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    if python is None:
        require_target(gpu.arch)
    problem = resolve_problem(request, gpu, tokens=tokens)
    which = Unit(unit)
    space = kernel.space(problem, which, gpu)
    config = space.parse(settings, kernel.default(problem, which, gpu))
    broken = space.why_not(config)
    if broken is not None:
        raise InvalidConfig(f"config {config} breaks {broken.name!r}: {broken.reason}")
    job = CompileJob(kernel=kernel.name, problem=problem, unit=which, config=config, arch=gpu.arch)
    outcome = compile_one(job, cache_dir=cache_dir, python=python)
    if isinstance(outcome, Rejected):
        raise InvalidConfig(f"config {config} did not compile ({outcome.why}): {outcome.detail}")
    report, made_by = outcome
    prediction = cost_model.predict(problem, which, config, report, gpu)
    return {
        "schema": "rubin-tune.inspect/1",
        "target": f"sm_{gpu.arch}",
        "gpu": gpu.name,
        "unit": unit,
        "config": config.as_dict(),
        "toolchain": made_by.key,
        "compile": {
            **compile_json(report),
            "mma_kind": report.mma_kind,
            "mma_count": report.mma_count,
            "stage_bytes": report.stage_bytes,
            "weight_stage_bytes": report.weight_stage_bytes,
            "loop_instructions": report.loop_instructions,
            "threads": report.threads,
            "compile_s": round(report.compile_s, 3),
            "cubin_sha256": report.cubin_sha256,
        },
        "prediction": {
            "evidence": "predicted",
            "tokens": tokens,
            "time_us": prediction.time_us,
            "breakdown": dict(prediction.breakdown),
            "assumptions": [
                f"{a.name} = {a.value:g} {a.unit} ({a.low:g} to {a.high:g}): {a.reason}"
                for a in prediction.assumptions
            ],
        },
    }


def stored_winners(
    request: SweepRequest, *, database: str | Path | None, sweep_id: str | None = None
) -> list[Winner]:
    """Return the winners in the database for the request's problem on its GPU, or of one sweep.

    Without a routing, winners under a sweep's default routing go before those under a recording's.

    Raises:
        InvalidInput: no such sweep.
    """
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    with open_store(database, create=False) as store:
        if sweep_id is not None:
            winners = list(store.winners(sweep_id=sweep_id))
            if not winners:
                raise InvalidInput(f"no winners of sweep {sweep_id!r} in {store.url}")
            return winners
        stored = list(store.winners(kernel=kernel.name, like=silicon_of(gpu)))
    for routing in _routings(request):
        key = resolve_problem(request, gpu, routing=routing).at(1).key
        found = [w for w in stored if w.problem.at(1).key == key]
        if found:
            return found
    return []


def _routings(request: SweepRequest) -> tuple[str, ...]:
    # Without --routing both a sweep's own default and a recording's are meant.
    return (request.routing,) if request.routing else (DEFAULT_ROUTING, RECORDED_ROUTING)


def look_up(
    request: SweepRequest, *, tokens: int, unit: str = "layer", database: str | Path | None = None
) -> dict[str, Any]:
    """Return the config that would be launched for a token count, and why that one.

    A database that does not exist yet is an empty table: the answer is the default.
    """
    winners = stored_winners(request, database=database) if database_exists(database) else []
    choice = choice_of(request, winners, tokens=tokens, unit=unit)
    row = row_of(choice, [w for w in winners if w.unit.value == unit])
    return {
        "schema": "rubin-tune.lookup/1",
        "unit": unit,
        "tokens": tokens,
        "config": dict(choice.config),
        "evidence": choice.evidence,
        "bucket": list(choice.bucket),
        "edges": list(choice.edges),
        "reason": choice.reason.value,
        "why": choice.why,
        "stale": list(stale_words([row] if row else [])),
    }


def choice_of(
    request: SweepRequest, winners: Sequence[Winner], *, tokens: int, unit: str
) -> Choice:
    """Return what a server that has these winners is answered."""
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    problem = resolve_problem(request, gpu, tokens=tokens)
    table = Table.from_document(table_document([w for w in winners if w.unit.value == unit]))
    defaults = {u: kernel.default(problem, u, gpu) for u in kernel.units()}
    which = Unit(unit)
    default = defaults[which] if which in defaults else layer_config(kernel, defaults)
    keys = problem_keys(winners[0].problem if winners else problem, silicon_of(gpu))
    return table.lookup(kernel.name, keys, tokens, unit=unit, default=default.as_dict())


def row_of(choice: Choice, winners: Sequence[Winner]) -> Winner | None:
    """Return the winner that an answer is from."""
    for winner in winners:
        same_time = choice.time_us == rounded(winner.time_us)
        if same_time and winner.config.as_dict() == choice.config:
            return winner
    return None


def database_exists(database: str | Path | None) -> bool:
    """Whether there is a database: a URL is taken to be one."""
    target = default_path() if database is None else database
    return "://" in str(target) or Path(target).exists()


def export_winners(
    request: SweepRequest,
    *,
    format_name: str,
    out: Path,
    sweep_id: str | None = None,
    device_name: str | None = None,
    allow_predicted: bool = False,
    portfolio: int | None = None,
    dry_run: bool = False,
    against: Path | None = None,
    database: str | Path | None = None,
    stale: dict[str, int] | None = None,
    changes: list[Difference] | None = None,
) -> list[Path]:
    """Write winners as a table, or trials as studies; nothing is written when any row is refused.

    With `portfolio` the winners are those of the newest sweep that was held to at most so many configs
    a GEMM. With `dry_run` everything is done in a scratch folder, and the files are only named. Into
    `stale` goes why rows are stale, with how many: they are written all the same; into
    `changes` the rows in which the table differs from `against`, a file of the same engine or a folder
    with one of the same name.

    Raises:
        ExportRefused: no winners, or the target engine cannot express a row.
        UnknownName: no such format.
    """
    exporter: Any = load("db.formats", format_name)
    if isinstance(exporter, TrialFormat):
        if portfolio is not None or device_name is not None:
            raise InvalidInput(
                f"format {format_name!r} writes trials: leave --portfolio and --device-name out"
            )
        if against is not None:
            raise InvalidInput("--against takes an engine's format: these are trials")
        trials = _trials(request, sweep_id, database)
        return _written(lambda to: exporter.export_trials(*trials, to), out, dry_run)
    if portfolio is not None and sweep_id is None:
        sweep_id = _portfolio_sweep(request, portfolio, database)
    winners = stored_winners(request, database=database, sweep_id=sweep_id)
    if not winners:
        raise ExportRefused(
            f"no winners of {request.kernel} for {request.model!r} on that GPU in the database: "
            "run rubin-tune sweep first"
        )

    def write(to: Path) -> list[Path]:
        files: list[Path] = exporter.export(
            winners, to, device_name=device_name, allow_predicted=allow_predicted
        )
        return files

    if against is not None:
        with _scratch(out) as place:
            found = differences(write(place), _loader(exporter, format_name), against)
        if changes is not None:
            changes += found
    paths = _written(write, out, dry_run)
    if stale is not None:
        stale.update(stale_words(winners))
    return paths


def _written(write: Callable[[Path], list[Path]], out: Path, dry_run: bool) -> list[Path]:
    """Return the files that were written, or would be."""
    if not dry_run:
        return write(out)
    with _scratch(out) as place:
        return [out / path.relative_to(place) for path in write(place)]


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Give a place of the same ending that is gone afterwards."""
    with TemporaryDirectory(prefix="rubin-tune-") as folder:
        yield Path(folder) / (out.name or "out")


def _loader(exporter: Any, name: str) -> Load:
    if not hasattr(exporter, "load"):
        raise InvalidInput(f"format {name!r} is not read: --against takes an engine's")
    load_: Load = exporter.load
    return load_


def _trials(
    request: SweepRequest, sweep_id: str | None, database: str | Path | None
) -> tuple[list[Trial], dict[str, datetime]]:
    """Return the trials of a sweep, or those behind the winners, and when each sweep began."""
    with open_store(database, create=False) as store:
        started = {note.sweep_id: note.started_at for note in store.sweep_notes()}
        if sweep_id is not None:
            note = find_note(store, sweep_id)
            return list(trials_behind(store, rows_of(store, note))), started
    winners = stored_winners(request, database=database)
    if not winners:
        raise ExportRefused(
            f"no sweep of {request.kernel} for {request.model!r} on that GPU in the database: "
            "run rubin-tune sweep first"
        )
    groups: dict[tuple[str, ...], list[Winner]] = defaultdict(list)
    for w in winners:
        groups[w.source_hash, w.silicon.key, w.toolchain.key, w.policy].append(w)
    with open_store(database, create=False) as store:
        found = [t for rows in groups.values() for t in trials_behind(store, rows)]
    return found, started


def _portfolio_sweep(request: SweepRequest, cap: int, database: str | Path | None) -> str:
    """Return the newest sweep of the request's problem that was held to at most `cap` configs."""
    kernel = load_kernel(request.kernel)
    gpu, _ = resolve_gpu(request.target)
    keys = {resolve_problem(request, gpu, routing=r).at(1).key for r in _routings(request)}
    with open_store(database, create=False) as store:
        for sweep_id in store.portfolio_sweeps():
            held = store.portfolio(sweep_id) or {}
            rows = store.winners(sweep_id=sweep_id, kernel=kernel.name, like=silicon_of(gpu))
            small = max((len(c) for c in held["configs"].values()), default=0) <= cap
            if small and rows and all(row.problem.at(1).key in keys for row in rows):
                return sweep_id
    raise ExportRefused(
        f"no sweep of {request.kernel} for {request.model!r} on that GPU was held to a portfolio of at "
        f"most {cap} configs: run rubin-tune sweep with --portfolio {cap}, which reuses every trial"
    )
