"""How much a rank has to do: tiles, active experts, rows; expected, or counted for one routing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from ..errors import InvalidInput
from ..search_spaces import Problem, rows_per_expert

Floats = NDArray[np.float64]
# Beyond so many standard deviations an expert's rows are taken as certain.
_SIGMAS = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Rows on this rank's experts.

    Attributes:
        rows: Token-expert pairs.
        active: Experts with at least one.
        tokens: Tokens entering the layer.
        capacity_rows: Rows that the grid is sized for.
        experts: Experts on this rank.
        tiles: Row tiles by block_m.
    """

    rows: float
    active: float
    tokens: int
    capacity_rows: int
    experts: int
    tiles: tuple[tuple[int, float], ...]

    def tiles_of(self, block_m: int) -> float:
        """Return row tiles over all experts."""
        return dict(self.tiles)[block_m]

    def grid_of(self, block_m: int) -> float:
        """Return row tiles that are launched: each busy expert has at most one partial tile."""
        busy = min(self.capacity_rows, self.experts)
        return busy + (self.capacity_rows - busy) // block_m


def load_of(problem: Problem, blocks: Sequence[int], counts: Sequence[int] | None) -> Load:
    """Return the expected load under the problem's routing, or that of given rows per expert.

    Raises:
        InvalidInput: counts of another number of experts.
    """
    if counts is None and problem.routing.kind != "balanced":
        return _expected(problem, tuple(sorted(blocks)))
    rows = rows_per_expert(problem, 0) if counts is None else np.asarray(counts)
    if rows.shape != (problem.local_experts,) or rows.min() < 0:
        raise InvalidInput(
            f"rows per expert have shape {rows.shape}: must be one count of at least 0 "
            f"for each of {problem.local_experts} experts"
        )
    tiles = tuple((m, float(np.ceil(rows / m).sum())) for m in blocks)
    return _load(problem, float(rows.sum()), float(np.count_nonzero(rows)), tiles)


def _load(
    problem: Problem, rows: float, active: float, tiles: tuple[tuple[int, float], ...]
) -> Load:
    return Load(
        rows=rows,
        active=active,
        tokens=problem.tokens,
        capacity_rows=problem.capacity * problem.shape.top_k,
        experts=problem.local_experts,
        tiles=tiles,
    )


@lru_cache(maxsize=256)
def _expected(problem: Problem, blocks: tuple[int, ...]) -> Load:
    """Expect over routings: an expert's rows are binomial, tokens choose independently."""
    shape = problem.shape
    q = problem.routing.inclusion(shape.experts, shape.top_k)[: problem.local_experts]
    active = float(np.sum(1.0 - (1.0 - q) ** problem.tokens))
    tiles = tuple((m, expected_tiles(q, problem.tokens, m)) for m in blocks)
    return _load(problem, float(problem.tokens * q.sum()), active, tiles)


def expected_tiles(q: Floats, tokens: int, block_m: int) -> float:
    """Return sum over experts of E[ceil(n / block_m)] for n ~ Binomial(tokens, q).

    E[ceil(n / m)] = sum over j >= 0 of P(n > j m). Far below the mean that is 1, far above 0; only
    the terms in between are summed.
    """
    mean = tokens * q
    reach = _SIGMAS * np.sqrt(mean * (1.0 - q)) + _SIGMAS
    sure = np.maximum(np.floor((mean - reach) / block_m), 0.0)
    last = np.minimum(mean + reach, tokens) / block_m
    steps = int(np.max(last - sure)) + 2
    at = (sure[:, None] + np.arange(steps)) * block_m
    # bdtrc(k, n, p) = P(X > k); it wants k <= n and p < 1.
    inside = at < tokens
    tail = bdtrc(np.minimum(at, tokens - 1), tokens, np.minimum(q, 1.0)[:, None])
    return float(sure.sum() + np.where(inside, tail, 0.0).sum())
