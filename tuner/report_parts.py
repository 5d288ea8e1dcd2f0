"""Parts of a report that are made of trials alone: agreement, refusals, seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..db import Rejected, Trial
from ..search_spaces import Unit
from .report_records import Agreement, Point, Refusal, Seconds, Variant
from .statistics import rank_correlation

# Fewer pairs say nothing about an order.
FEWEST_PAIRS = 3


def agreements_of(variants: Sequence[Variant], points: Sequence[Point]) -> tuple[Agreement, ...]:
    """Return how predictions ordered each table, by token count, then unit."""
    tables: dict[tuple[int, Unit], list[tuple[float, float]]] = defaultdict(list)
    for point in points:
        if point.predicted_us is not None and point.time_us is not None:
            table = point.tokens, variants[point.variant].unit
            tables[table].append((point.predicted_us, point.time_us))
    found = (_agreement(*table, pairs) for table, pairs in tables.items())
    units = list(Unit)
    return tuple(
        sorted((a for a in found if a is not None), key=lambda a: (a.tokens, units.index(a.unit)))
    )


def _agreement(tokens: int, unit: Unit, pairs: list[tuple[float, float]]) -> Agreement | None:
    if len(pairs) < FEWEST_PAIRS:
        return None
    predicted, timed = zip(*pairs, strict=True)
    spearman = rank_correlation(predicted, timed)
    if spearman is None:
        return None
    loss = min(pairs)[1] / min(timed) - 1
    return Agreement(tokens=tokens, unit=unit, count=len(pairs), spearman=spearman, loss=loss)


def refusals_of(trials: Sequence[Trial]) -> tuple[Refusal, ...]:
    """Return the reasons for which trials were refused, the commonest first."""
    refused: dict[str, list[tuple[Trial, Rejected]]] = defaultdict(list)
    for trial in trials:
        if trial.rejected is not None:
            refused[trial.rejected.why.value].append((trial, trial.rejected))
    found = (_refusal(why, rows) for why, rows in refused.items())
    return tuple(sorted(found, key=lambda r: (-r.count, r.why)))


def _refusal(why: str, rows: Sequence[tuple[Trial, Rejected]]) -> Refusal:
    trial, rejected = rows[0]
    return Refusal(
        why=why,
        count=len(rows),
        variants=len({(t.unit, t.config) for t, _ in rows}),
        unit=trial.unit,
        config=trial.config,
        detail=rejected.detail,
    )


def seconds_of(own: Sequence[Trial], finals: Iterable[Trial]) -> Seconds:
    """Return where the time of a sweep went, from its own trials of search and finals."""
    variants = {(t.unit, t.config): t for t in own}.values()
    search_s = _latest(own)
    last_s = _latest([*own, *finals])
    return Seconds(
        compile_s=_sum(t.compile.compile_s for t in variants if t.compile is not None),
        verify_s=_sum(t.spent.verify_s for t in variants if t.spent is not None),
        time_s=_sum(t.spent.time_s for t in own if t.spent is not None),
        search_s=search_s,
        choose_s=None if search_s is None or last_s is None else last_s - search_s,
    )


def _latest(trials: Iterable[Trial]) -> float | None:
    return max((t.spent.at_s for t in trials if t.spent is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
