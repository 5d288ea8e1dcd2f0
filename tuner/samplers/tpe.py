"""Tree-structured Parzen estimator, joint over all parameters (Optuna's)."""

from __future__ import annotations

import warnings

import optuna

from ..candidates import Candidates


def make(seed: int, candidates: Candidates) -> optuna.samplers.BaseSampler:
    """Return Optuna's TPE sampler; it draws at random until ten trials are known."""
    with warnings.catch_warnings():
        # multivariate is marked experimental since 2020 and has kept its interface
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=10)


PROVIDES = make
