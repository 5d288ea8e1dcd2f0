"""Timing on the GPU, inside a process of its own that may be killed.

A sample is the mean over one CUDA graph of `ROTATION` launches, each with its own routing and
activations, so that consecutive launches read other experts and nothing is served from the L2.
Weights smaller than twice the L2 are copied as often as it takes. Samples of variants that are compared
are taken in alternating rounds.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..db import Measurement, Rejected, Why
from ..kernels._kernel import Flaw, Kernel, Launch
from ..registry import load
from ..search_spaces import LaunchConfig, Problem, Unit
from .evaluation import Outcome
from .gpu_state import Monitor, Nvml
from .processes import resident_bytes
from .race import FIRST_ROUNDS, hopeless, race
from .statistics import median_interval
from .watch import Watch

POLICY = "graph8/2"
"""8 launches a CUDA graph, rotated; 2: 2 warm-up replays, 3 samples, 4 more unless they show that a
variant loses (tuner/race.py); finalists race over 11 rounds, losers leave it."""

ROTATION = 8
WARM_UPS = 2
MORE_SAMPLES = 4
ROUNDS = 11
# Tokens at which numerics are checked: ragged against every block_m, cheap to check in float64.
VERIFY_TOKENS = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTask:
    """What the timing process is asked for; every field pickles."""

    kernel: str
    problems: tuple[Problem, ...]
    unit: Unit
    config: LaunchConfig
    best_us: tuple[tuple[int, float], ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingResult:
    """What comes back; `poisoned` says that the process must be replaced."""

    outcomes: tuple[tuple[int, Outcome], ...]
    poisoned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The GPU's memory did not suffice, in torch's or the driver's words."""

    words: str


