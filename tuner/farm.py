"""Compiling many variants in processes that can be killed, each within a time limit.

Whatever a compiler does (an error, a crash, a hang) is a value. Reports are cached on disk, keyed by all that
changes the code; the token count does not.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pebble import ProcessExpired, ProcessPool

from ..db import CompileReport, Rejected, Toolchain, Why
from ..errors import InvalidInput, StorageFull, WorkerLost
from ..registry import load
from .elsewhere import compile_elsewhere
from .jobs import CompileJob as CompileJob
from .jobs import Outcome, compile_job, outcome_from_json, outcome_to_json
from .make import default_cache_dir
from .processes import end_group, lead_group, spawn_context
from .toolchain import toolchain

TIME_LIMIT_S = 120.0
# Triton and LLVM keep memory of each compilation: a worker is replaced after this many.
TASKS_A_WORKER = 200
# Jobs handed to the pool ahead of the caller beside one a worker: it goes on while the caller times.
_AHEAD = 4
# Seconds after which a slow job is passed by the ones behind it.
PATIENCE_S = 10.0
_TELLING = re.compile(r"error|fatal|assert|abort|unsupported|segmentation", re.IGNORECASE)


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pending:
    """An outcome that is known, or a process that is at it."""

    outcome: Outcome | None = None
    future: Any = None

    @property
    def done(self) -> bool:
        return self.future is None or bool(self.future.done())


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
    work: Callable[[CompileJob], Outcome] = compile_job
    _pool: Any = field(default=None, init=False)
    _logs: Path | None = field(default=None, init=False)
    _running: dict[Any, tuple[CompileJob, Path]] = field(default_factory=dict, init=False)
    _started: int = field(default=0, init=False)

    def run(self, jobs: Iterable[CompileJob]) -> Iterator[tuple[CompileJob, Outcome]]:
        """Yield each job with its outcome: `stream` of jobs alone."""
        with closing(self.stream((job, job) for job in jobs)) as found:
            for job, outcome in found:
                if outcome is not None:
                    yield job, outcome

    def stream(
        self, items: Iterable[tuple[Item, CompileJob | None]]
    ) -> Generator[tuple[Item, Outcome | None], None, None]:
        """Yield each item with its job's outcome (None without a job), in order.

        Items are drawn only as far ahead as keeps every process busy, so that the caller may decide
        on later ones by the outcomes of earlier ones. A job that takes longer than `PATIENCE_S` is
        passed by those behind it that are done.

        Raises:
            StorageFull: no room to cache a report.
            WorkerLost: processes cannot be started.
        """
        source = iter(items)
        line: deque[tuple[Item, _Pending]] = deque()
        try:
            while True:
                while len(line) < self._workers + _AHEAD:
                    drawn = next(source, None)
                    if drawn is None:
                        break
                    line.append((drawn[0], self._begin(drawn[1])))
                if not line:
                    return
                item, pending = line[self._ready([p for _, p in line])]
                line.remove((item, pending))
                yield item, self._finished(pending)
        finally:
            # The caller left early, or was interrupted: nobody asks for the rest any more.
            if self._running:
                self.close()

    def _begin(self, job: CompileJob | None) -> _Pending:
        if job is None:
            return _Pending()
        cached = self._cached(job)
        return _Pending(outcome=cached) if cached else _Pending(future=self._schedule(job))

    def _ready(self, line: Sequence[_Pending]) -> int:
        """Return the place of the first in line; of another that is done while the first keeps all waiting."""
        if line[0].future is not None:
            wait([line[0].future], timeout=PATIENCE_S)
        while True:
            place = next((i for i, p in enumerate(line) if p.done), None)
            if place is not None:
                return place
            wait([p.future for p in line], return_when=FIRST_COMPLETED)

    def _finished(self, pending: _Pending) -> Outcome | None:
        if pending.future is None:
            return pending.outcome
        job, log = self._running.pop(pending.future)
        outcome = self._outcome(pending.future, job, log)
        self._keep(job, outcome)
        return outcome

    def close(self) -> None:
        """End the processes at once; what was not yielded is lost."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None
        for _, log in self._running.values():
            end_group(_pid_of(log))
        self._running.clear()
        if self._logs is not None:
            shutil.rmtree(self._logs, ignore_errors=True)
            self._logs = None

    @property
    def _workers(self) -> int:
        return self.jobs or os.cpu_count() or 1

    def _schedule(self, job: CompileJob) -> Any:
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self._workers,
                max_tasks=TASKS_A_WORKER,
                context=spawn_context(),
                initializer=_start_worker,
                initargs=(str(triton_cache(self.cache_dir)),),
            )
        if self._logs is None:
            self._logs = Path(tempfile.mkdtemp(prefix="rubin-tune-logs-"))
        log = self._logs / f"{self._started}.log"
        self._started += 1
        try:
            future = self._pool.schedule(
                _logged, args=(self.work, job, str(log)), timeout=self.time_limit_s
            )
        except RuntimeError as error:
            raise WorkerLost(f"compile processes cannot be kept alive: {error}") from error
        self._running[future] = (job, log)
        return future

    def _outcome(self, future: Any, job: CompileJob, log: Path) -> Outcome:
        try:
            found: Outcome = future.result()
        except FutureTimeout:
            end_group(_pid_of(log))
            detail = f"not done within {self.time_limit_s:.0f} s"
            return Rejected(config=job.config, why=Why.COMPILE_TIMEOUT, detail=detail)
        except ProcessExpired as error:
            end_group(_pid_of(log))
            detail = f"the compiler's process ended {_ending(error.exitcode)}{_told(log)}"
            return Rejected(config=job.config, why=Why.CRASH, detail=detail)
        except BrokenProcessPool as error:
            raise WorkerLost(f"compile processes cannot be kept alive: {error}") from error
        except OSError as error:
            raise _broken_storage(error, log.parent) from error
        if isinstance(found, Rejected) and "PassManager" in found.detail:
            # MLIR names the pass in the exception and prints the reason.
            found = replace(found, detail=found.detail + _told(log))
        log.unlink(missing_ok=True)
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
            _write(path, json.dumps(outcome_to_json(outcome)))
        except OSError as error:
            raise _broken_storage(error, path.parent) from error


