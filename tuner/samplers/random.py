"""Uniform draws from the legal points: the baseline that every other sampler must beat."""

from __future__ import annotations

from ..candidates import Candidates
from ._pool import PoolSampler, Seen


class RandomSampler(PoolSampler):
    """Draws without replacement."""

    __slots__ = ()

    def choose(self, seen: Seen) -> int:
        """Return any unseen point."""
        return int(self.rng.choice(seen.unseen))


def make(seed: int, candidates: Candidates) -> RandomSampler:
    """Return the sampler."""
    return RandomSampler(seed=seed, candidates=candidates)


PROVIDES = make
