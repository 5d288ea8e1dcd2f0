"""Where between two tuned token counts one winner's config gives way to the next one's.

Both configs were timed at both counts, or nobody knows: an edge is read from those four times and
carries the weakest of their evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..db import Evidence, Trial, Winner
from ..db.records import Edge
from ..search_spaces import LaunchConfig, Unit

_Time = tuple[float, Evidence]
_Point = tuple[Unit, int, LaunchConfig]


def pinned(
    winners: Sequence[Winner], trials: Iterable[Trial], finals: Iterable[Trial]
) -> tuple[Winner, ...]:
    """Return a sweep's winners, each with its edge towards the next token count.

    Args:
        winners: All of one sweep.
        trials: Trials of its problems.
        finals: Those of them that were measured again together: a pair of configs is compared in
            these where both are there, else in `trials`.
    """
    protocols = [_times(finals), _times(trials)]
    ladder = {(w.unit, w.problem.tokens): w for w in winners}
    rungs = sorted({tokens for _, tokens in ladder})
    following = dict(pairwise(rungs))

    def edge(winner: Winner) -> Edge | None:
        after = following.get(winner.problem.tokens)
        other = None if after is None else ladder.get((winner.unit, after))
        return None if other is None else _edge(winner, other, protocols)

    return tuple(replace(winner, edge=edge(winner)) for winner in winners)


def crossing(low: int, high: int, *, lead: float, lag: float) -> int:
    """Return the last token count at which the config that won at `low` is the faster one.

    The logarithm of the two times' ratio is taken to be linear in the logarithm of the token count,
    which is exact where both times are powers of it.

    Args:
        low: Token count of the first winner.
        high: Token count of the second.
        lead: Logarithm of the first config's time over the second's, at `low`: below 0 where the
            first is faster there.
        lag: The same at `high`: above 0 where the second is faster there.

    Returns:
        From `low` to `high - 1`: a config that is behind even where it won (it is the default, which
        wins ties) serves that count only; where neither leads anywhere, the geometric mean.
    """
    lead, lag = min(lead, 0.0), max(lag, 0.0)
    share = -lead / (lag - lead) if lag > lead else 0.5
    # A crossing on a count belongs to the first; a rounding error must not move it.
    at = low * (high / low) ** share * (1 + 1e-12)
    return min(max(int(at), low), high - 1)


def _edge(first: Winner, second: Winner, protocols: Sequence[_Times]) -> Edge | None:
    low, high = first.problem.tokens, second.problem.tokens
    if first.config == second.config:
        return None
    leads = [_lead(tokens, first, second, protocols) for tokens in (low, high)]
    known = [lead for lead in leads if lead is not None]
    if len(known) < len(leads):
        return None
    (lead, here), (lag, there) = known
    last = crossing(low, high, lead=lead, lag=lag)
    return Edge(tokens=last, evidence=min(here, there))


@dataclass(frozen=True, slots=True)
class _Times:
    """Times of one measuring protocol."""

    known: Mapping[_Point, _Time]

    def of(self, winner: Winner, tokens: int) -> _Time | None:
        """Return what a winner's config takes at a token count: of a layer, all its GEMMs.

        What surrounds the GEMMs is the same for both configs of an edge, or unknown.
        """
        parts = [(Unit(unit), config) for unit, config in winner.parts]
        points = parts or [(winner.unit, winner.config)]
        found = [self.known.get((unit, tokens, config)) for unit, config in points]
        times = [one for one in found if one is not None]
        if len(times) < len(found):
            return None
        return sum(time_us for time_us, _ in times), min(evidence for _, evidence in times)


def _times(trials: Iterable[Trial]) -> _Times:
    return _Times(
        {
            (t.unit, t.problem.tokens, t.config): (t.time_us, t.evidence)
            for t in trials
            if t.time_us is not None
        }
    )


def _lead(
    tokens: int, first: Winner, second: Winner, protocols: Sequence[_Times]
) -> tuple[float, Evidence] | None:
    """Return the logarithm of the first config's time over the second's, of one protocol."""
    for times in protocols:
        one, other = times.of(first, tokens), times.of(second, tokens)
        if one is not None and other is not None:
            return math.log(one[0] / other[0]), min(one[1], other[1])
    return None
