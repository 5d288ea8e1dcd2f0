"""A command line in a folder of its own, and a small recorded landscape."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rubin_tune.cli import main
from rubin_tune.db import (
    Evidence,
    Measurement,
    Rejected,
    Silicon,
    Spent,
    Toolchain,
    Trial,
    Why,
    Winner,
    open_store,
)
from rubin_tune.db.testing import REPORT
from rubin_tune.registry import load
from rubin_tune.search_spaces import LaunchConfig, Layout, Problem, Routing, Unit, load_model
from rubin_tune.topology import resolve_target
from rubin_tune.tuner import SweepRequest

GRID = {
    "BLOCK_SIZE_M": [16, 64],
    "BLOCK_SIZE_N": [64, 128],
    "BLOCK_SIZE_K": [64, 128],
    "GROUP_SIZE_M": [1, 16],
    "num_warps": [4, 8],
    "num_stages": [3, 4],
}
HEADER = {
    "kind": "header", "shape": "qwen3-30b-a3b", "E": 128, "H": 2048, "I": 768, "topk": 8,
    "global_E": 128, "dtype": "fp8", "gpu": "NVIDIA H200", "triton": "3.6.0", "torch": "2.11.0",
    "grid": GRID, "Ms": [16, 1024],
}  # fmt: skip

Run = Callable[..., Result]


def time_of(gemm: int, tokens: int, config: tuple[int, ...]) -> float:
    """A landscape with one optimum a token count: small tiles for few tokens, large for many."""
    block_m, block_n, block_k, group_m, warps, stages = config
    wanted = 16 if tokens < 100 else 64
    slow = 1.0 + (block_m != wanted) + 0.1 * (block_n == 64) + 0.05 * (block_k == 64)
    slow += 0.02 * (group_m == 16) + 0.03 * (warps == 8) + 0.01 * (stages == 3)
    return (100.0 if gemm == 1 else 60.0) * (tokens / 16) ** 0.5 * slow


@pytest.fixture
def landscape(tmp_path: Path) -> Path:
    """Write a recorded landscape; four points failed."""
    path = tmp_path / "landscape.jsonl.gz"
    lines = [json.dumps(HEADER)]
    for gemm, tokens in itertools.product((1, 2), (16, 1024)):
        for number, config in enumerate(itertools.product(*GRID.values())):
            row = {"g": gemm, "M": tokens, "c": list(config), "sh": 40960, "ct": 1.0}
            if number == 3:
                row |= {"st": "compile error"}
            else:
                base = time_of(gemm, tokens, config)
                row |= {"regs": 100, "spill": 0, "lat": 0.1, "t": [base, base * 1.01, base * 0.99]}
            lines.append(json.dumps(row))
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder with its own database and cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUBIN_TUNE_DB", str(tmp_path / "trials.sqlite"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(main, ["-q", *words])

    return invoke


MEASURED = Silicon(
    name="NVIDIA H200", arch=90, sms=132, memory_bytes=150_754_820_096,
    shared_limit_bytes=232_448, power_limit_w=700,
)  # fmt: skip
TOOLS = Toolchain(triton="3.9.0", ptxas="13.4", torch="2.13.0", driver="580.1")


def measured_sweep(
    path: Path, *, sweep_id: str = "feed0001", slower: float = 1.0, count: int = 12,
    stopped: bool = False, silicon: Silicon = MEASURED,
) -> Path:  # fmt: skip
    """Store a finished sweep of our kernel as if an H200 had been there: times, seconds, refusals."""
    kernel: Any = load("kernels", "megamoe")
    gpu = resolve_target("h200")
    shape = load_model("qwen3-30b-a3b")
    problems = [
        Problem(shape=shape, layout=Layout(), routing=Routing(kind="uniform"), tokens=tokens)
        for tokens in (16, 256)
    ]
    with open_store(path) as store:
        store.begin_sweep(sweep_id, sweep_id, asdict(SweepRequest(model="qwen3-30b-a3b")))
        for problem, unit in itertools.product(problems, kernel.units()):
            default = kernel.default(problems[0], unit, gpu)
            configs = [default, *kernel.space(problem, unit, gpu).neighbours(default)][:count]
            rows = [
                replace(
                    measured_trial(kernel, problem, unit, config, number, sweep_id, slower),
                    silicon=silicon,
                )
                for number, config in enumerate(configs)
            ]
            store.add_trials(rows)
            if stopped:
                continue
            best = min((r for r in rows if r.time_us), key=lambda r: r.time_us or 0.0)
            store.add_winners([winner_of(unit, best, rows[0])])
            if unit is kernel.units()[-1]:
                store.add_winners([winner_of(Unit.LAYER, best, rows[0])])
        if stopped:
            store.stop_sweep(sweep_id)
        else:
            store.finish_sweep(sweep_id, {"space": 9000, "legal": 800, "evaluated": 1})
    return path


def measured_trial(
    kernel: Any, problem: Problem, unit: Unit, config: LaunchConfig, number: int, sweep_id: str,
    slower: float,
) -> Trial:  # fmt: skip
    """Return a trial; every fifth is refused, every third spills."""
    time_us = slower * (20.0 + problem.tokens / 4 + (number - 2) ** 2)
    refused = Rejected(config=config, why=Why.WRONG_RESULT, detail="relative error <b>0.4</b>")
    is_refused = number % 5 == 4
    measured = Measurement(samples_us=(time_us, time_us * 1.01, time_us * 0.99), policy="graph8/1")
    return Trial(
        sweep_id=sweep_id,
        kernel=kernel.name,
        source_hash=kernel.source_hash(),
        problem=problem,
        unit=unit,
        config=config,
        silicon=MEASURED,
        toolchain=TOOLS,
        policy="graph8/1",
        evidence=Evidence.MEASURED,
        time_us=None if is_refused else time_us,
        interval_us=None if is_refused else (time_us * 0.99, time_us * 1.01),
        measurement=None if is_refused else measured,
        rejected=refused if is_refused else None,
        compile=replace(
            REPORT, registers=96 + number, spill_bytes=64 * (number % 3 == 2), compile_s=1.0,
            cubin_sha256=f"{number:064d}",
        ),
        spent=Spent(at_s=2.0 * number + 1.0, verify_s=0.5, time_s=0.25),
    )  # fmt: skip


def winner_of(unit: Unit, best: Trial, default: Trial) -> Winner:
    """Return the winner of a table."""
    return Winner(
        sweep_id=best.sweep_id,
        kernel=best.kernel,
        source_hash=best.source_hash,
        problem=best.problem,
        unit=unit,
        config=best.config,
        time_us=best.time_us or 0.0,
        interval_us=best.interval_us or (0.0, 0.0),
        default_config=default.config,
        default_time_us=default.time_us or 0.0,
        evidence=Evidence.MEASURED,
        silicon=MEASURED,
        toolchain=TOOLS,
        policy="graph8/1",
        compile=best.compile,
    )


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Return a database that holds a measured sweep."""
    return measured_sweep(tmp_path / "measured.sqlite")


@pytest.fixture
def sweeps() -> Callable[..., Path]:
    """Return the function that stores a measured sweep."""
    return measured_sweep
