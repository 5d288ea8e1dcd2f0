"""Intervals for timing samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval for the median, in the samples' unit.

    Distribution-free order-statistic interval; with fewer than six samples no such interval reaches 95 %
    and the range is returned.

    Source: Conover, Practical Nonparametric Statistics, 3.2 (quantile confidence intervals).
    """
    ordered = np.sort(np.asarray(samples, dtype=float))
    count = len(ordered)
    if count < 6:
        return float(ordered[0]), float(ordered[-1])
    lower = int(stats.binom.ppf((1 - confidence) / 2, count, 0.5))
    # ppf may land one rank too far in for the interval to hold its confidence
    lower = max(lower - 1, 0)
    return float(ordered[lower]), float(ordered[count - 1 - lower])


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, or None where one side is constant or not finite."""
    pair = np.asarray([first, second], dtype=float)
    if not np.isfinite(pair).all() or (pair == pair[:, :1]).all(axis=1).any():
        return None
    return float(stats.spearmanr(pair[0], pair[1]).statistic)