@dataclass(slots=True)
class Bench:
    """Inputs kept on the GPU between tasks of one sweep."""

    kernel: Kernel
    seed: int
    base: dict[str, list[Any]] = field(default_factory=dict)
    rotated: dict[tuple[str, int], list[Any]] = field(default_factory=dict)

    def inputs(self, problem: Problem) -> list[Any]:
        """Return `ROTATION` sets of inputs for a problem; weights are shared over token counts."""
        key = (problem.at(1).key, problem.tokens)
        if key not in self.rotated:
            owners = self.owners(problem)
            self.rotated[key] = [
                self.kernel.rotate(owners[i % len(owners)], problem, seed=self.seed * 1000 + i)
                for i in range(ROTATION)
            ]
        return self.rotated[key]

    def owners(self, problem: Problem) -> list[Any]:
        """Return inputs over as many copies of the weights as outgrow the L2 twice."""
        key = problem.at(1).key
        if key not in self.base:
            self.base = {key: self._make_owners(problem.at(1))}
            self.rotated.clear()
        return self.base[key]

    def _make_owners(self, problem: Problem) -> list[Any]:
        import torch

        first = self.kernel.make_inputs(problem, device="cuda", seed=self.seed)
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        size = sum(
            problem.weights.bytes_of(*problem.gemm(unit)) * problem.local_experts
            for unit in self.kernel.units()
        )
        copies = min(ROTATION, -(-2 * cache // size))
        more = (
            self.kernel.make_inputs(problem, device="cuda", seed=self.seed + i)
            for i in range(1, copies)
        )
        return [first, *more]


_bench: Bench | None = None
_monitor: Monitor | None = None


def start(kernel: str, seed: int, cache_dir: str, uuid: str = "") -> None:
    """Prepare the process: called once when the pool starts it; `uuid` is its GPU's, "" = not known."""
    global _bench, _monitor
    _monitor = Nvml(uuid) if uuid else None
    os.environ["TRITON_CACHE_DIR"] = cache_dir
    found: Any = load("kernels", kernel)
    _bench = Bench(found, seed)


def watched(work: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Return what the work returns or `OutOfMemory`, and how many bytes this process holds after it."""
    try:
        answer = work(*args)
    except RuntimeError as error:
        if not _ran_out(error):
            raise
        answer = OutOfMemory(words=_first_line(str(error)))
    return answer, resident_bytes()


def prepare(problems: Sequence[Problem]) -> None:
    """Make the inputs that every variant is timed with."""
    bench = _require()
    for problem in problems:
        bench.inputs(problem)


def measure(task: TimingTask) -> TimingResult:
    """Verify one variant, then time it at every token count of the task."""

    def run(bench: Bench) -> dict[int, Outcome]:
        started = time.monotonic()
        error = _verified(bench.kernel, task)
        verify_s = time.monotonic() - started
        if isinstance(error, Outcome):
            return {p.tokens: replace(error, verify_s=verify_s) for p in task.problems}
        best = dict(task.best_us)
        found = {}
        for problem in task.problems:
            started = time.monotonic()
            outcome = _screen(bench, task, problem, best.get(problem.tokens))
            time_s = time.monotonic() - started
            found[problem.tokens] = replace(outcome, error=error, verify_s=verify_s, time_s=time_s)
        return found

    return _guarded(task, run)


def compare(task: TimingTask, configs: Sequence[LaunchConfig]) -> list[Outcome]:
    """Race several configs of one unit (the task's first problem); the first, the default, never leaves."""
    bench = _require()
    problem = task.problems[0]
    graphs = {
        config: capture(
            [bench.kernel.launches(problem, task.unit, config, i) for i in bench.inputs(problem)]
        )
        for config in configs
    }
    watch = Watch(_monitor)
    samples = rounds(list(graphs.values()), watch=watch, kept=(0,))
    return [_outcome(config, taken, watch) for config, taken in zip(graphs, samples, strict=True)]


def compare_layers(
    task: TimingTask, pairs: Sequence[tuple[Mapping[Unit, LaunchConfig], LaunchConfig]]
) -> list[tuple[Outcome, Outcome]]:
    """Time glue and whole layer for several choices of configs, in alternating rounds.

    Each pair is (configs by unit, the label config that the outcomes carry).
    """
    bench = _require()
    problem = task.problems[0]
    inputs = bench.inputs(problem)
    graphs = []
    for configs, _ in pairs:
        layers = [bench.kernel.layer(problem, configs, i) for i in inputs]
        graphs.append(capture([_glue(launches) for launches in layers]))
        graphs.append(capture(layers))
    watch = Watch(_monitor)
    samples = rounds(graphs, watch=watch, kept=range(len(graphs)))
    labels = [label for _, label in pairs]
    return [
        (_outcome(label, samples[2 * i], watch), _outcome(label, samples[2 * i + 1], watch))
        for i, label in enumerate(labels)
    ]


def _glue(launches: Sequence[Launch]) -> tuple[Launch, ...]:
    return tuple(launch for launch in launches if not launch.is_gemm)


def _require() -> Bench:
    if _bench is None:
        raise RuntimeError("the timing process was not started with start()")
    return _bench


def _verified(kernel: Kernel, task: TimingTask) -> float | Outcome:
    problem = task.problems[0].at(VERIFY_TOKENS)
    error = kernel.verify(problem, task.unit, task.config, device="cuda", seed=task.seed)
    allowed = kernel.tolerance(problem, task.unit)
    if error <= allowed:
        return error
    if isinstance(error, Flaw):
        detail = f"{kernel.name} {error.why}"
    else:
        detail = f"relative error {error:.3g} against float64, allowed {allowed:.3g}"
    rejected = Rejected(config=task.config, why=Why.WRONG_RESULT, detail=detail)
    return Outcome.refused(rejected, error)


def _guarded(task: TimingTask, run: Callable[[Bench], dict[int, Outcome]]) -> TimingResult:
    try:
        found = run(_require())
    except RuntimeError as error:
        if _ran_out(error):
            raise
        # A CUDA fault is sticky: every later call in this process would fail with it.
        return _failed(task, str(error), poisoned=True)
    return TimingResult(outcomes=tuple(found.items()))


def _ran_out(error: RuntimeError) -> bool:
    """Whether it is torch's OutOfMemoryError, or a capture's that only says so."""
    return "out of memory" in str(error)


def _first_line(words: str) -> str:
    return words.strip().splitlines()[0][:500] if words.strip() else "no message"


def _failed(task: TimingTask, words: str, *, poisoned: bool) -> TimingResult:
    detail = _first_line(words)
    outcome = Outcome.refused(Rejected(config=task.config, why=Why.CRASH, detail=detail))
    return TimingResult(
        outcomes=tuple((p.tokens, outcome) for p in task.problems), poisoned=poisoned
    )


def _screen(bench: Bench, task: TimingTask, problem: Problem, best: float | None) -> Outcome:
    inputs = bench.inputs(problem)
    graph = capture(
        [bench.kernel.launches(problem, task.unit, task.config, one) for one in inputs]
    )
    for _ in range(WARM_UPS):
        graph()
    watch = Watch(_monitor)

    def calm_sample() -> float:
        return watch.calm(lambda: sample(graph))

    samples = [calm_sample() for _ in range(FIRST_ROUNDS)]
    if best is None or not hopeless(samples, best):
        samples += [calm_sample() for _ in range(MORE_SAMPLES)]
    return _outcome(task.config, samples, watch)


class Runnable(Protocol):
    """What can be captured: a `Launch`, or whatever else runs on the current stream."""

    def run(self) -> None:
        """Run once."""
        ...


def capture(sets: Sequence[Sequence[Runnable]]) -> Callable[[], None]:
    """Capture one CUDA graph that runs every set of launches in order; return its replay."""
    import torch

    for launches in sets:
        for launch in launches:
            launch.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launches in sets:
            for launch in launches:
                launch.run()

    def replay(kept: object = sets) -> None:
        # `kept` holds the buffers that the graph reads and writes alive with it
        graph.replay()

    return replay


def sample(replay: Callable[[], None]) -> float:
    """Return a replay's time over `ROTATION`, in microseconds."""
    import torch

    events: Any = torch.cuda.Event
    begin, end = events(enable_timing=True), events(enable_timing=True)
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1000.0 / ROTATION


def rounds(
    graphs: Sequence[Callable[[], None]],
    take: Callable[[Callable[[], None]], float] = sample,
    watch: Watch | None = None,
    kept: Collection[int] = (),
) -> list[list[float]]:
    """Race graphs over `ROUNDS`, each round forwards or backwards in turns; the `kept` never leave."""
    watch = watch or Watch(None)
    for replay in graphs:
        for _ in range(WARM_UPS):
            replay()
    turns = itertools.count()

    def sample_round(alive: Sequence[int]) -> list[float]:
        order = alive if next(turns) % 2 == 0 else alive[::-1]
        taken = watch.calm(lambda: {place: take(graphs[place]) for place in order})
        return [taken[place] for place in alive]

    return race(len(graphs), sample_round, rounds=ROUNDS, kept=kept, until_equal=False)


def _outcome(config: LaunchConfig, samples: Sequence[float], watch: Watch) -> Outcome:
    measurement = Measurement(
        samples_us=tuple(samples),
        policy=POLICY,
        launches_per_sample=ROTATION,
        clock_mhz=watch.last_mhz,
        clock_low_mhz=watch.low_mhz,
        clock_high_mhz=watch.high_mhz,
    )
    return Outcome(
        config=config,
        time_us=measurement.median_us,
        interval_us=median_interval(samples),
        measurement=measurement,
    )
