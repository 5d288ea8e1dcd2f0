"""Gaussian process with expected improvement in log scale (Optuna's)."""

from __future__ import annotations

import warnings

import optuna

from ..candidates import Candidates


def make(seed: int, candidates: Candidates) -> optuna.samplers.BaseSampler:
    """Return Optuna's GP sampler; it draws at random until ten trials are known."""
    with warnings.catch_warnings():
        # experimental by Optuna's mark; only its documented arguments are used
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=10)


PROVIDES = make
