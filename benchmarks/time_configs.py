"""Time chosen configs of one GEMM in alternating rounds: `python -m benchmarks.time_configs --help`.

Prints microseconds with the interval, TFLOP/s and TB/s of each config, and writes JSON with --out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rubin_tune.search_spaces import Unit
from rubin_tune.tuner import SweepRequest, timing
from rubin_tune.tuner.request import load_kernel, resolve_gpu, resolve_problem


def main() -> None:
    """Read the options, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--dtype")
    parser.add_argument("--layout", default="auto")
    parser.add_argument("--routing", default="uniform")
    parser.add_argument("--unit", choices=("gate_up", "down"), default="gate_up")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument(
        "--set", nargs="+", action="append", default=[], metavar="NAME=VALUE",
        help="one config: changes to the default; give it several times",
    )  # fmt: skip
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    request = SweepRequest(
        model=asked.model, dtype=asked.dtype, layout=asked.layout, routing=asked.routing
    )
    kernel, unit = load_kernel(request.kernel), Unit(asked.unit)
    gpu, _ = resolve_gpu(None)
    problem = resolve_problem(request, gpu, tokens=asked.tokens)
    space = kernel.space(problem, unit, gpu)
    default = kernel.default(problem, unit, gpu)
    configs = [default, *(space.parse(settings, default) for settings in asked.set)]
    timing.start(kernel.name, request.seed, "/tmp/rubin-tune-triton")
    task = timing.TimingTask(
        kernel=kernel.name, problems=(problem,), unit=unit, config=configs[0], seed=request.seed
    )
    work = kernel.work(problem, unit)
    rows = []
    for outcome in timing.compare(task, configs):
        time_us, (low, high) = outcome.time_us or 0.0, outcome.interval_us or (0.0, 0.0)
        rate, bandwidth = work.flops / time_us / 1e6, work.min_bytes / time_us / 1e6
        print(
            f"{time_us:8.1f} us [{low:.1f}, {high:.1f}] {rate:7.0f} TFLOP/s {bandwidth:5.2f} TB/s  "
            f"{outcome.config}"
        )
        rows.append(
            {"config": outcome.config.as_dict(), "time_us": time_us, "interval_us": [low, high]}
        )
    if asked.out:
        asked.out.write_text(json.dumps({"gpu": gpu.title, "unit": unit.value, "rows": rows}))


if __name__ == "__main__":
    main()
