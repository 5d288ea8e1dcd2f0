"""Choosing winners: a tie band, the default's right of way, and units that must fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..search_spaces import LaunchConfig, Unit
from .evaluation import Outcome

# Times this close are equal (facts: recorded samples spread by 1-3 %).
TIE_BAND = 0.01


def timed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes that have a time, fastest first, equal times in config order."""
    return sorted(
        (o for o in outcomes if o.time_us is not None),
        key=lambda o: (o.time_us or 0.0, o.config.key),
    )


def beats(challenger: Outcome, holder: Outcome) -> bool:
    """Say whether a time is faster by more than the tie band max(95 % interval, 1 %)."""
    if challenger.time_us is None or holder.time_us is None:
        return challenger.time_us is not None
    half = max(_half_width(challenger), _half_width(holder), TIE_BAND * holder.time_us)
    return challenger.time_us < holder.time_us - half


def best_of(outcomes: Sequence[Outcome], default: LaunchConfig) -> Outcome | None:
    """Return the winner among outcomes measured together: the default unless it is beaten."""
    ranked = timed(outcomes)
    if not ranked:
        return None
    held = next((o for o in ranked if o.config == default), None)
    if held is None or beats(ranked[0], held):
        return ranked[0]
    return held


Table = Mapping[Unit, Sequence[Outcome]]


def couple(
    tables: Table,
    defaults: Mapping[Unit, LaunchConfig],
    coupling: Callable[[LaunchConfig], str],
) -> dict[Unit, Outcome]:
    """Return one winner a unit, all of one coupling, with the smallest summed time.

    Couplings under which no unit is slower than its default go before the rest, so that no row of the
    result is a loss; where there is none (an engine that takes one config for all units), the sum decides.
    """
    options = _options(tables, defaults, coupling)
    if not options:
        return {}
    held = {
        unit: next((o.time_us for o in tables[unit] if o.config == defaults[unit]), None)
        for unit in tables
    }

    def cost(option: dict[Unit, Outcome]) -> tuple[bool, float, str]:
        losing = any(
            (own := option[unit].time_us) is not None and (base := held[unit]) is not None
            and own > base
            for unit in option
        )  # fmt: skip
        total = sum(o.time_us or 0.0 for o in option.values())
        return losing, total, "".join(o.config.key for o in option.values())

    return min(options, key=cost)


def _options(
    tables: Table,
    defaults: Mapping[Unit, LaunchConfig],
    coupling: Callable[[LaunchConfig], str],
) -> list[dict[Unit, Outcome]]:
    shared = set.intersection(*({coupling(o.config) for o in timed(t)} for t in tables.values()))
    options = []
    for name in sorted(shared):
        option = {}
        for unit, outcomes in tables.items():
            best = best_of([o for o in outcomes if coupling(o.config) == name], defaults[unit])
            if best is not None:
                option[unit] = best
        if len(option) == len(tables):
            options.append(option)
    return options


def _half_width(outcome: Outcome) -> float:
    if outcome.interval_us is None:
        return 0.0
    return (outcome.interval_us[1] - outcome.interval_us[0]) / 2
