"""What a look-up costs, warm and in-process, in a table of 10,000 rows; and what loading it costs.

Run `python -m benchmarks.lookup [--json]`. The table is made up (125 problems, 4 units, 20 token
counts; configs drawn from the real spaces of megamoe on an H200, six a GEMM and problem and another
one at two of three counts, as in results/sweep-megamoe-qwen3-30b-a3b-fp8-h200.json),
written through the exporter and through the store, and loaded as a server does. Times are of this
machine's CPU, measured: look-ups the median of many rounds, loads and the import the least of some
(`*_median_ms` says the median; on a busy machine it is of the others' work).
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any

from rubin_tune.db import Evidence, Silicon, Toolchain, Winner, open_store
from rubin_tune.db.formats.json import JsonFormat
from rubin_tune.db.records import CompileReport, Edge
from rubin_tune.errors import InvalidInput
from rubin_tune.runtime import Table
from rubin_tune.search_spaces import (
    GEMMS,
    VLLM_LADDER,
    LaunchConfig,
    Problem,
    Unit,
    load_model,
    model_names,
    parse_layout,
    parse_routing,
)
from rubin_tune.search_spaces.megamoe import space
from rubin_tune.topology import Gpu, load_gpu

ROWS = 10_000
_LADDER = (*VLLM_LADDER, 8192, 16384)
_PROBLEMS = ROWS // len(_LADDER) // 4
_LAYOUTS = ("single", "dep2", "dep4", "dep8", "tp2", "tp4")
_ROUTINGS = ("uniform", "lognormal:0.5", "balanced")
# Configs that win somewhere, for each weight format and GEMM, and for one problem's GEMM.
_POOL = 200
_OWN = 6
_CHANGES = 2 / 3
_OP = "megamoe"
_LOOPS = 200
# What a bare look-up may not import.
HEAVY = ("torch", "triton", "sqlalchemy", "alembic", "optuna", "numpy", "networkx")


def make_winners(seed: int = 0) -> list[Winner]:
    """Return 10,000 winners: the same for the same seed."""
    draw, gpu = random.Random(seed), load_gpu("h200")
    pools: dict[tuple[str, Unit], list[LaunchConfig]] = {}
    found = []
    for problem in islice(_problems(gpu), _PROBLEMS):
        chosen: dict[Unit, LaunchConfig] = {}
        own: dict[Unit, list[LaunchConfig]] = {}
        for tokens, following in zip(_LADDER, (*_LADDER[1:], 0), strict=True):
            for unit in GEMMS:
                place = problem.shape.weights, unit
                if place not in pools:
                    legal = space(problem, unit, gpu).legal()
                    pools[place] = draw.sample(legal, min(_POOL, len(legal)))
                if unit not in own:
                    own[unit] = draw.sample(pools[place], _OWN)
                if unit not in chosen or draw.random() < _CHANGES:
                    chosen[unit] = draw.choice(own[unit])
            edge = _edge(tokens, following, draw) if following else None
            found += [
                replace(row, edge=edge if row.config.items else None)
                for row in _rows(problem.at(tokens), chosen, draw)
            ]
    return found


def _edge(tokens: int, following: int, draw: random.Random) -> Edge:
    last = draw.randrange(tokens, following)
    return Edge(tokens=last, evidence=Evidence.MEASURED)


def _problems(gpu: Gpu) -> Iterator[Problem]:
    for name, layout, routing in product(model_names(), _LAYOUTS, _ROUTINGS):
        shape = load_model(name)
        try:
            yield Problem(
                shape=shape,
                layout=parse_layout(layout, shape, gpu),
                routing=parse_routing(routing),
                tokens=1,
            )
        except InvalidInput:
            # Some widths cannot be divided so.
            continue


def _rows(problem: Problem, chosen: dict[Unit, LaunchConfig], draw: random.Random) -> list[Winner]:
    rows = [
        _winner(problem, unit, config, draw, _report(config, unit))
        for unit, config in chosen.items()
    ]
    glue = _winner(problem, Unit.GLUE, LaunchConfig(()), draw, None)
    whole = {f"{u.value}.{name}": v for u, c in chosen.items() for name, v in c.items}
    layer = _winner(problem, Unit.LAYER, LaunchConfig.of(whole), draw, None)
    parts = tuple((unit.value, config) for unit, config in chosen.items())
    return [*rows, glue, replace(layer, parts=parts)]


def _winner(
    problem: Problem,
    unit: Unit,
    config: LaunchConfig,
    draw: random.Random,
    report: CompileReport | None,
) -> Winner:
    time_us = draw.uniform(5, 5000)
    return Winner(
        sweep_id="made-up",
        kernel=_OP,
        source_hash="0123456789abcdef",
        problem=problem,
        unit=unit,
        config=config,
        time_us=time_us,
        interval_us=(time_us * 0.99, time_us * 1.01),
        default_config=config,
        default_time_us=time_us * 1.1,
        evidence=Evidence.MEASURED,
        silicon=Silicon(
            name="NVIDIA H200",
            arch=90,
            sms=132,
            memory_bytes=150_754_820_096,
            shared_limit_bytes=232_448,
            power_limit_w=700,
        ),
        toolchain=Toolchain(triton="3.9.0", ptxas="13.4.59", torch="2.13.0", driver="580.1"),
        policy="graph/1",
        compile=report,
    )


def _report(config: LaunchConfig, unit: Unit) -> CompileReport:
    code = random.Random(f"{config.key} {unit}")
    return CompileReport(
        target=90,
        registers=code.choice((96, 128, 168, 232)),
        spill_bytes=0,
        shared_bytes=code.randrange(16_384, 232_448, 1024),
        buffers=3,
        stage_bytes=24_576,
        weight_stage_bytes=16_384,
        tmem_columns=0,
        mma_kind="qgmma",
        mma_k=32,
        mma_count=4,
        loop_instructions=96,
        loop_local_ops=0,
        threads=code.choice((128, 256)),
        cubin_sha256=f"{code.getrandbits(256):064x}",
        compile_s=1.5,
    )


def _written(folder: Path) -> tuple[Path, Path, int]:
    """Write the table as file and database; the winners are not held while loads are timed."""
    winners = make_winners()
    (path,) = JsonFormat().export(winners, folder)
    database = folder / "winners.sqlite"
    with open_store(database) as store:
        store.begin_sweep("made-up", "made-up", {})
        store.add_winners(winners)
    return path, database, len(winners)


def run(folder: Path, *, loads: int = 31) -> dict[str, Any]:
    """Measure everything; files are made in `folder`."""
    path, database, rows = _written(folder)
    table = Table.load(path)
    table.assert_same(Table.load(database).content_hash)
    problem = table.problems(_OP)[_PROBLEMS // 2]
    plain = dict(problem)
    bound = table.bind(_OP, problem)
    return {
        "schema": "rubin-tune.benchmark-lookup/1",
        "evidence": "measured",
        "rows": rows,
        "lookup_us_median": _look_up_us(bound),
        "lookup_unbound_us_median": _look_up_us(lambda n: table.lookup(_OP, problem, n)),
        "lookup_plain_dict_us_median": _look_up_us(lambda n: table.lookup(_OP, plain, n)),
        "allocated_bytes": allocated(bound, table, problem),
        "bind_us": _once_us(lambda: table.bind(_OP, problem)),
        **_both("load_file", _load_ms(path, loads)),
        **_both("load_sqlite", _load_ms(database, loads)),
        "file_bytes": path.stat().st_size,
        **_import_ms(),
    }


def token_counts() -> list[int]:
    """Return token counts as steps have them: half of them tuned counts."""
    draw = random.Random(1)
    between = [draw.randrange(1, 20_000) for _ in range(500)]
    return [*draw.choices(_LADDER, k=500), *between]


def _look_up_us(look: Callable[[int], object]) -> float:
    """Return the median over rounds of one call's time, the loop's own time taken off."""
    counts = token_counts()

    def spent(function: Callable[[int], object] | None) -> float:
        began = time.perf_counter_ns()
        if function is None:
            for _ in counts:
                pass
        else:
            for tokens in counts:
                function(tokens)
        return (time.perf_counter_ns() - began) / 1000 / len(counts)

    spent(look)
    idle = median(spent(None) for _ in range(_LOOPS))
    return round(median(spent(look) for _ in range(_LOOPS)) - idle, 4)


def allocated(bound: Callable[[int], object], table: Table, problem: Any) -> int:
    """Return the bytes that look-ups, bound and not, hold or held at most while they ran."""
    bare = _most_held(lambda tokens: None)
    both = (bound, lambda tokens: table.lookup(_OP, problem, tokens))
    return max(_most_held(look) - bare for look in both)


def _most_held(look: Callable[[int], object]) -> int:
    counts = token_counts()
    for tokens in counts:
        look(tokens)
    gc.collect()
    tracemalloc.start()
    try:
        look(counts[0])
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for tokens in counts:
            look(tokens)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _once_us(function: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    function()
    return round((time.perf_counter_ns() - began) / 1000, 1)


def _load_ms(source: Path, loads: int) -> list[float]:
    def spent() -> float:
        began = time.perf_counter_ns()
        Table.load(source)
        return (time.perf_counter_ns() - began) / 1e6

    return [spent() for _ in range(loads)]


def _both(name: str, times: Sequence[float]) -> dict[str, float]:
    """Return the least and the median: what else runs on the machine only adds to a load."""
    return {f"{name}_ms": round(min(times), 3), f"{name}_median_ms": round(median(times), 3)}


def _import_ms(runs: int = 7) -> dict[str, Any]:
    """Return what `import rubin_tune.runtime` takes in a Python of its own, and what it drags in."""
    times = []
    for _ in range(runs):
        done = _python("-X", "importtime", "-c", "import rubin_tune.runtime")
        # "import time: self | cumulative | name", in microseconds; the whole stands last.
        times.append(int(done.stderr.splitlines()[-1].split("|")[1]) / 1000)
    heavy = f"import sys, rubin_tune.runtime; print([m for m in {HEAVY} if m in sys.modules])"
    return {
        **_both("import", times),
        "imports_heavy": ast.literal_eval(_python("-c", heavy).stdout),
    }


def _python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="benchmarks.lookup", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable output")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder))
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    for name, bar in (
        ("lookup_us_median", "<= 0.3"),
        ("lookup_unbound_us_median", "<= 0.6"),
        ("lookup_plain_dict_us_median", ""),
        ("allocated_bytes", "0"),
        ("bind_us", ""),
        ("load_file_ms", "<= 10"),
        ("load_file_median_ms", ""),
        ("load_sqlite_ms", "<= 60"),
        ("load_sqlite_median_ms", ""),
        ("import_ms", "<= 40"),
        ("import_median_ms", ""),
        ("imports_heavy", "[]"),
    ):
        print(f"{name:<30}{found[name]!s:>12}   {bar}")


if __name__ == "__main__":
    main()
