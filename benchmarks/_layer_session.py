"""One run of `moe_layer`: configs, the machine's figures, regime after regime."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rubin_tune.errors import RubinTuneError
from rubin_tune.kernels.megamoe import PROVIDES as MEGAMOE
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import Problem
from rubin_tune.topology import Gpu, detect_gpu, load_gpu
from rubin_tune.tuner import timing
from rubin_tune.tuner.toolchain import toolchain

from . import _layer_configs as configs
from ._layer_case import Case, draw_inputs
from ._layer_contenders import (
    Contender,
    DeepGemm,
    DenseMatmul,
    ExpertLoop,
    GroupedMM,
    Ours,
    Transformers,
    Vllm,
)
from ._layer_machine import Clock, CpuClock, GpuClock, measure_machine, read_clocks
from ._layer_print import as_json, lines
from ._layer_regimes import REGIMES, TINY, Regime, chosen
from ._layer_run import Measured, measure

SCHEMA = "rubin-tune.moe-layer/1"


@dataclass(slots=True, kw_only=True)
class Session:
    """What stays the same over all regimes."""

    gpu: Gpu
    clock: Clock
    cache_dir: Path
    routing: str
    seed: int
    table: Table | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    refused: dict[configs.Variant, str] = field(default_factory=dict)
    bench: timing.Bench = field(init=False)

    def __post_init__(self) -> None:
        """Keep one model's weights on the GPU at a time."""
        self.bench = timing.Bench(MEGAMOE, self.seed)

    def problems(self, regimes: Sequence[Regime]) -> list[tuple[Regime, Problem]]:
        """Return each regime with its problem."""
        return [(regime, regime.problem(self.gpu, self.routing)) for regime in regimes]

    def contenders(self, problem: Problem) -> list[Contender]:
        """Return everybody, ours first."""
        tuned = configs.winners(self.table, "megamoe", problem, self.gpu)
        default = configs.defaults("megamoe", problem, self.gpu)
        engine = configs.winners(self.table, "fused_moe", problem, self.gpu)
        if not engine.configs and problem.shape.weights != "mxfp4":
            engine = configs.defaults("fused_moe", problem, self.gpu)
        return [
            self._ours("ours tuned", problem, tuned),
            self._ours("ours default", problem, default),
            GroupedMM(),
            Transformers(),
            ExpertLoop(),
            Vllm(configs=engine.configs, why=engine.why),
            DeepGemm(),
            DenseMatmul(),
        ]

    def _ours(self, name: str, problem: Problem, choice: configs.Choice) -> Ours:
        unfit = choice.unfit
        for unit, config in choice.configs.items():
            unfit = unfit or self.refused.get((configs.code_of(problem), unit, config), "")
        return Ours(name=name, configs=choice.configs, unfit=unfit, why=choice.why)

    def case(self, regime: Regime, problem: Problem) -> Case:
        """Return a regime's tensors."""
        if self.clock.device == "cuda":
            owners = self.bench.owners(problem)
        else:
            owners = [MEGAMOE.make_inputs(problem, device=self.clock.device, seed=self.seed)]
        inputs = draw_inputs(
            problem, owners, rows=regime.rows, rotation=self.clock.rotation, seed=self.seed
        )
        return Case(regime=regime, problem=problem, gpu=self.gpu, inputs=inputs)


def run(asked: argparse.Namespace, cache_dir: Path) -> int:
    """Measure what was asked for; return the exit code."""
    regimes = chosen(TINY if asked.tiny else REGIMES, asked.only)
    if asked.list:
        print("\n".join(regime.name for regime in regimes))
        return 0
    if not regimes:
        print(f"no regime's name holds any of {' '.join(asked.only)}: see --list", file=sys.stderr)
        return 2
    try:
        session = _open(asked, cache_dir)
        _find_configs(session, asked, regimes)
    except RubinTuneError as error:
        print(error, file=sys.stderr)
        return 2
    document = _document(session, sys.argv[1:])
    bad = 0
    for found, reasons in _measured(session, regimes):
        print("\n".join(lines(found, session.machine)))
        print(f"  ours tuned: {reasons['ours tuned']['why'] or 'none'}\n", flush=True)
        row = {**as_json(found, session.machine), "configs": reasons}
        document["regimes"].append(row)
        bad += sum(bool(result.wrong) for result in found.results)
        if asked.out:
            asked.out.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if bad else 0


