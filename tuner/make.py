"""Making the evaluator that a request names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from ..registry import load
from .evaluation import Evaluator
from .request import Resolved


def default_cache_dir() -> Path:
    """Return the folder in which compiled variants are kept."""
    return user_cache_path("rubin-tune")


def make_evaluator(resolved: Resolved, cache_dir: Path | None) -> Evaluator:
    """Return the evaluator, ready to be asked.

    Raises:
        RubinTuneError: it does not fit the problem.
    """
    make: Any = load("tuner.evaluators", resolved.evaluator)
    evaluator: Evaluator = make(
        resolved.setting,
        cache_dir=cache_dir or default_cache_dir(),
        argument=resolved.argument,
    )
    return evaluator
