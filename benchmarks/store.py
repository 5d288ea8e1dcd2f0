"""What the store costs: commits a second, and questions to a database of a million trials.

Run `python -m benchmarks.store [--json] [--trials N] [--check]`. The trials are made up, of real problems and
configs (megamoe on an H200): half measured with eight samples, half predicted with the cost model's own
breakdown, each with a compile report. Times are of this machine's CPU and disk: measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from statistics import median

from rubin_tune.db import (
    CompileReport,
    Evidence,
    Measurement,
    Prediction,
    Store,
    Toolchain,
    Trial,
    Winner,
    open_store,
)
from rubin_tune.db.check import check_database
from rubin_tune.db.schema import trials as trials_table
from rubin_tune.db.silicon import silicon_of
from rubin_tune.errors import InvalidConfig
from rubin_tune.search_spaces import (
    GEMMS,
    VLLM_LADDER,
    LaunchConfig,
    Problem,
    Unit,
    load_model,
    parse_layout,
    parse_routing,
)
from rubin_tune.search_spaces.megamoe import default, space
from rubin_tune.topology import load_gpu
from rubin_tune.tuner import cost_model
from rubin_tune.tuner.present import database_statistics

_GPU = "h200"
_MODEL = "qwen3-30b-a3b"
# Configs of a problem and GEMM, as many as a sweep tries.
_CONFIGS = 96
# Trials that are written through the store into the large database.
_OWN = 50_000
_TOOLCHAIN = Toolchain(triton="3.9.0", ptxas="13.4.59", torch="2.13.0", driver="580.82")
_SOURCE = hashlib.sha256(b"benchmark").hexdigest()[:16]


class Rows:
    """Trials and winners, the same for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        """Draw the configs."""
        self._draw = random.Random(seed)
        self._gpu = load_gpu(_GPU)
        shape = load_model(_MODEL)
        self._problem = Problem(
            shape=shape,
            layout=parse_layout("single", shape, self._gpu),
            routing=parse_routing("uniform"),
            tokens=1,
        )
        self._silicon = silicon_of(self._gpu)
        self._reports: dict[tuple[Unit, LaunchConfig], CompileReport] = {}
        self._predictions: dict[tuple[Unit, LaunchConfig], Prediction] = {}
        self._configs = {unit: self._some(unit) for unit in GEMMS}

    def _some(self, unit: Unit) -> list[LaunchConfig]:
        base = default(self._problem, unit, self._gpu)
        legal = space(self._problem, unit, self._gpu).legal()
        drawn = [base, *self._draw.sample(legal, min(4 * _CONFIGS, len(legal)))]
        return [c for c in dict.fromkeys(drawn) if self._runs(unit, c)][:_CONFIGS]

    def _runs(self, unit: Unit, config: LaunchConfig) -> bool:
        """Note a config's report and prediction; some need more than an SM has."""
        guess = cost_model.guess_report(self._problem, unit, config, self._gpu)
        text = f"{unit.value} {config.key}"
        report = replace(guess, cubin_sha256=hashlib.sha256(text.encode()).hexdigest())
        try:
            found = cost_model.predict(self._problem, unit, config, report, self._gpu)
        except InvalidConfig:
            return False
        self._reports[unit, config] = report
        self._predictions[unit, config] = found
        return True

    def problems(self) -> Iterator[Problem]:
        """Return problems without end: one layer under routings that differ a little."""
        for number in count(1):
            routing = parse_routing(f"lognormal:{number / 1000}")
            for tokens in VLLM_LADDER:
                yield replace(self._problem, routing=routing).at(tokens)

    def trials(self) -> Iterator[Trial]:
        """Return trials without end."""
        for problem in self.problems():
            for unit in GEMMS:
                for config in self._configs[unit]:
                    yield self._trial(problem, unit, config)

    def winners(self) -> Iterator[Winner]:
        """Return a winner for each problem and GEMM, without end."""
        for problem in self.problems():
            for unit in GEMMS:
                yield _winner_of(
                    self._trial(problem, unit, self._draw.choice(self._configs[unit]))
                )

    def _trial(self, problem: Problem, unit: Unit, config: LaunchConfig) -> Trial:
        place = unit, config
        prediction = self._predictions[place]
        time_us = prediction.time_us * problem.tokens**0.5 * self._draw.uniform(0.9, 1.1)
        measured = self._draw.random() < 0.5
        samples = tuple(time_us * self._draw.uniform(0.99, 1.01) for _ in range(8))
        measurement = Measurement(samples_us=samples, policy="graph8/1", launches_per_sample=8)
        middle = measurement.median_us if measured else time_us
        return Trial(
            sweep_id="benchmark",
            kernel="megamoe",
            source_hash=_SOURCE,
            problem=problem,
            unit=unit,
            config=config,
            silicon=self._silicon,
            toolchain=_TOOLCHAIN,
            policy="graph8/1" if measured else "cost-model/1",
            evidence=Evidence.MEASURED if measured else Evidence.PREDICTED,
            time_us=middle,
            interval_us=(min(samples), max(samples)) if measured else (middle, middle),
            compile=self._reports[place],
            prediction=None if measured else replace(prediction, time_us=time_us),
            measurement=measurement if measured else None,
        )


