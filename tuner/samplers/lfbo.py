"""The project's own sampler, and the default: a classifier that tells fast points from the rest.

Likelihood-free Bayesian optimisation (Song et al., ICML 2022, arXiv 2206.13035): a classifier is
trained on "among the fastest evaluated", each fast point weighted by how far it is under the
threshold; its probability ranks the points that were not seen, which makes it an estimate of
expected improvement without a model of the times. Failures are slow points to it. The classifier is a
random forest over the encoded parameters and the given rankings. Three things are added to the method:

* The start uses all values of the axes evenly; large pools add random points to it.
* A forest's vote p is raised by its spread sqrt(p (1 - p)), so that a sure copy of what is known does
  not always go before a likely surprise. The threshold is drawn anew for each proposal.
* Every second proposal is a neighbour (one parameter changed) of the two fastest: coordinate polish.
  In small pools it comes from a Gaussian process on log times while few points are known: that
  interpolates better from little, where a pool holds little else.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import norm
from sklearn.ensemble import RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from ..candidates import Candidates, Floats, Rows
from ._pool import PoolSampler, Seen

# Points of the start: the pool's root over three, within these.
START = (8, 20)
# Share of the evaluated that count as fast, drawn uniformly for each proposal.
FAST_SHARE = (0.08, 0.35)
TREES = 30
EVERY = 2
# Pools in which the Gaussian process takes its turns, and evaluations up to which it does; then, and in
# larger pools from the start, neighbours of the fastest do.
GAUSSIAN_POOL = 2000
GAUSSIAN_UNTIL = 40
POLISHED = 2
# Length scales that the process tries, drawn around 1 (an axis is 1 long), spread in log.
SCALES = 12
SCALE_SPREAD = 0.5
NOISE = 0.01
# Unseen points that are scored: above it a random part of them, and the neighbours of the fastest.
MOST_SCORED = 20_000
# Log times above the median count this much: how slow a slow point is says little about the fast ones.
SLOW_SLOPE = 0.3
# A ranking's place spans this much of the Gaussian process's space, a parameter 1.
PRIOR_SPAN = 2.0
# What the last of a ranking loses of a vote: few points divide a forest little, a ranking goes on.
PRIOR_WEIGHT = 0.3


class LfboSampler(PoolSampler):
    """Classifier surrogate over the whole legal pool."""

    __slots__ = ("_start", "_turn")
    _start: list[int]
    _turn: int

    def __post_init__(self) -> None:
        """Plan the start."""
        PoolSampler.__post_init__(self)
        self._start = []
        self._turn = 0

    def choose(self, seen: Seen) -> int:
        """Return the next point: of the start, the process, the forest, or a neighbour."""
        if seen.timed < 3 or seen.count < self._start_size():
            return self._starting(seen)
        unseen = self._scored(seen)
        self._turn += 1
        small = len(self.candidates.configs) <= GAUSSIAN_POOL
        if self._turn % EVERY == 0 and small and seen.count < GAUSSIAN_UNTIL:
            return int(unseen[self._improvement(seen, unseen).argmax()])
        if self._turn % EVERY == 0:
            near = self._neighbours(seen)
            unseen = near if len(near) else unseen
        return int(unseen[self._votes(seen, unseen).argmax()])

    def _start_size(self) -> int:
        if self.candidates.prior.shape[1]:
            # A ranking is worth more than a spread: its head is evaluated first by the search.
            return 0
        return int(np.clip(math.sqrt(len(self.candidates.configs)) / 3, *START))

    def _starting(self, seen: Seen) -> int:
        if not self._start:
            self._start = spread(self.candidates, START[0], self.rng)
        free = set(seen.unseen.tolist())
        left = [row for row in self._start if row in free]
        if left:
            return left[0]
        return int(self.rng.choice(seen.unseen))

    def _scored(self, seen: Seen) -> Rows:
        if len(seen.unseen) <= MOST_SCORED:
            return seen.unseen
        some = self.rng.choice(seen.unseen, MOST_SCORED, replace=False)
        return np.union1d(some, self._neighbours(seen)).astype(np.intp)

    def _neighbours(self, seen: Seen) -> Rows:
        best = seen.rows[np.argsort(seen.times, kind="stable")[:POLISHED]]
        near = np.zeros(len(seen.unseen), dtype=bool)
        for row in best:
            near |= self.candidates.differences(int(row), seen.unseen) == 1
        found: Rows = seen.unseen[near]
        return found

    def _votes(self, seen: Seen, unseen: Rows) -> Floats:
        """Return how likely each point is to be fast, raised by how divided the trees are."""
        features = np.concatenate([self.candidates.points, self.candidates.prior], axis=1)
        fast, weights = self._labels(seen)
        forest = RandomForestClassifier(
            TREES, max_features="sqrt", random_state=int(self.rng.integers(2**31))
        )
        forest.fit(features[seen.rows], fast, sample_weight=weights)
        votes = forest.predict_proba(features[unseen])[:, -1]
        # Below any difference of votes: ties are broken at random.
        noise = 1e-9 * self.rng.random(len(unseen))
        found: Floats = votes + np.sqrt(votes * (1 - votes)) + noise
        if self.candidates.prior.shape[1]:
            found -= PRIOR_WEIGHT * self.candidates.prior[unseen].mean(axis=1)
        return found

    def _labels(self, seen: Seen) -> tuple[Floats, Floats]:
        """Return which points are fast, and weights: a fast one's distance under the threshold."""
        ranked = np.sort(seen.times)
        share = self.rng.uniform(*FAST_SHARE)
        count = min(max(2, math.ceil(share * len(ranked))), seen.timed - 1)
        fast = seen.times <= ranked[count - 1]
        weights = np.ones(len(ranked))
        ahead = np.maximum(np.log(ranked[count] / seen.times[fast]), 1e-3)
        weights[fast] = ahead / ahead.mean()
        return fast.astype(np.float64), weights

    def _improvement(self, seen: Seen, unseen: Rows) -> Floats:
        """Return the expected improvement of log time under a Gaussian process."""
        features = np.concatenate(
            [self.candidates.points, PRIOR_SPAN * self.candidates.prior], axis=1
        )
        known = np.where(np.isfinite(seen.times), seen.times, seen.times[_finite(seen)].max())
        logs = np.log(known)
        middle = np.median(logs)
        if not self.candidates.prior.shape[1]:
            # A ranking tells slow points apart by itself.
            logs = np.where(logs > middle, middle + SLOW_SLOPE * (logs - middle), logs)
        kernel = Matern(np.ones(features.shape[1]), nu=2.5)
        process = GaussianProcessRegressor(
            kernel, alpha=NOISE, normalize_y=True, optimizer=self._likeliest
        )
        process.fit(features[seen.rows], logs)
        mean, spread_ = process.predict(features[unseen], return_std=True)
        spread_ = np.maximum(spread_, 1e-9)
        gain = logs.min() - mean
        found: Floats = gain * norm.cdf(gain / spread_) + spread_ * norm.pdf(gain / spread_)
        return found

    def _likeliest(
        self, negative: Callable[..., float], first: Floats, bounds: Floats
    ) -> tuple[Floats, float]:
        """Return the likeliest of some drawn length scales (their logarithms).

        A gradient would follow the likelihood of a few points to scales that no axis has.
        """
        drawn = self.rng.normal(0.0, SCALE_SPREAD, (SCALES, len(first)))
        tried = [first, *drawn]
        costs = [float(negative(theta, eval_gradient=False)) for theta in tried]
        best = int(np.argmin(costs))
        return tried[best], costs[best]


def spread(candidates: Candidates, count: int, rng: np.random.Generator) -> list[int]:
    """Return points that use the values of each parameter evenly.

    Each is the one of 60 random points whose values were taken least so far. (Points far from each
    other were tried as well: they are the extremes of the axes, which are seldom good.)
    """
    size = len(candidates.configs)
    values = np.array([len(p.values) for p in candidates.space.parameters])
    taken = [int(rng.integers(size))]
    while len(taken) < min(count, size):
        some = rng.choice(size, min(size, 60), replace=False)
        some = some[~np.isin(some, taken)]
        used = (candidates.codes[some][:, None] == candidates.codes[taken][None]).sum(axis=1)
        taken.append(int(some[(used * values).sum(axis=1).argmin()]))
    return taken


def _finite(seen: Seen) -> Rows:
    return np.flatnonzero(np.isfinite(seen.times))


def make(seed: int, candidates: Candidates) -> LfboSampler:
    """Return the sampler."""
    return LfboSampler(seed=seed, candidates=candidates)


PROVIDES = make
