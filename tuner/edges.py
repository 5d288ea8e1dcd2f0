"""Where between two tuned token counts one winner's config gives way to the next one's.

Both configs were timed at both counts, or nobody knows: an edge is read from those four times and
carries the weakest of their evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..db import Evidence, Trial, Winner
from ..db.records import Edge
from ..search_spaces import LaunchConfig, Unit

_Time = tuple[float, Evidence]
_Point = tuple[Unit, int, LaunchConfig]
_Times = Mapping[_Point, _Time]


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


def _lead(
    tokens: int, first: Winner, second: Winner, protocols: Sequence[_Times]
) -> tuple[float, Evidence] | None:
    """Return the logarithm of the first config's time over the second's.

    Of a layer the times of its GEMMs are summed, each GEMM's two configs compared in one protocol. What
    surrounds the GEMMs is taken to be alike for both.
    """
    found = [
        _pair([(unit, tokens, config), (unit, tokens, other)], protocols)
        for (unit, config), (_, other) in zip(_parts(first), _parts(second), strict=True)
    ]
    pairs = [pair for pair in found if pair is not None]
    if len(pairs) < len(found):
        return None
    one, other = (sum(pair[side][0] for pair in pairs) for side in (0, 1))
    return math.log(one / other), min(time[1] for pair in pairs for time in pair)


def _parts(winner: Winner) -> list[tuple[Unit, LaunchConfig]]:
    parts = [(Unit(unit), config) for unit, config in winner.parts]
    return sorted(parts, key=lambda part: part[0].value) or [(winner.unit, winner.config)]


def _pair(points: Sequence[_Point], protocols: Sequence[_Times]) -> tuple[_Time, _Time] | None:
    """Return the times of two points by the first protocol that has both."""
    for times in protocols:
        one, other = (times.get(point) for point in points)
        if one is not None and other is not None:
            return one, other
    return None


def _times(trials: Iterable[Trial]) -> _Times:
    return {
        (t.unit, t.problem.tokens, t.config): (t.time_us, t.evidence)
        for t in trials
        if t.time_us is not None
    }
