"""Others' results as seeds and baselines of one of our kernels: all files of a call, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..db import Seed, Store, Trial, Winner, open_store
from ..db.importers import read_results
from ..db.recorded_spaces import RecordedPoint, RecordedSpace
from ..db.seeds import EngineRow, EngineTable, fitted
from ..errors import InvalidInput
from ..kernels._kernel import Kernel
from ..search_spaces import LaunchConfig, Problem, Space, Unit, Value, parse_tokens
from ..search_spaces.fused_moe import ENGINE_NAMES
from ..topology import Gpu, gpu_names, load_gpu
from .evaluation import Setting
from .request import SweepRequest, load_kernel, resolve_gpu, resolve_problem

# Of a recorded space the best few start a search; the rest is the search's to find.
BEST_POINTS = 8
_OWN_NAMES = {theirs: ours for ours, theirs in ENGINE_NAMES.items()}
# Triton's defaults, where a row leaves them out.
_DEFAULTS: dict[str, Value] = {"num_warps": 4, "num_stages": 3}
# tl.dot takes no narrower tile.
_LEAST_TILE = 16
_MOST_WARPS = 32
_ELEMENT_BYTES = {"bf16": 2, "fp8_block128": 1}
_SEARCH = "search it with: python -m benchmarks.search --landscape"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import, and for what.

    Attributes:
        files: Tables and recorded spaces.
        kernel: The kernel that they are seeds of.
        model: What the files are of, where their names do not say, or must say the same; None =
            the names decide.
        layout: How its experts are sharded.
        dtype: Its weights.
        target: The GPU that the seeds are for; None = what the file names.
        tokens: The one token count of a recorded space.
    """

    files: tuple[Path, ...]
    kernel: str = "fused_moe"
    model: str | None = None
    layout: str = "auto"
    dtype: str | None = None
    target: str | None = None
    tokens: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """One file's share.

    Attributes:
        path: The file.
        source: Its format.
        seeds: What is stored.
        skipped: Why rows were left out, and how many.
    """

    path: Path
    source: str
    seeds: tuple[Seed, ...]
    skipped: tuple[tuple[str, int], ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form."""
        return {
            "file": str(self.path),
            "source": self.source,
            "seeds": len(self.seeds),
            "skipped": [{"why": why, "rows": rows} for why, rows in self.skipped],
        }


def import_results(
    request: ImportRequest, *, database: str | Path | None = None
) -> list[Imported]:
    """Read every file, then store all seeds in one transaction.

    Raises:
        CorruptFile: a file cannot be read or meant.
        InvalidInput: it is of another kernel or problem; nothing was stored.
    """
    kernel = load_kernel(request.kernel)
    gpu = resolve_gpu(request.target)[0] if request.target else None
    problem = _problem(request, gpu)
    found = [_read(path, request, kernel, problem, gpu) for path in request.files]
    with open_store(database) as store:
        store.put_seeds([seed for one in found for seed in one.seeds])
    return found


def _problem(request: ImportRequest, gpu: Gpu | None) -> Problem | None:
    if request.model is None:
        return None
    tokens = parse_tokens(request.tokens or "1")
    if len(tokens) != 1:
        raise InvalidInput(f"tokens is {request.tokens!r}: a recorded space is of one count")
    asked = SweepRequest(model=request.model, layout=request.layout, dtype=request.dtype)
    return resolve_problem(asked, gpu or resolve_gpu(None)[0], tokens=tokens[0])


def _read(
    path: Path, request: ImportRequest, kernel: Kernel, problem: Problem | None, gpu: Gpu | None
) -> Imported:
    content = read_results(path)
    if isinstance(content, RecordedSpace):
        return _of_space(path, content, kernel, problem if request.tokens else None, gpu)
    return _of_table(path, content, kernel, problem, gpu)


# Engines' tables


def _of_table(
    path: Path, table: EngineTable, kernel: Kernel, problem: Problem | None, gpu: Gpu | None
) -> Imported:
    if not kernel.serves_engine:
        raise InvalidInput(
            f"{path.name!r} is a table of {table.engine}'s own kernel: a config found there says "
            f"nothing about {kernel.name!r}; import it with --op fused_moe"
        )
    experts, width, weights = _layer_of(path, table, problem)
    limit = _shared_limit(gpu or gpu_of(table.device))
    skipped: Counter[str] = Counter()
    seeds = []
    for row in table.rows:
        config = _launch(path, row)
        why = config if isinstance(config, str) else _illegal(config, weights, limit)
        if isinstance(config, str) or why:
            skipped[why] += 1
            continue
        seeds.append(
            Seed(
                kernel=kernel.name,
                config=config,
                tokens=row.tokens,
                experts=experts,
                intermediate=width,
                weights=weights,
                source=table.engine,
                file=table.file,
                unit=table.unit,
                device=table.device,
                triton=table.triton,
            )
        )
    if not seeds:
        whys = "; ".join(f"{rows} {why}" for why, rows in skipped.items())
        raise InvalidInput(
            f"none of the {len(table.rows)} rows of {path.name!r} can be launched by "
            f"{kernel.name!r}: {whys}"
        )
    return Imported(
        path=path, source=table.engine, seeds=tuple(seeds), skipped=tuple(skipped.items())
    )


def _layer_of(path: Path, table: EngineTable, problem: Problem | None) -> tuple[int, int, str]:
    """Return experts, width and weights of one rank, from the name, which --model must not deny."""
    if problem is None:
        if not table.experts:
            raise InvalidInput(
                f"the name {path.name!r} does not say of which layer it is (E=..,N=..): give "
                "--model, --layout and --dtype"
            )
        return table.experts, table.intermediate, table.weights
    meant = problem.local_experts, problem.local_intermediate, problem.shape.weights
    named = table.experts, table.intermediate, table.weights
    if table.experts and named != meant:
        raise InvalidInput(
            f"{path.name!r} is of E={named[0]}, N={named[1]}, {named[2]}: "
            f"{problem.shape.model!r} in layout {problem.layout.name} is of E={meant[0]}, "
            f"N={meant[1]}, {meant[2]}"
        )
    return meant


def _launch(path: Path, row: EngineRow) -> LaunchConfig | str:
    """Return a row's config in our spelling, or why this kernel cannot be launched so.

    Raises:
        InvalidInput: a size is missing or no number.
    """
    values = dict(row.values)
    # Both launch one: vLLM sets SPLIT_K to 1 whatever the row says, one CTA is the default.
    if values.get("num_ctas", 1) == 1:
        values.pop("num_ctas", None)
    values.pop("SPLIT_K", None)
    # SGLang's row that declines TMA asks for nothing.
    if values.get("USE_TMA") is False:
        del values["USE_TMA"]
    unknown = sorted(values.keys() - _OWN_NAMES.keys())
    if unknown:
        return f"with keys that the kernel does not take ({', '.join(unknown)})"
    found = dict(_DEFAULTS)
    for theirs, ours in _OWN_NAMES.items():
        value = values.get(theirs, found.get(ours))
        if not isinstance(value, int) or isinstance(value, bool):
            said = "missing" if value is None else repr(value)[:40]
            raise InvalidInput(
                f"{path.name!r}: {theirs} of {row.tokens} tokens is {said}: must be an integer"
            )
        found[ours] = value
    return LaunchConfig.of(found)


def _illegal(config: LaunchConfig, weights: str, limit: int | None) -> str:
    """Say why no GPU, or not this one, launches a config ("" = it does)."""
    m, n, k = (config.integer(name) for name in ("block_m", "block_n", "block_k"))
    warps, stages = config.integer("num_warps"), config.integer("num_stages")
    sizes = (m, n, k, warps)
    if any(size < 1 or size & (size - 1) for size in sizes) or min(m, n, k) < _LEAST_TILE:
        return "with sizes that are no powers of two, or tiles under 16"
    if warps > _MOST_WARPS or stages < 1 or config.integer("group_m") < 1:
        return f"with more than {_MOST_WARPS} warps, or no stages or groups"
    # The engine clamps a k-tile of fp8 to the scale block.
    depth = min(k, 128) if weights == "fp8_block128" else k
    need = (stages - 1) * (m + n) * depth * _ELEMENT_BYTES[weights]
    if limit is not None and need > limit:
        return f"whose buffers alone are over the {limit} bytes of shared memory a block"
    return ""


def gpu_of(device: str) -> Gpu | None:
    """Return the GPU that an engine's spelling of a device names, None where it is none of ours."""
    words = device.lower().replace("-", "_").split("_")
    return next((load_gpu(name) for name in gpu_names() if name in words), None)


def _shared_limit(gpu: Gpu | None) -> int | None:
    return None if gpu is None else gpu.shared_memory_limit("default")


# Recorded spaces


def _of_space(
    path: Path, space: RecordedSpace, kernel: Kernel, problem: Problem | None, gpu: Gpu | None
) -> Imported:
    names = {name: _OWN_NAMES.get(name, name.lower()) for name, _ in space.parameters}
    wanted = set(ENGINE_NAMES)
    if problem is not None:
        axes = kernel.space(problem, kernel.units()[0], gpu or _target_of(space)).parameters
        wanted = {parameter.name for parameter in axes}
    missing = sorted(wanted - set(names.values()))
    strange = [name for name in space.varying if names[name] not in wanted]
    if missing or strange:
        raise InvalidInput(
            f"{path.name!r} records the space of kernel {space.kernel!r} "
            f"({len(space.points)} points of {len(space.parameters)} parameters), which is not that "
            f"of {kernel.name!r} (it has no {', '.join(missing or strange)[:80]}): it seeds "
            f"nothing; {_SEARCH} {str(path)!r}"
        )
    if problem is None:
        raise InvalidInput(
            f"{path.name!r} records a space of {kernel.name!r} but not its problem: give --model "
            "and one --tokens"
        )
    points = space.timed[:BEST_POINTS]
    if not points:
        raise InvalidInput(f"{path.name!r} holds no point with a time: nothing to start from")
    seeds = tuple(_seeds(path, space, points, wanted, names, kernel, problem))
    return Imported(path=path, source=space.source, seeds=seeds)


def _target_of(space: RecordedSpace) -> Gpu:
    named = gpu_of(space.device.replace(" ", "_"))
    if named is None:
        raise InvalidInput(f"the device {space.device!r:.40} is none of ours: give --target")
    return named


def _seeds(
    path: Path,
    space: RecordedSpace,
    points: Sequence[RecordedPoint],
    wanted: set[str],
    names: Mapping[str, str],
    kernel: Kernel,
    problem: Problem,
) -> Iterator[Seed]:
    for point in points:
        own = {names[name]: value for name, value in point.config.items if names[name] in wanted}
        yield Seed(
            kernel=kernel.name,
            config=LaunchConfig.of(own),
            tokens=problem.tokens,
            experts=problem.local_experts,
            intermediate=problem.local_intermediate,
            weights=problem.shape.weights,
            source=space.source,
            file=path.name,
            device=space.device,
            time_us=point.time_us,
        )


# What an engine would launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What is launched today: a row of an imported table, or the kernel's default (no seed)."""

    config: LaunchConfig
    seed: Seed | None = None

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        return "default" if self.seed is None else str(self.seed)


def deployed(
    seeds: Sequence[Seed], kernel: Kernel, problem: Problem, unit: Unit, gpu: Gpu
) -> Deployed:
    """Return what the engine launches at a problem's token count, by the engine's own rule.

    The row of the nearest token count by difference (facts, engines 1.1), of two equally near ones
    the smaller; only tables of the engine that the kernel serves, for this layer and this GPU.

    Args:
        seeds: As `Store.seeds_for` returns them without a space.
        kernel: What is launched.
        problem: Where.
        unit: One GEMM of it.
        gpu: On what.
    """
    rows = [
        seed
        for seed in seeds
        if seed.source == kernel.serves_engine
        and seed.is_of(problem)
        and seed.is_for(unit)
        and _is_on(seed, gpu)
    ]
    if not rows:
        return Deployed(config=kernel.default(problem, unit, gpu))
    nearest = min(rows, key=lambda seed: (abs(seed.tokens - problem.tokens), seed.tokens))
    return Deployed(config=nearest.config, seed=nearest)


def baselines(store: Store, setting: Setting, unit: Unit, space: Space) -> dict[int, Seed]:
    """Return, by token count, the row of an imported table that the engine would launch.

    As a point of the space; token counts whose row is none, and all where no table is imported,
    are left out.
    """
    found = {}
    for problem in setting.problems:
        seeds = store.seeds_for(setting.kernel.name, problem)
        today = deployed(seeds, setting.kernel, problem, unit, setting.gpu)
        point = None if today.seed is None else fitted(today.seed, space)
        if point is not None:
            found[problem.tokens] = point
    return found


def _is_on(seed: Seed, gpu: Gpu) -> bool:
    named = gpu_of(seed.device)
    return named is not None and named.name == gpu.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """How the winners of one token count compare with an imported table's row.

    Attributes:
        tokens: The count.
        source: The row.
        time_us: Both GEMMs with the row's config, as this sweep's trials say.
        winner_us: Both GEMMs of the winners.
    """

    tokens: int
    source: str
    time_us: float
    winner_us: float

    @property
    def speedup(self) -> float:
        """The row's time over the winners'."""
        return self.time_us / self.winner_us

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form."""
        return {
            "tokens": self.tokens,
            "source": self.source,
            "time_us": self.time_us,
            "winner_us": self.winner_us,
            "speedup": self.speedup,
        }


def over_baselines(
    rows: Mapping[Unit, Mapping[int, Seed]],
    trials: Iterable[Trial],
    winners: Iterable[Winner],
) -> tuple[Baseline, ...]:
    """Compare winners with imported rows where both have a time for every GEMM.

    Args:
        rows: What `baselines` returned, by unit.
        trials: Trials of one policy, whose times may be compared.
        winners: Of the sweep.
    """
    times = {
        (trial.unit, trial.problem.tokens): trial.time_us
        for trial in trials
        if trial.time_us is not None and _is_row(rows, trial)
    }
    won: dict[int, dict[Unit, float]] = {}
    for winner in winners:
        if winner.unit in rows:
            won.setdefault(winner.problem.tokens, {})[winner.unit] = winner.time_us
    return tuple(
        Baseline(
            tokens=tokens,
            source=str(next(iter(rows.values()))[tokens]),
            time_us=sum(times[unit, tokens] for unit in rows),
            winner_us=sum(own.values()),
        )
        for tokens, own in sorted(won.items())
        if all((unit, tokens) in times for unit in rows)
    )


def _is_row(rows: Mapping[Unit, Mapping[int, Seed]], trial: Trial) -> bool:
    seed = rows.get(trial.unit, {}).get(trial.problem.tokens)
    return seed is not None and seed.config == trial.config