def _winner_of(trial: Trial) -> Winner:
    """Return a winner that stands on a trial."""
    time_us = trial.time_us or 0.0
    return Winner(
        sweep_id=trial.sweep_id,
        kernel=trial.kernel,
        source_hash=trial.source_hash,
        problem=trial.problem,
        unit=trial.unit,
        config=trial.config,
        time_us=time_us,
        interval_us=trial.interval_us or (time_us, time_us),
        default_config=trial.config,
        default_time_us=time_us,
        evidence=trial.evidence,
        silicon=trial.silicon,
        toolchain=trial.toolchain,
        policy=trial.policy,
        compile=trial.compile,
    )


def _opened(path: Path) -> Store:
    store = open_store(path)
    store.begin_sweep("benchmark", "print", {})
    return store


def insert_rate(path: Path, trials: list[Trial], batch: int) -> float:
    """Return committed trials a second, `batch` in each transaction."""
    with _opened(path) as store:
        started = time.perf_counter()
        for start in range(0, len(trials), batch):
            store.add_trials(trials[start : start + batch])
        return len(trials) / (time.perf_counter() - started)


def fill(path: Path, trials: int, winners: int) -> list[Problem]:
    """Write many trials, and winners of other problems too; return the winners' problems.

    The first 50,000 trials go through the store; the database copies them under other policies'
    names, which are part of a key, until there are enough.
    """
    rows = Rows()
    own = min(trials, _OWN)
    with _opened(path) as store:
        stream = rows.trials()
        for start in range(0, own, 5000):
            store.add_trials(list(islice(stream, min(5000, own - start))))
        won = list(islice(rows.winners(), winners))
        store.add_winners(won)
        store.finish_sweep("benchmark", {})
    names = ", ".join(c.name for c in trials_table.c if c.name not in ("id", "policy"))
    with closing(sqlite3.connect(path)) as connection:
        for number, start in enumerate(range(own, trials, own), start=1):
            connection.execute(
                f"INSERT INTO trials (policy, {names}) SELECT policy || '#{number}', {names} "
                "FROM trials ORDER BY id LIMIT ?",
                (min(own, trials - start),),
            )
            connection.commit()
    return [winner.problem for winner in won]


def middle_ms(call: Callable[[], object], times: int) -> float:
    """Return the median time of a call, in milliseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - started))
    return median(taken)


def figures(folder: Path, trials: int, inserts: int, *, check: bool) -> dict[str, float]:
    """Return every figure."""
    sample = list(islice(Rows(1).trials(), inserts))
    found = {
        "insert_one_per_s": insert_rate(folder / "one.db", sample[: max(1, inserts // 4)], 1),
        "insert_100_per_s": insert_rate(folder / "many.db", sample, 100),
    }
    path = folder / "large.db"
    some = fill(path, trials, max(1, trials // 100))
    draw = random.Random(2)
    with open_store(path) as store:
        winners_ms = middle_ms(lambda: store.winners(problems=[draw.choice(some)]), 25)
    stats = database_statistics(path)
    found |= {
        "trials": stats["rows"]["trials"],
        "winners": stats["rows"]["winners"],
        "winners_of_a_problem_ms": winners_ms,
        "db_stats_s": middle_ms(lambda: database_statistics(path), 3) / 1e3,
        "bytes_per_trial": stats["bytes_per_trial"],
        "file_mb": stats["bytes"] / 1e6,
    }
    if check:
        started = time.perf_counter()
        findings = check_database(path)[1]
        found |= {"db_check_s": time.perf_counter() - started, "findings": len(findings)}
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    parser.add_argument("--trials", type=int, default=1_000_000, help="of the large database")
    parser.add_argument("--inserts", type=int, default=8_000, help="of the insertion tests")
    parser.add_argument("--check", action="store_true", help="also time db check")
    parser.add_argument("--folder", type=Path, help="where the databases lie meanwhile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        found = figures(Path(folder), given.trials, given.inserts, check=given.check)
    if given.json:
        print(json.dumps({name: round(value, 3) for name, value in found.items()}, indent=2))
        return
    for name, value in found.items():
        print(f"{name:28} {value:14,.1f}")


if __name__ == "__main__":
    main()
