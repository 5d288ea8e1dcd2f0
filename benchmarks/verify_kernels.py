"""Verify random legal configs of megamoe against float64 on the GPU: `python -m benchmarks.verify_kernels`.

Prints one line a (model, unit) and writes every error as JSON. Exit code 1 when a config is wrong.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from triton.runtime.errors import OutOfResources

from rubin_tune.registry import load
from rubin_tune.search_spaces import (
    GEMMS,
    LaunchConfig,
    Problem,
    Unit,
    load_model,
    parse_layout,
    parse_routing,
    with_formats,
)
from rubin_tune.topology import detect_gpu

CASES = (
    ("qwen3-30b-a3b", "fp8", "single"),
    ("qwen3-30b-a3b", "bf16", "single"),
    ("deepseek-v4.1-flash", None, "ep8"),
    ("deepseek-v4-flash-fp8", None, "ep8"),
    ("gpt-oss-20b", None, "single"),
)


def problem_of(case: tuple[str, str | None, str]) -> Problem:
    """Return the problem of a case."""
    model, dtype, layout = case
    shape = with_formats(load_model(model), dtype, None)
    gpu = detect_gpu()
    if gpu is None:
        raise SystemExit("no GPU in this machine")
    return Problem(
        shape=shape,
        layout=parse_layout(layout, shape, gpu),
        routing=parse_routing("lognormal:0.5"),
        tokens=53,
    )


def check(task: tuple[tuple[str, str | None, str], str, str, int]) -> dict[str, Any]:
    """Verify one config; a failure is a value."""
    case, unit, key, seed = task
    kernel: Any = load("kernels", "megamoe")
    problem = problem_of(case)
    config = LaunchConfig.of(json.loads(key))
    row = {"model": case[0], "dtype": case[1], "unit": unit, "config": config.as_dict()}
    allowed = kernel.tolerance(problem, Unit(unit))
    try:
        error = kernel.verify(problem, Unit(unit), config, device="cuda", seed=seed)
    except OutOfResources as refused:
        # The compile report would have pruned it: more shared memory than the GPU has.
        return {**row, "error": 0.0, "allowed": allowed, "failed": repr(refused)}
    except Exception as problem_found:  # noqa: BLE001 - any failure of a variant is a row of the table
        return {**row, "error": None, "allowed": allowed, "failed": repr(problem_found)[:400]}
    return {**row, "error": error, "allowed": allowed, "failed": ""}


def main() -> None:
    """Verify and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=24, help="random configs a unit")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    kernel: Any = load("kernels", "megamoe")
    gpu = detect_gpu()
    rng = random.Random(asked.seed)
    tasks = []
    for case in CASES:
        for unit in GEMMS:
            legal = kernel.space(problem_of(case), unit, gpu).legal()
            default = kernel.default(problem_of(case), unit, gpu)
            chosen = [default, *rng.sample(legal, min(asked.configs, len(legal)))]
            tasks += [(case, unit.value, c.key, asked.seed) for c in chosen]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
        rows = list(pool.map(check, tasks, chunksize=2))
    wrong = [r for r in rows if r["error"] is None or r["error"] > r["allowed"]]
    for case in CASES:
        for unit in GEMMS:
            own = [
                r
                for r in rows
                if (r["model"], r["dtype"], r["unit"]) == (case[0], case[1], unit.value)
            ]
            errors = [r["error"] for r in own if r["error"] is not None]
            print(
                f"{case[0]:24} {case[1] or '':5} {unit.value:8} {len(own):3} configs, "
                f"{sum(r in wrong for r in own)} wrong or failed, "
                f"largest error {max(errors, default=float('nan')):.4g} of {own[0]['allowed']:.4g}"
            )
    for row in wrong:
        print(json.dumps(row))
    if asked.out:
        asked.out.write_text(json.dumps({"gpu": str(gpu and gpu.title), "rows": rows}, indent=1))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
