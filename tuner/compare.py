"""Two sweeps side by side: of two databases, machines, toolchains, kernels or ways to search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from ..db import SweepNote, Winner, open_store
from ..errors import InvalidInput
from ..search_spaces import Unit
from . import choose
from .evaluation import Outcome
from .report import find_note
from .report_records import changes_of

SCHEMA = "rubin-tune.compare/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two sweeps."""

    note: SweepNote
    database: str
    winners: tuple[Winner, ...]

    def facts(self) -> dict[str, str]:
        """Return what the times belong to, each in words."""
        first = self.winners[0]
        shape = first.problem.shape
        words = sorted({w.evidence.word for w in self.winners})
        return {
            "kernel": first.kernel,
            "kernel source": first.source_hash,
            "model": shape.model,
            "layer": f"{shape.experts} experts, top {shape.top_k}, {shape.hidden} x "
            f"{shape.intermediate}",
            "weights": shape.weights,
            "activations": shape.activations,
            "layout": first.problem.layout.name,
            "routing": first.problem.routing.name,
            "gpu": first.silicon.name,
            "silicon": first.silicon.key,
            "toolchain": first.toolchain.key,
            "policy": first.policy,
            "evidence": " and ".join(words),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The winners of both sides for one unit at one token count."""

    a: Winner
    b: Winner

    @property
    def ratio(self) -> float:
        """B's time over A's."""
        return self.b.time_us / self.a.time_us

    @property
    def is_judged(self) -> bool:
        """Whether both times are of one evidence: a prediction proves nothing against a measurement."""
        return self.a.evidence is self.b.evidence

    @property
    def verdict(self) -> str:
        """Which is faster beyond the tie band max(95 % interval, 1 %)."""
        if not self.is_judged:
            return f"not judged: {self.a.evidence.word} against {self.b.evidence.word}"
        a, b = _outcome(self.a), _outcome(self.b)
        if choose.beats(b, a):
            return "B faster"
        return "A faster" if choose.beats(a, b) else "tie"

    @property
    def changes(self) -> str:
        """Where B's config differs from A's, as `--set` takes it; "" where kernels differ."""
        if self.a.kernel != self.b.kernel:
            return ""
        return changes_of(self.a.config, self.b.config)

    def as_json(self) -> dict[str, object]:
        """Return one row of the stable form."""
        return {
            "tokens": self.a.problem.tokens,
            "unit": self.a.unit.value,
            "a": _winner_json(self.a),
            "b": _winner_json(self.b),
            "ratio": self.ratio,
            "verdict": self.verdict,
            "changes": self.changes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sweeps side by side.

    Attributes:
        a: The first.
        b: The second.
        differences: (what, of A, of B) for all that differs in what the times belong to.
        pairs: Rows that both have, by token count and unit.
        only_a: (tokens, unit) of A alone.
        only_b: (tokens, unit) of B alone.
    """

    a: Side
    b: Side
    differences: tuple[tuple[str, str, str], ...]
    pairs: tuple[Pair, ...]
    only_a: tuple[tuple[int, Unit], ...]
    only_b: tuple[tuple[int, Unit], ...]

    @property
    def summary(self) -> str:
        """The comparison in a sentence."""
        layers = [p for p in self.pairs if p.a.unit is Unit.LAYER] or list(self.pairs)
        judged = [p for p in layers if p.is_judged]
        what = layers[0].a.unit.value
        if not judged:
            words = f"{layers[0].a.evidence.word} against {layers[0].b.evidence.word}"
            return (
                f"the two are not judged: their times are {words}; the ratios below show where the "
                "two sources differ, not which sweep is better"
            )
        mean = exp(sum(log(p.ratio) for p in judged) / len(judged))
        b, a = (sum(p.verdict == f"{side} faster" for p in judged) for side in "BA")
        ties = len(judged) - a - b
        other = any(p.a.problem.key != p.b.problem.key for p in judged)
        return (
            f"B takes {mean:.3f} of A's time ({judged[0].a.evidence.word}; {what}, geometric mean of "
            f"{len(judged)} token counts): B is faster at {b}, A at {a}, {ties} "
            f"{'is a tie' if ties == 1 else 'are ties'}"
            f"{'; the two do different work' if other else ''}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form (`rubin-tune.compare/1`)."""
        return {
            "schema": SCHEMA,
            "summary": self.summary,
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "differences": [{"what": w, "a": a, "b": b} for w, a, b in self.differences],
            "rows": [p.as_json() for p in self.pairs],
            "only_a": [{"tokens": t, "unit": u.value} for t, u in self.only_a],
            "only_b": [{"tokens": t, "unit": u.value} for t, u in self.only_b],
        }


def compare(a: str, b: str, *, database: str | Path | None = None) -> Comparison:
    """Return two sweeps side by side.

    Args:
        a: A sweep's id or the beginning of one, in `database`; or a database's path or URL (its newest
            finished sweep is meant); or DATABASE#ID.
        b: The same for the second.
        database: Where sweeps named by id alone stand; None = the user's own SQLite file.

    Raises:
        InvalidInput: no such sweep, no winners, or no token count and unit in common.
        DatabaseRefused: no such database.
    """
    first, second = _side(a, database), _side(b, database)
    left, right = _by_place(first.winners), _by_place(second.winners)
    shared = [place for place in left if place in right]
    if not shared:
        raise InvalidInput(
            f"{a!r} and {b!r} share no token count of a unit: the first has tokens "
            f"{_tokens(left)}, the second {_tokens(right)}; sweep both with the same --tokens"
        )
    ours, theirs = first.facts(), second.facts()
    return Comparison(
        a=first,
        b=second,
        differences=tuple((n, ours[n], theirs[n]) for n in ours if ours[n] != theirs[n]),
        pairs=tuple(Pair(a=left[place], b=right[place]) for place in shared),
        only_a=tuple(place for place in left if place not in right),
        only_b=tuple(place for place in right if place not in left),
    )


def _side(text: str, database: str | Path | None) -> Side:
    where, sweep_id = _meant(text, database)
    with open_store(where, create=False) as store:
        note = find_note(store, sweep_id)
        winners = tuple(store.winners(sweep_id=note.sweep_id))
        if not winners:
            raise InvalidInput(
                f"sweep {note.sweep_id!r} ({note.state}) in {store.url!r} has no winners: "
                "let rubin-tune sweep finish"
            )
        return Side(note=note, database=store.url, winners=winners)


def _meant(text: str, database: str | Path | None) -> tuple[str | Path | None, str | None]:
    """Return the database and the sweep (None = newest) that a word means."""
    before, mark, sweep_id = text.rpartition("#")
    if mark and before:
        return before, sweep_id or None
    if "://" in text or Path(text).is_file():
        return text, None
    return database, text


def _by_place(winners: Iterable[Winner]) -> dict[tuple[int, Unit], Winner]:
    units = list(Unit)
    ordered = sorted(winners, key=lambda w: (w.problem.tokens, units.index(w.unit)))
    return {(w.problem.tokens, w.unit): w for w in ordered}


def _tokens(places: Iterable[tuple[int, Unit]]) -> str:
    return ", ".join(str(t) for t in sorted({t for t, _ in places}))


def _outcome(winner: Winner) -> Outcome:
    return Outcome(config=winner.config, time_us=winner.time_us, interval_us=winner.interval_us)


def _winner_json(winner: Winner) -> dict[str, object]:
    return {
        "time_us": winner.time_us,
        "interval_us": list(winner.interval_us),
        "evidence": winner.evidence.word,
        "config": winner.config.as_dict(),
    }


def _side_json(side: Side) -> dict[str, object]:
    return {"sweep_id": side.note.sweep_id, "database": side.database, **side.facts()}
