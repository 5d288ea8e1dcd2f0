"""Choosing winners: a tie band, the default's right of way, and units that must fit together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

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


Option = Mapping[Unit, Outcome]


def couple(
    tables: Table,
    defaults: Mapping[Unit, LaunchConfig],
    coupling: Callable[[LaunchConfig], str],
    glue: Callable[[Unit, LaunchConfig], str] = lambda unit, config: "",
) -> list[Option]:
    """Return ways to fit winners of the units together, the smallest summed time first.

    Units of one way share a coupling; there is one way for each coupling and each kind of glue that its
    configs need, because what a GEMM gains its glue may lose: whole layers decide between them.
    Ways in which no unit is slower than its default go before the rest, so that no row of the result is a
    loss; where all are (an engine that takes one config for all units), the sum decides.
    """
    held = {
        unit: next((o.time_us for o in tables[unit] if o.config == defaults[unit]), None)
        for unit in tables
    }

    def cost(option: Option) -> tuple[float, str]:
        total = sum(o.time_us or 0.0 for o in option.values())
        return total, "".join(o.config.key for o in option.values())

    options = sorted(_options(tables, defaults, coupling, glue), key=cost)
    kept = [option for option in options if not _loses(option, held)]
    return kept or options


def _loses(option: Option, held: Mapping[Unit, float | None]) -> bool:
    pairs = ((o.time_us, held[unit]) for unit, o in option.items())
    return any(own is not None and base is not None and own > base for own, base in pairs)


def _options(
    tables: Table,
    defaults: Mapping[Unit, LaunchConfig],
    coupling: Callable[[LaunchConfig], str],
    glue: Callable[[Unit, LaunchConfig], str],
) -> list[Option]:
    shared = set.intersection(*({coupling(o.config) for o in timed(t)} for t in tables.values()))
    options: list[Option] = []
    for name in sorted(shared):
        choices = []
        for unit, outcomes in tables.items():
            kinds: dict[str, list[Outcome]] = {}
            for outcome in timed(outcomes):
                if coupling(outcome.config) == name:
                    kinds.setdefault(glue(unit, outcome.config), []).append(outcome)
            best = (best_of(group, defaults[unit]) for group in kinds.values())
            choices.append([(unit, o) for o in best if o is not None])
        options += [dict(parts) for parts in product(*choices)]
    return options


def _half_width(outcome: Outcome) -> float:
    if outcome.interval_us is None:
        return 0.0
    return (outcome.interval_us[1] - outcome.interval_us[0]) / 2
