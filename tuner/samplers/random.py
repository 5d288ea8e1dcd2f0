"""Uniform random draws: the baseline that every other sampler must beat."""

from __future__ import annotations

import optuna


def make(seed: int) -> optuna.samplers.BaseSampler:
    """Return Optuna's random sampler."""
    return optuna.samplers.RandomSampler(seed=seed)


PROVIDES = make
