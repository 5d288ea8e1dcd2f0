"""Compiling many variants in processes that can be killed, each within a time limit.

Whatever a compiler does (an error, a crash, a hang) is a value. Reports are cached on disk, keyed by all that
changes the code; the token count does not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from ..db import CompileReport, Rejected, Toolchain, Why
from ..db.codec import (
    compile_from_json,
    compile_to_json,
    problem_from_json,
    problem_to_json,
    rejected_from_json,
    rejected_to_json,
    toolchain_from_json,
    toolchain_to_json,
)
from ..errors import InvalidInput, StorageFull, WorkerLost
from ..registry import load
from ..search_spaces import LaunchConfig, Problem, Unit
from .compile import report_on
from .make import default_cache_dir
from .toolchain import toolchain

TIME_LIMIT_S = 120.0
# Triton and LLVM keep memory of each compilation: a worker is replaced after this many.
TASKS_A_WORKER = 200
_FORMAT = 1
_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """One variant for one target."""

    kernel: str
    problem: Problem
    unit: Unit
    config: LaunchConfig
    arch: int

    def key(self, source_hash: str, made_by: Toolchain) -> str:
        """Hash of everything that changes the code: neither tokens nor routing nor the model's name."""
        record = problem_to_json(self.problem.at(_TOKENS))
        shape = dict(record["shape"])
        for name in ("model", "also", "layers", "top_k" if self.unit is Unit.DOWN else "model"):
            shape.pop(name, None)
        parts = {
            "format": _FORMAT,
            "kernel": [self.kernel, source_hash],
            "shape": shape,
            "layout": record["layout"],
            "unit": self.unit.value,
            "config": self.config.key,
            "arch": self.arch,
            "toolchain": made_by.key,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


Outcome = CompileReport | Rejected


@dataclass(slots=True, kw_only=True)
class CompileFarm:
    """Compile processes, started when the first job is not in the cache.

    Args:
        jobs: Processes; None = one a core.
        cache_dir: Folder of reports and of Triton's own cache; None = the user's cache folder.
        time_limit_s: Seconds a variant may take.
        work: What a process does with a job (tests give their own).
    """

    jobs: int | None = None
    cache_dir: Path | None = None
    time_limit_s: float = TIME_LIMIT_S
    work: Any = None
    _pool: Any = field(default=None, init=False)

    def run(self, jobs: Sequence[CompileJob]) -> Iterator[tuple[CompileJob, Outcome]]:
        """Yield each job with its outcome, cached ones first, then as they complete.

        Raises:
            StorageFull: no room to cache a report.
            WorkerLost: processes cannot be started.
        """
        waiting = []
        for job in jobs:
            cached = self._cached(job)
            if cached is None:
                waiting.append(job)
            else:
                yield job, cached
        futures = {self._schedule(job): job for job in waiting}
        for future in as_completed(futures):
            job = futures[future]
            outcome = self._outcome(future, job)
            self._keep(job, outcome)
            yield job, outcome

    def close(self) -> None:
        """End the processes at once; what was not yielded is lost."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def _schedule(self, job: CompileJob) -> Any:
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self.jobs or os.cpu_count() or 1,
                max_tasks=TASKS_A_WORKER,
                context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(str(triton_cache(self.cache_dir)),),
            )
        return self._pool.schedule(
            self.work or compile_job, args=(job,), timeout=self.time_limit_s
        )

    def _outcome(self, future: Any, job: CompileJob) -> Outcome:
        try:
            found: Outcome = future.result()
        except FutureTimeout:
            detail = f"not done within {self.time_limit_s:.0f} s"
            return Rejected(config=job.config, why=Why.COMPILE_TIMEOUT, detail=detail)
        except ProcessExpired as error:
            detail = f"the compiler's process ended: {error}"
            return Rejected(config=job.config, why=Why.CRASH, detail=detail)
        except RuntimeError as error:
            raise WorkerLost(f"compile processes cannot be kept alive: {error}") from error
        return found

    def _path(self, job: CompileJob) -> Path:
        kernel: Any = load("kernels", job.kernel)
        key = job.key(kernel.source_hash(), toolchain(job.arch))
        return (self.cache_dir or default_cache_dir()) / "reports" / key[:2] / f"{key}.json"

    def _cached(self, job: CompileJob) -> Outcome | None:
        path = self._path(job)
        try:
            return outcome_from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, InvalidInput):
            # A report that a crash cut short is no report: compile again and write it anew.
            return None

    def _keep(self, job: CompileJob, outcome: Outcome) -> None:
        if isinstance(outcome, Rejected):
            return  # what failed may not fail again; the database remembers it for a sweep
        path = self._path(job)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
                json.dump(outcome_to_json(outcome), file)
            Path(file.name).replace(path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull(f"no room for compiled variants under {path.parent}") from error
            raise WorkerLost(f"cannot cache under {path.parent}: {error.strerror}") from error


def compile_job(job: CompileJob) -> Outcome:
    """Compile one job in this process; the compiler's own words come back where it refuses."""
    kernel: Any = load("kernels", job.kernel)
    problem = job.problem.at(_TOKENS)
    inputs = kernel.make_inputs(problem, device="meta", seed=0)
    launch = kernel.launches(problem, job.unit, job.config, inputs)[-1]
    try:
        return report_on(launch, job.arch)
    except Exception as error:  # noqa: BLE001 - triton, LLVM and ptxas raise what they like
        return Rejected(config=job.config, why=Why.COMPILE_ERROR, detail=_words(error))


def compile_one(
    job: CompileJob, *, cache_dir: Path | None = None, python: str | None = None
) -> tuple[CompileReport, Toolchain] | Rejected:
    """Compile one job, here or with another Python's triton; return its report and its toolchain.

    Raises:
        InvalidInput: that Python cannot run our compile worker.
    """
    if python is not None:
        return _elsewhere(job, python)
    farm = CompileFarm(jobs=1, cache_dir=cache_dir)
    try:
        ((_, outcome),) = farm.run([job])
    finally:
        farm.close()
    return outcome if isinstance(outcome, Rejected) else (outcome, toolchain(job.arch))


def triton_cache(cache_dir: Path | None) -> Path:
    """Return Triton's cache folder: the timing process finds there what the farm compiled."""
    return (cache_dir or default_cache_dir()) / "triton"


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values."""
    if isinstance(outcome, Rejected):
        return {"rejected": rejected_to_json(outcome)}
    return {"report": compile_to_json(outcome)}


def outcome_from_json(found: dict[str, Any]) -> Outcome:
    """Read what `outcome_to_json` wrote."""
    if "rejected" in found:
        return rejected_from_json(found["rejected"])
    return compile_from_json(found["report"])


def job_to_json(job: CompileJob) -> dict[str, Any]:
    """Return a job as JSON values."""
    return {
        "kernel": job.kernel,
        "problem": problem_to_json(job.problem),
        "unit": job.unit.value,
        "config": job.config.as_dict(),
        "arch": job.arch,
    }


def job_from_json(found: dict[str, Any]) -> CompileJob:
    """Read what `job_to_json` wrote."""
    return CompileJob(
        kernel=found["kernel"],
        problem=problem_from_json(found["problem"]),
        unit=Unit(found["unit"]),
        config=LaunchConfig.of(found["config"]),
        arch=found["arch"],
    )


def _elsewhere(job: CompileJob, python: str) -> tuple[CompileReport, Toolchain] | Rejected:
    # Our package lies in src/ as links or in site-packages: either way its parent's parent.
    home = Path(sys.modules["rubin_tune"].__file__ or "").resolve().parents[1]
    command = [python, "-m", "rubin_tune.tuner.compile_worker"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job_to_json(job)),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            env={**os.environ, "PYTHONPATH": str(home)},
            check=False,
        )
    except OSError as error:
        raise InvalidInput(f"cannot run {python!r}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        detail = f"not done within {TIME_LIMIT_S:.0f} s"
        return Rejected(config=job.config, why=Why.COMPILE_TIMEOUT, detail=detail)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise InvalidInput(f"{python!r} cannot compile for us: {last[:300]}")
    found = json.loads(done.stdout)
    outcome = outcome_from_json(found["outcome"])
    if isinstance(outcome, Rejected):
        return outcome
    return outcome, toolchain_from_json(found["toolchain"])


def worker_answer(job: CompileJob) -> dict[str, Any]:
    """Return what the compile worker prints: the outcome and the toolchain that made it."""
    return {
        "outcome": outcome_to_json(compile_job(job)),
        "toolchain": toolchain_to_json(toolchain(job.arch)),
    }


def _start_worker(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    # Triton prints whole PTX files where ptxas refuses them; stdout belongs to our results.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def _words(error: BaseException) -> str:
    text = str(error) or repr(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return f"{type(error).__name__}: {' | '.join(telling[:3])}"[:800]
