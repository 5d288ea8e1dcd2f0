"""What a workload looks like: how many tokens its steps have, how often ranks are idle."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from .steps import Workload

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSummary:
    """Steps of one kind; shares and means are over steps, not over runs.

    Attributes:
        kind: "prefill" (a prompt token on any rank) or "decode".
        steps: How many there are.
        time_share: Share of the assumed busy time.
        idle_share: Share of them in which at least one rank has no token.
        idle_ranks: Ranks without a token, mean.
        no_prefill_share: Share in which at least one rank has no prompt token (1 for decode).
        imbalance: Tokens of the fullest rank over the mean of all ranks, mean.
        imbalance_active: The same over the mean of the ranks that have tokens.
        tokens_p50: Median of the tokens over all ranks.
        tokens_p90: 90th percentile of them.
        tokens_p99: 99th percentile of them.
        tokens_mean: Their mean.
    """

    kind: str
    steps: int
    time_share: float
    idle_share: float
    idle_ranks: float
    no_prefill_share: float
    imbalance: float
    imbalance_active: float
    tokens_p50: int
    tokens_p90: int
    tokens_p99: int
    tokens_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Steps whose tokens over all ranks lie between two powers of two.

    Attributes:
        least: Fewest tokens.
        most: Most tokens.
        prefill_steps: Prefill steps among them.
        decode_steps: Decode steps among them.
        time_share: Share of the assumed busy time.
    """

    least: int
    most: int
    prefill_steps: int
    decode_steps: int
    time_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A workload in numbers.

    Attributes:
        steps: Steps of both kinds.
        hours: From the first request to the end of the last step.
        busy_share: Share of that time in which a step runs (None for a sample).
        backlog_s: From the last arrival to the end of the last step (None for a sample): longer
            than an answer takes, it says that the load is too high for the assumed speed.
        kinds: Prefill and decode steps, whichever there are.
        histogram: Tokens over all ranks.
    """

    steps: int
    hours: float
    busy_share: float | None
    backlog_s: float | None
    kinds: tuple[KindSummary, ...]
    histogram: tuple[Bar, ...]

    def kind(self, name: str) -> KindSummary | None:
        """Return the summary of one kind of step, or None where there is none."""
        return next((k for k in self.kinds if k.kind == name), None)

    def as_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)


def summarise(workload: Workload) -> Summary:
    """Return a workload in numbers."""
    times = workload.duration_us * workload.repeats
    end = int(workload.start_us[-1] + times[-1])
    busy = int(times.sum())
    late = end - workload.origin.last_arrival_us
    found = (_kind(workload, kind, busy) for kind in ("prefill", "decode"))
    return Summary(
        steps=len(workload),
        hours=end / 3600e6,
        busy_share=None if workload.sampled else busy / end,
        backlog_s=None if workload.sampled else late / 1e6,
        kinds=tuple(k for k in found if k.steps),
        histogram=token_histogram(workload),
    )


def _kind(workload: Workload, kind: str, busy_us: int) -> KindSummary:
    rows = workload.of_kind(kind)
    weights = workload.repeats[rows].astype(np.float64)
    steps = int(weights.sum())
    per_rank = workload.tokens_per_rank[rows]
    total = per_rank.sum(axis=1)
    idle = (per_rank == 0).sum(axis=1)
    active = workload.serving.ranks - idle
    fullest = per_rank.max(axis=1) if len(per_rank) else total

    def mean(values: NDArray[np.generic]) -> float:
        return float(np.dot(values.astype(np.float64), weights) / steps) if steps else 0.0

    p50, p90, p99 = _quantiles(total, weights, (0.5, 0.9, 0.99))
    time = int(np.dot(workload.duration_us[rows], workload.repeats[rows]))
    return KindSummary(
        kind=kind,
        steps=steps,
        time_share=time / busy_us,
        idle_share=mean(idle > 0),
        idle_ranks=mean(idle),
        no_prefill_share=mean((workload.prefill[rows] == 0).any(axis=1)),
        imbalance=mean(fullest * workload.serving.ranks / np.maximum(total, 1)),
        imbalance_active=mean(fullest * active / np.maximum(total, 1)),
        tokens_p50=p50,
        tokens_p90=p90,
        tokens_p99=p99,
        tokens_mean=mean(total),
    )


def _quantiles(
    values: NDArray[np.int64], weights: Floats, shares: tuple[float, ...]
) -> tuple[int, ...]:
    """Return the smallest value that at least each share of the weight does not exceed."""
    if not len(values):
        return (0,) * len(shares)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array(shares) * reached[-1])
    return tuple(int(values[order][min(int(p), len(values) - 1)]) for p in places)


def token_histogram(workload: Workload) -> tuple[Bar, ...]:
    """Return steps by the power of two that their tokens over all ranks reach."""
    tokens = workload.tokens
    powers = np.frexp(tokens.astype(np.float64))[1] - 1  # floor(log2), exact below 2^53
    prefill = workload.of_kind("prefill")
    times = workload.duration_us * workload.repeats
    bars = []
    for power in range(int(powers.min()), int(powers.max()) + 1):
        here = powers == power
        bars.append(
            Bar(
                least=1 << power,
                most=(2 << power) - 1,
                prefill_steps=int(workload.repeats[here & prefill].sum()),
                decode_steps=int(workload.repeats[here & ~prefill].sum()),
                time_share=float(times[here].sum() / times.sum()),
            )
        )
    return tuple(bars)
