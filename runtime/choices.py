"""What a look-up answers, and the choices of one problem, all made before the first look-up."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from operator import index

from ..db.frozen import FrozenDict
from ..db.table_check import ASSUMED, MOST_TOKENS
from ..errors import InvalidInput

Value = int | str | bool


class Reason(StrEnum):
    """How a choice was made, from the best founded to the least."""

    EXACT = "exact"
    BUCKET = "bucket"
    NEAREST = "nearest"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a look-up answers.

    Attributes:
        config: Parameter names and values; empty where nothing is known and no default was given.
        evidence: "measured", "recorded", "predicted", or "none" for a default.
        bucket: Least and largest token count that get this answer.
        reason: How it was chosen.
        why: The same in words; starts with the reason.
        time_us: Time of the row that the config is from, at its own token count; None for a
            default.
        edges: What the bucket's lower and upper end stand on: see `Edge.evidence`; "" where no tuned
            count lies beyond.
    """

    config: Mapping[str, Value]
    evidence: str
    bucket: tuple[int, int]
    reason: Reason
    why: str
    time_us: float | None = None
    edges: tuple[str, str] = ("", "")


Look = Callable[[int], Choice]
Miss = Callable[[int, Reason], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One winner, as look-ups need it.

    Attributes:
        tokens: Its token count.
        config: What it launches.
        evidence: Of its time.
        time_us: Its time.
        last: Last token count of its bucket; 0 = assumed.
        edge: The evidence of that.
    """

    tokens: int
    config: Mapping[str, Value]
    evidence: str
    time_us: float
    last: int = 0
    edge: str = ASSUMED


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Where one tuned count's bucket ends and the next one's begins.

    Attributes:
        below: Tuned count on its lower side.
        above: Tuned count on its upper side.
        last: Last token count that is answered as `below`.
        evidence: "measured", "recorded" or "predicted": the times of both winners, at both counts,
            cross there; "same": both are one config; "assumed": the geometric mean, as a time lacks.
    """

    below: int
    above: int
    last: int
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The answers for every token count.

    Attributes:
        exact: By tuned token count.
        starts: Where each bucket begins, ascending from 1.
        buckets: The answer of each.
        edges: Between each two tuned counts.
    """

    exact: Mapping[int, Choice]
    starts: Sequence[int]
    buckets: Sequence[Choice]
    edges: Sequence[Edge] = ()

    def look(self, miss: Miss | None = None) -> Look:
        """Return the look-up over token counts.

        Args:
            miss: Told each answer that is no row's own and in no tuned bucket.
        """
        # Plain locals: a look-up is one dict access, or one bisection, and makes no object.
        exact, starts, buckets = self.exact, self.starts, self.buckets
        missed = (Reason.NEAREST, Reason.DEFAULT)

        def look(tokens: int) -> Choice:
            try:
                found = exact.get(tokens)
                if found is not None:
                    return found
                if index(tokens) < 1:
                    raise InvalidInput(f"tokens is {tokens!r}: must be at least 1")
            except TypeError as error:
                raise InvalidInput(f"tokens is {tokens!r:.60}: must be an integer") from error
            return buckets[bisect_right(starts, tokens) - 1]

        if miss is None:
            return look

        def look_and_tell(tokens: int) -> Choice:
            choice = look(tokens)
            if choice.reason in missed:
                miss(tokens, choice.reason)
            return choice

        return look_and_tell

    def borrowed(self, reason: str) -> Choices:
        """Return the same choices for another problem, each saying so."""

        def lent(choice: Choice) -> Choice:
            why = f"nearest: {reason} ({choice.why})"
            return replace(choice, reason=Reason.NEAREST, why=why)

        return Choices(
            exact={tokens: lent(choice) for tokens, choice in self.exact.items()},
            starts=self.starts,
            buckets=[lent(choice) for choice in self.buckets],
            edges=self.edges,
        )


def choices_of(rows: Sequence[Row], refused: Mapping[int, str]) -> Choices:
    """Make every choice of one problem.

    Args:
        rows: Winners by ascending token count, at least one.
        refused: Token counts whose own winner cannot run on this GPU, and why.
    """
    counts = [row.tokens for row in rows]
    edges = [_edge(low, high, refused) for low, high in pairwise(rows)]
    firsts = [counts[0], *(edge.last + 1 for edge in edges)]
    lasts = [*(edge.last for edge in edges), counts[-1]]
    words = ["", *(edge.evidence for edge in edges), ""]
    exact, starts, buckets = {}, list[int](), list[Choice]()
    if counts[0] > 1:
        starts.append(1)
        why = f"below the smallest tuned token count, {counts[0]}"
        buckets.append(_choice(rows[0], (1, counts[0] - 1), Reason.NEAREST, why))
    for row, bucket, ends in zip(
        rows, zip(firsts, lasts, strict=True), pairwise(words), strict=True
    ):
        why = f"{row.evidence} at {row.tokens} tokens"
        exact[row.tokens] = replace(_choice(row, bucket, Reason.EXACT, why), edges=ends)
        starts.append(bucket[0])
        why = f"{why}, whose bucket this is{edges_in_words(ends)}"
        buckets.append(replace(_choice(row, bucket, Reason.BUCKET, why), edges=ends))
    starts.append(counts[-1] + 1)
    why = f"above the largest tuned token count, {counts[-1]}"
    buckets.append(_choice(rows[-1], (counts[-1] + 1, MOST_TOKENS), Reason.NEAREST, why))
    for tokens, why in refused.items():
        near = buckets[bisect_right(starts, tokens) - 1]
        exact[tokens] = replace(near, why=f"{near.why}; {why}")
    return Choices(exact=exact, starts=starts, buckets=buckets, edges=edges)


def _edge(low: Row, high: Row, refused: Mapping[int, str]) -> Edge:
    """Return the edge between two rows that can run."""
    middle, evidence = math.isqrt(low.tokens * high.tokens), ASSUMED
    if low.config == high.config:
        evidence = "same"
    elif low.edge != ASSUMED and not any(low.tokens < t < high.tokens for t in refused):
        # A pin is towards the next row; where that one is refused, nobody compared these two.
        middle, evidence = min(max(low.last, low.tokens), high.tokens - 1), low.edge
    return Edge(below=low.tokens, above=high.tokens, last=middle, evidence=evidence)


def edges_in_words(ends: tuple[str, str]) -> str:
    """Say what both ends of a bucket stand on, in brackets; "" where neither is an edge."""
    said = [
        f"{side} edge {word}" for side, word in zip(("lower", "upper"), ends, strict=True) if word
    ]
    return f" ({', '.join(said)})" if said else ""


def default_choices(op: str, default: Mapping[str, Value] | None) -> Choices:
    """Return the one answer where the table knows nothing."""
    what = "the kernel's own config" if default is not None else "launch the kernel's own config"
    choice = Choice(
        config=FrozenDict(default or {}),
        evidence="none",
        bucket=(1, MOST_TOKENS),
        reason=Reason.DEFAULT,
        why=f"default: the table has no row of {op} whose code would fit; {what}",
    )
    return Choices(exact={}, starts=[1], buckets=[choice])


def _choice(row: Row, bucket: tuple[int, int], reason: Reason, why: str) -> Choice:
    return Choice(
        config=row.config,
        evidence=row.evidence,
        bucket=bucket,
        reason=reason,
        why=f"{reason.value}: {why}",
        time_us=row.time_us,
    )
