"""Which trials winners stand on, as conditions of queries over trials and winners."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_, exists, or_

from .schema import trials, winners


def stands_on(*which: ColumnElement[bool]) -> ColumnElement[bool]:
    """Say of a trial that a winner needs it: as its own config or as the default's.

    Args:
        which: Only winners of these conditions; none = any winner.
    """
    config = or_(trials.c.config == winners.c.config, trials.c.config == winners.c.default_config)
    return exists().where(_same_keys(), config, *which).correlate(trials)


def is_of(config: ColumnElement[str]) -> ColumnElement[bool]:
    """Say that a trial is of a winner's keys and of this config."""
    return and_(_same_keys(), trials.c.config == config)


def _same_keys() -> ColumnElement[bool]:
    same = ("problem_id", "unit", "kernel", "source_hash", "silicon_id", "toolchain_id")
    # Finalists are measured once more, under a policy of that name.
    final = winners.c.policy + "+final"
    return and_(
        *(winners.c[name] == trials.c[name] for name in same),
        or_(trials.c.policy == winners.c.policy, trials.c.policy == final),
    )