def compile_one(
    job: CompileJob, *, cache_dir: Path | None = None, python: str | None = None
) -> tuple[CompileReport, Toolchain] | Rejected:
    """Compile one job, here or with another Python's triton; return its report and its toolchain.

    Raises:
        InvalidInput: that Python cannot run our compile worker.
        UnsupportedTarget: that Python's triton cannot compile for the target.
    """
    if python is not None:
        cache = triton_cache(cache_dir)
        return compile_elsewhere(job, python, triton_cache=cache, time_limit_s=TIME_LIMIT_S)
    farm = CompileFarm(jobs=1, cache_dir=cache_dir)
    try:
        ((_, outcome),) = farm.run([job])
    finally:
        farm.close()
    return outcome if isinstance(outcome, Rejected) else (outcome, toolchain(job.arch))


def triton_cache(cache_dir: Path | None) -> Path:
    """Return Triton's cache folder: the timing process finds there what the farm compiled."""
    return (cache_dir or default_cache_dir()) / "triton"


def _broken_storage(error: OSError, folder: Path) -> StorageFull | WorkerLost:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room for compiled variants under {folder}")
    return WorkerLost(f"cannot write under {folder}: {error.strerror or error}")


def _write(path: Path, text: str) -> None:
    """Write a file that is whole or not there."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        written = Path(file.name)
        try:
            file.write(text)
            file.flush()
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)


def _start_worker(cache: str) -> None:
    lead_group()
    os.environ["TRITON_CACHE_DIR"] = cache


def _logged(work: Callable[[CompileJob], Outcome], job: CompileJob, log: str) -> Outcome:
    """Do the work with all output in a file, which starts with this process's id.

    Triton prints whole PTX files where ptxas refuses them, and a compiler that aborts says why on stderr.
    """
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(file, f"{os.getpid()}\n".encode())
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    return work(job)


def _pid_of(log: Path) -> int:
    """Return the process that a log belongs to, 0 where the job never began."""
    lines = log.read_text(errors="replace").split("\n", 1) if log.exists() else [""]
    return int(lines[0]) if lines[0].isdigit() else 0


def _told(log: Path) -> str:
    """Return what a compiler said before it failed, as the end of a sentence."""
    lines = log.read_text(errors="replace").splitlines()[1:] if log.exists() else []
    telling = [line.strip() for line in lines if _TELLING.search(line)]
    return f": {' | '.join(telling[:3])[:600]}" if telling else ""


def _ending(code: int) -> str:
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"