def _open(asked: argparse.Namespace, cache_dir: Path) -> Session:
    if asked.device == "cpu":
        clock: Clock = CpuClock()
        gpu = load_gpu("h200")
    else:
        live = detect_gpu()
        if live is None:
            raise SystemExit(
                "no CUDA GPU here: --device cpu --tiny checks the program without one"
            )
        clock, gpu = GpuClock(), live
    return Session(
        gpu=gpu, clock=clock, cache_dir=cache_dir, routing=asked.routing, seed=asked.seed
    )


def _find_configs(session: Session, asked: argparse.Namespace, regimes: Sequence[Regime]) -> None:
    """Read winners, sweep for those that lack, compile all, measure the machine."""
    trials = asked.trials if asked.trials is not None else 0 if asked.db else 32
    # A sweep makes the database where there is none.
    if asked.db and ("://" in asked.db or Path(asked.db).exists() or not trials):
        session.table = Table.load(asked.db)
    if session.clock.device != "cuda":
        return
    problems = session.problems(regimes)
    if trials:
        missing = configs.lacking(session.table, "megamoe", problems, session.gpu)
        database = asked.db or str(session.cache_dir / "winners.sqlite")
        configs.sweep_into(
            database, missing, routing=session.routing, trials=trials, cache_dir=session.cache_dir
        )
        session.table = Table.load(database)
    _note("compiling")
    session.refused = configs.compile_all(
        _variants(session, problems), session.gpu, session.cache_dir
    )
    _note("measuring the machine")
    session.machine = measure_machine()
    for name, value in session.machine.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")
    print()


def _variants(
    session: Session, problems: Sequence[tuple[Regime, Problem]]
) -> Iterator[configs.Variant]:
    for _, problem in problems:
        for choice in (
            configs.winners(session.table, "megamoe", problem, session.gpu),
            configs.defaults("megamoe", problem, session.gpu),
        ):
            yield from ((problem, unit, config) for unit, config in choice.configs.items())


def _measured(
    session: Session, regimes: Sequence[Regime]
) -> Iterator[tuple[Measured, dict[str, Any]]]:
    before: Case | None = None
    for regime, problem in session.problems(regimes):
        started = time.monotonic()
        contenders = session.contenders(problem)
        case = session.case(regime, problem)
        # Token counts of one model share weights, and so their bf16 copies.
        case.adopt(before)
        before = case
        found = measure(case, contenders, session.clock)
        reasons = {
            c.name: {
                "why": c.why,
                **{unit.value: config.as_dict() for unit, config in c.configs.items()},
            }
            for c in contenders
            if isinstance(c, Ours | Vllm)
        }
        _note(f"{regime.name} took {time.monotonic() - started:.1f} s")
        yield found, reasons
        if session.clock.device == "cuda":
            torch.cuda.empty_cache()


def _document(session: Session, command: Sequence[str]) -> dict[str, Any]:
    cuda = session.clock.device == "cuda"
    made_by = toolchain(session.gpu.arch) if cuda else None
    return {
        "schema": SCHEMA,
        "command": ["python", "-m", "benchmarks.moe_layer", *command],
        "evidence": "measured" if cuda else "self-check: the times mean nothing",
        "gpu": session.gpu.title,
        "sms": session.gpu.sms,
        "toolchain": made_by.key if made_by else f"torch {torch.__version__}",
        "kernel_source": MEGAMOE.source_hash(),
        "policy": timing.POLICY,
        "bandwidth_of_floors": session.gpu.fact("memory_read_bandwidth").number,
        "machine": session.machine,
        "clocks_at_start": read_clocks() if cuda else "",
        "regimes": [],
    }


def _note(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
