"""Times on the GPU of this machine, in a process that is replaced when it hangs or its context breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from ...db import CompileReport, Evidence, Rejected, Why
from ...errors import WorkerLost
from ...search_spaces import LaunchConfig, Unit
from ...topology.driver import read_device
from .. import timing
from ..evaluation import LayerOutcome, Outcome, Pair, Setting
from ..farm import triton_cache
from ..gpu_state import GpuLock, Nvml, take
from ..physics import beats_physics
from ..processes import spawn_context
from ._target import TargetEvaluator

# A variant that has not finished its ladder in this time hangs (the default ladder takes under 3 s).
TASK_LIMIT_S = 120.0
# Compiled code and captured graphs take tens of megabytes; what grows by this much leaks.
MEMORY_GROWTH_BYTES = 4 << 30
# Deaths in a row after which the machine, not the variant, is at fault.
MAX_DEATHS = 10


@dataclass(slots=True)
class GpuEvaluator(TargetEvaluator):
    """Measured evidence."""

    cache_dir: Path
    evidence: Evidence = Evidence.MEASURED
    policy: str = timing.POLICY
    compiles: bool = True
    _pool: Any = None
    _lock: GpuLock | None = None
    _uuid: str = ""
    _least: int = 0
    _deaths: int = 0
    _words: list[str] = field(default_factory=list)

    def hold(self, wait_s: float = 0.0, says: Callable[[str], None] | None = None) -> None:
        """Hold the GPU for this sweep; nothing happens where there is no driver or it is held already."""
        device = read_device(0, ())
        if device is None or self._lock is not None:
            return
        lock = GpuLock(device.uuid)
        take(lock, Nvml(device.uuid).read, wait_s=wait_s, says=says)
        self._lock, self._uuid = lock, device.uuid

    def warm_up(self) -> None:
        """Start the timing process and let it make its inputs; what fails there fails again when timing."""
        self._process().schedule(
            timing.prepare, args=(self.setting.problems,), timeout=TASK_LIMIT_S
        )

    def evaluate(
        self,
        unit: Unit,
        config: LaunchConfig,
        report: CompileReport | None,
        best_us: Mapping[int, float],
    ) -> Mapping[int, Outcome]:
        """Verify the variant, then time it at every token count."""
        task = self._task(unit, config, best_us)
        result = self._call(timing.measure, task)
        if isinstance(result, Rejected):
            return {t: Outcome.refused(result) for t in self.setting.ladder}
        if result.poisoned:
            self._stop()
        return {tokens: self._judged(unit, tokens, o) for tokens, o in result.outcomes}

    def together(
        self, unit: Unit, tokens: int, configs: Sequence[LaunchConfig]
    ) -> Mapping[LaunchConfig, Outcome]:
        """Time configs in alternating rounds."""
        task = self._task(unit, configs[0], {}, tokens)
        result = self._call(timing.compare, task, tuple(configs))
        if isinstance(result, Rejected):
            return {}
        return {o.config: self._judged(unit, tokens, o) for o in result}

    def layers(self, tokens: int, pairs: Sequence[Pair]) -> list[LayerOutcome]:
        """Time glue and layer with every choice in alternating rounds."""
        labels = [pair[Unit.GATE_UP] for pair in pairs]
        task = self._task(Unit.LAYER, labels[0], {}, tokens)
        choices = tuple((dict(pair), label) for pair, label in zip(pairs, labels, strict=True))
        result = self._call(timing.compare_layers, task, choices)
        if isinstance(result, Rejected):
            lost = Outcome.refused(result)
            return [LayerOutcome(glue=None, layer=lost) for _ in pairs]
        return [LayerOutcome(glue=glue, layer=layer) for glue, layer in result]

    def close(self) -> None:
        """Stop the timing process and give the GPU back; the next call starts a new one."""
        self._stop()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def _task(
        self,
        unit: Unit,
        config: LaunchConfig,
        best_us: Mapping[int, float],
        tokens: int | None = None,
    ) -> timing.TimingTask:
        problems = self.setting.problems
        if tokens is not None:
            problems = (self.setting.problem(tokens),)
        return timing.TimingTask(
            kernel=self.setting.kernel.name,
            problems=problems,
            unit=unit,
            config=config,
            best_us=tuple(best_us.items()),
            seed=self.setting.seed,
        )

    def _judged(self, unit: Unit, tokens: int, outcome: Outcome) -> Outcome:
        why = beats_physics(self.setting, unit, tokens, outcome.time_us)
        if why is None:
            return outcome
        rejected = Rejected(config=outcome.config, why=Why.BEATS_PHYSICS, detail=why)
        return replace(
            Outcome.refused(rejected, outcome.error),
            verify_s=outcome.verify_s,
            time_s=outcome.time_s,
        )

    def _call(self, work: Callable[..., Any], task: timing.TimingTask, *more: object) -> Any:
        """Run work in the timing process; a hang or a death becomes a `Rejected`.

        What runs out of memory runs again in a fresh process: others may have filled the first.
        """
        result = self._call_once(work, task, *more)
        if isinstance(result, timing.OutOfMemory):
            self._stop()
            result = self._call_once(work, task, *more)
        if isinstance(result, timing.OutOfMemory):
            self._stop()
            detail = f"out of memory, in a fresh process too: {result.words}"
            return self._dead(task.config, Why.CRASH, detail)
        return result

    def _call_once(self, work: Callable[..., Any], task: timing.TimingTask, *more: object) -> Any:
        future = self._process().schedule(
            timing.watched, args=(work, task, *more), timeout=TASK_LIMIT_S
        )
        try:
            result, held = future.result()
        except FutureTimeout:
            return self._dead(task.config, Why.HANG, f"no answer within {TASK_LIMIT_S:.0f} s")
        except ProcessExpired as error:
            return self._dead(task.config, Why.CRASH, f"timing process ended: {error}")
        except Exception as error:  # noqa: BLE001 - whatever broke there, its process is not trusted again
            self._stop()
            return self._dead(task.config, Why.CRASH, f"{type(error).__name__}: {error}"[:500])
        if not isinstance(result, timing.OutOfMemory):
            self._deaths = 0
        self._least = min(self._least or held, held)
        if held - self._least > MEMORY_GROWTH_BYTES:
            self._stop()
        return result

    def _process(self) -> Any:
        """Return the pool of one process, started where there is none."""
        if self._pool is None:
            self.hold()
            self._pool = ProcessPool(
                max_workers=1,
                context=spawn_context(),
                initializer=timing.start,
                initargs=(
                    self.setting.kernel.name,
                    self.setting.seed,
                    str(triton_cache(self.cache_dir)),
                    self._uuid,
                ),
            )
        return self._pool

    def _dead(self, config: LaunchConfig, why: Why, detail: str) -> Rejected:
        self._deaths += 1
        if self._deaths >= MAX_DEATHS:
            raise WorkerLost(f"the timing process died {self._deaths} times in a row: {detail}")
        return Rejected(config=config, why=why, detail=detail)


def make(setting: Setting, *, cache_dir: Path, argument: str = "") -> GpuEvaluator:
    """Return the evaluator; `argument` is not used."""
    return GpuEvaluator(setting, cache_dir)


PROVIDES = make
