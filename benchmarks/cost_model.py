"""How well the cost model ranks a recorded landscape.

Run `python -m benchmarks.cost_model --landscape FILE [--json]`. The model sees the config and the
recorded registers, spills and shared memory, never a time; nothing is fitted here. The two H200
landscapes of Qwen3-30B-A3B were in view while the model was written: their scores are not held
out.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from rubin_tune.db.landscape import Landscape, Row, read_landscape
from rubin_tune.search_spaces import GEMMS, Problem, Routing, Unit
from rubin_tune.topology import Gpu, load_gpu
from rubin_tune.tuner import cost_model

Floats = NDArray[np.float64]
# Triton reports n_spills, local bytes over 4. Source: the recorded variants compiled again with
# Triton 3.6 (recorded 256 where cuobjdump prints STACK:1024).
_BYTES_PER_SPILL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one table (a GEMM at one token count) was ranked.

    Attributes:
        tokens: Tokens entering the layer.
        gemm: "gate_up" or "down".
        configs: Configs that were timed.
        spearman: Rank correlation of predicted and recorded times.
        spearman_fast_quarter: The same within the fastest quarter by recorded time.
        optimum_rank_fraction: Share of configs predicted faster than the recorded optimum.
        top10_regret: Best recorded time of the ten predicted fastest over the optimum, less one.
    """

    tokens: int
    gemm: str
    configs: int
    spearman: float
    spearman_fast_quarter: float
    optimum_rank_fraction: float
    top10_regret: float


def score(times: Floats, predicted: Floats, *, tokens: int, gemm: str) -> Score:
    """Compare predicted with recorded times of one table."""
    order = np.argsort(predicted, kind="stable")
    best = int(np.argmin(times))
    fast = times <= np.quantile(times, 0.25)
    return Score(
        tokens=tokens,
        gemm=gemm,
        configs=len(times),
        spearman=_spearman(times, predicted),
        spearman_fast_quarter=_spearman(times[fast], predicted[fast]),
        optimum_rank_fraction=float(np.flatnonzero(order == best)[0] / len(times)),
        top10_regret=float(times[order[:10]].min() / times[best] - 1.0),
    )


def _spearman(a: Floats, b: Floats) -> float:
    """Return the rank correlation; 0 where one side does not vary or has under 2 values."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(spearmanr(a, b).statistic)


def predict_rows(
    landscape: Landscape, rows: Sequence[Row], problem: Problem, unit: Unit, gpu: Gpu
) -> Floats:
    """Return the predicted time of each row."""
    return np.array([_predict(row, problem, unit, gpu) for row in rows])


def _predict(row: Row, problem: Problem, unit: Unit, gpu: Gpu) -> float:
    guess = cost_model.guess_report(problem, unit, row.config, gpu)
    shared = row.shared_bytes or guess.shared_bytes
    spills = row.spill_bytes
    # The recording has no SASS: 0 instructions make the model derive them.
    report = replace(
        guess,
        registers=guess.registers if row.registers is None else row.registers,
        spill_bytes=guess.spill_bytes if spills is None else spills * _BYTES_PER_SPILL,
        shared_bytes=shared,
        buffers=max(1, shared // guess.stage_bytes),
        loop_instructions=0,
        loop_local_ops=0,
    )
    return cost_model.predict(problem, unit, row.config, report, gpu).time_us


def judge(landscape: Landscape, gpu: Gpu) -> list[Score]:
    """Score every table of a landscape, in order of tokens and GEMM."""
    tables: Mapping[tuple[int, Unit], list[Row]] = defaultdict(list)
    for row in landscape.rows:
        if row.samples_us:
            tables[row.tokens, row.unit].append(row)
    scores = []
    for tokens in landscape.tokens:
        problem = Problem(
            shape=landscape.header.shape,
            layout=landscape.header.layout,
            routing=Routing(kind="uniform"),
            tokens=tokens,
        )
        for unit in GEMMS:
            rows = tables.get((tokens, unit), [])
            if rows:
                times = np.array([median(row.samples_us) for row in rows])
                predicted = predict_rows(landscape, rows, problem, unit, gpu)
                scores.append(score(times, predicted, tokens=tokens, gemm=unit.value))
    return scores


def gpu_of(landscape: Landscape) -> Gpu:
    """Return the GPU by the last word of its marketing name ("NVIDIA H200")."""
    return load_gpu(landscape.gpu.split()[-1].lower())


def _print(scores: Sequence[Score]) -> None:
    names = list(asdict(scores[0]))
    print("  ".join(f"{name:>21}" for name in names))
    for one in scores:
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in asdict(one).values()]
        print("  ".join(f"{cell:>21}" for cell in cells))
    print(
        f"median spearman {median(s.spearman for s in scores):.3f}, worst "
        f"{min(s.spearman for s in scores):.3f}; fast quarter median "
        f"{median(s.spearman_fast_quarter for s in scores):.3f}; largest top-10 regret "
        f"{max(s.top10_regret for s in scores):.1%}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=__doc__)
    parser.add_argument("--landscape", type=Path, required=True, help="a recorded landscape")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args(arguments)
    landscape = read_landscape(options.landscape)
    scores = judge(landscape, gpu_of(landscape))
    if options.json:
        print(json.dumps([asdict(one) for one in scores]))
    elif scores:
        _print(scores)


if __name__ == "__main__":
    main()
