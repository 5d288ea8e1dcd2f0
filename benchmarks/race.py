"""How many samples a race saves on recorded raw samples, and what it loses.

Run `python -m benchmarks.race --samples FILE ... [--pool 60] [--trials 60] [--json]`. A FILE is a Kernel
Tuner cache with raw samples (`times`). Each trial draws a pool of points and races them on their
recorded samples, in recorded order; uniform sampling takes every sample of every point. Loss: the mean
of the race's winner over that of the best by all samples, less one. Recorded evidence: the samples of a
point come from one visit, so drift between points is not in the data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rubin_tune.db.importers import read_results
from rubin_tune.db.recorded_spaces import RecordedSpace
from rubin_tune.errors import InvalidInput, RubinTuneError
from rubin_tune.tuner.race import FIRST_ROUNDS, race


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What races did on one file.

    Attributes:
        samples: The file's name.
        pool: Points a race.
        trials: Races.
        share: Samples taken, as a share of uniform sampling's.
        time_share: The same in the samples' own time.
        mean_loss: Mean loss over trials.
        worst_loss: Largest loss.
    """

    samples: str
    pool: int
    trials: int
    share: float
    time_share: float
    mean_loss: float
    worst_loss: float


def judge(path: Path, pool: int, trials: int) -> Saving:
    """Race on one file.

    Raises:
        InvalidInput: it holds too few points with samples.
    """
    found = read_results(path)
    if not isinstance(found, RecordedSpace):
        raise InvalidInput(f"{path} is an engine's table: it holds no samples")
    rows = [p.samples_us for p in found.timed if len(p.samples_us) >= FIRST_ROUNDS]
    if len(rows) < pool:
        raise InvalidInput(f"{path} holds {len(rows)} points with samples: fewer than {pool}")
    rng = np.random.default_rng(0)
    shares, time_shares, losses = [], [], []
    for _ in range(trials):
        drawn = [rows[i] for i in rng.choice(len(rows), pool, replace=False)]
        taken = _race(drawn)
        means = [float(np.mean(row)) for row in drawn]
        winner = min(range(pool), key=lambda i: float(np.mean(taken[i])))
        shares.append(sum(map(len, taken)) / sum(map(len, drawn)))
        time_shares.append(sum(map(sum, taken)) / sum(map(sum, drawn)))
        losses.append(means[winner] / min(means) - 1)
    return Saving(
        samples=path.name.split(".")[0],
        pool=pool,
        trials=trials,
        share=float(np.mean(shares)),
        time_share=float(np.mean(time_shares)),
        mean_loss=float(np.mean(losses)),
        worst_loss=float(max(losses)),
    )


def _race(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    numbers = [0] * len(rows)

    def sample(alive: Sequence[int]) -> list[float]:
        taken = [rows[i][numbers[i]] for i in alive]
        for i in alive:
            numbers[i] += 1
        return taken

    return race(len(rows), sample, rounds=min(map(len, rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, race, print; 2 for input that makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__)
    parser.add_argument("--samples", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--pool", type=int, default=60)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args(arguments)
    try:
        if options.pool < 2 or options.trials < 1:
            raise InvalidInput("pool must be at least 2 and trials at least 1")
        savings = [judge(path, options.pool, options.trials) for path in options.samples]
    except RubinTuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([asdict(one) for one in savings]))
        return 0
    print(
        f"{'samples':<24}{'pool':>6}{'samples taken':>16}{'of the time':>14}{'mean loss':>12}{'worst':>9}"
    )
    for one in savings:
        print(
            f"{one.samples:<24}{one.pool:>6}{one.share:>16.1%}{one.time_share:>14.1%}"
            f"{one.mean_loss:>12.3%}{one.worst_loss:>9.2%}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
