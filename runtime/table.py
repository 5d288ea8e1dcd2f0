"""A frozen table of winners: which config to launch, and why that one.

Look-ups fall back exact -> bucket -> nearest legal -> default, and every choice says which it
was. All choices are made when a problem is bound; after that a look-up is one dict access or one
bisection.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from ..db.table_file import Document, content_hash, read_document, wrong_document
from ..errors import InvalidInput

Value = int | str | bool
Look = Callable[[int], "Choice"]
# What generated code depends on: a config that is legal for one such problem is legal for all.
CODE_KEYS = (
    "weights",
    "activations",
    "activation",
    "biases",
    "weight_on_input",
    "hidden",
    "intermediate",
    "arch",
)
# Ends the last bucket; no engine's step has more tokens.
MOST_TOKENS = 1 << 20
_SQLITE_MAGIC = b"SQLite format 3\x00"


class FrozenConfig(dict[str, Value]):
    """A config that cannot be changed: every look-up returns the same one."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a table's configs cannot be changed: make a dict of one")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse
    update = _refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a look-up answers.

    Attributes:
        config: Parameter names and values; empty where nothing is known and no default was given.
        evidence: "measured", "recorded", "predicted", or "none" for a default.
        bucket: Least and largest token count that get this answer.
        why: Starts with "exact", "bucket", "nearest" or "default".
        time_us: Time of the row that the config is from, at its own token count; None for a
            default.
    """

    config: Mapping[str, Value]
    evidence: str
    bucket: tuple[int, int]
    why: str
    time_us: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """All rows of one problem, with every choice made."""

    problem: Mapping[str, Any]
    exact: Mapping[int, Choice]
    starts: tuple[int, ...]
    choices: tuple[Choice, ...]

    def look(self) -> Look:
        """Return the look-up over token counts."""
        exact, starts, choices = self.exact, self.starts, self.choices

        def look(tokens: int) -> Choice:
            found = exact.get(tokens)
            if found is not None:
                return found
            if tokens < 1:
                raise InvalidInput(f"tokens is {tokens!r}: must be an integer of at least 1")
            return choices[bisect_right(starts, tokens) - 1]

        return look

    def borrowed(self, reason: str) -> _Group:
        """Return the same choices for another problem, each saying so."""

        def lent(choice: Choice) -> Choice:
            return replace(choice, why=f"nearest: {reason} ({choice.why})")

        return replace(
            self,
            exact={tokens: lent(choice) for tokens, choice in self.exact.items()},
            choices=tuple(lent(choice) for choice in self.choices),
        )


class Table:
    """Winners, frozen. Make one with `load` or `from_document`."""

    def __init__(self, document: Document) -> None:
        self._groups: dict[tuple[str, str], list[_Group]] = {}
        for table in document["tables"]:
            place = table["op"], table["unit"]
            self._groups.setdefault(place, []).append(_group(table))
        self._content_hash = content_hash(document["tables"])

    @classmethod
    def load(cls, source: str | Path) -> Table:
        """Read a table file, or the winners of a database.

        Args:
            source: A file that `rubin-tune export --format json` wrote, a database's file or its
                URL.

        Raises:
            CorruptFile: the file is no table.
            DatabaseRefused: the database is not one of ours.
        """
        if (isinstance(source, str) and "://" in source) or _is_sqlite(Path(source)):
            return cls(_from_database(source))
        return cls(read_document(Path(source)))

    @classmethod
    def from_document(cls, document: Document) -> Table:
        """Make one from a document (db/table_file.py).

        Raises:
            InvalidInput: it is none.
        """
        why = wrong_document(document)
        if why:
            raise InvalidInput(f"document is no table of winners: {why}")
        return cls(document)

    @property
    def content_hash(self) -> str:
        """Equal on two ranks exactly when their tables are."""
        return self._content_hash

    def ops(self) -> list[str]:
        """Return the kernels that the table knows."""
        return sorted({op for op, _ in self._groups})

    def problems(self, op: str | None = None) -> list[dict[str, Any]]:
        """Return the problems that the table has rows for, as look-ups take them."""
        found: list[dict[str, Any]] = []
        for (own, _), groups in self._groups.items():
            if op is None or own == op:
                found += [dict(g.problem) for g in groups if dict(g.problem) not in found]
        return found

    def lookup(
        self,
        op: str,
        problem: Mapping[str, Any],
        tokens: int,
        *,
        unit: str | None = None,
        default: Mapping[str, Value] | None = None,
    ) -> Choice:
        """Return the config to launch for a token count.

        Args:
            op: The kernel.
            problem: Keys as `problems` returns them (`db.table_file.problem_keys` makes them);
                those left out match anything.
            tokens: Tokens over all ranks.
            unit: gate_up, down, glue or layer; None = the only one that the table has, else layer.
            default: What the kernel launches when nothing is known.

        Raises:
            InvalidInput: no such token count, or several problems match.
        """
        return self.bind(op, problem, unit=unit, default=default)(tokens)

    def bind(
        self,
        op: str,
        problem: Mapping[str, Any],
        *,
        unit: str | None = None,
        default: Mapping[str, Value] | None = None,
    ) -> Look:
        """Return `lookup` with everything fixed but the token count: for the hot path."""
        groups = self._groups.get((op, unit or self._only_unit(op)), [])
        same = [group for group in groups if not _differing(group, problem)]
        if len(same) > 1:
            keys = sorted({key for g in same for key in g.problem if key not in problem})
            raise InvalidInput(
                f"{len(same)} problems of {op!r} match: must be one; also give {', '.join(keys)}"
            )
        if same:
            return same[0].look()
        near = _nearest(groups, problem)
        if near is not None:
            return near.look()
        return _default(op, default).look()

    def _only_unit(self, op: str) -> str:
        units = {unit for own, unit in self._groups if own == op}
        return units.pop() if len(units) == 1 else "layer"


def load(source: str | Path) -> Table:
    """Return the table of a file or database: see `Table.load`."""
    return Table.load(source)


def _group(table: Mapping[str, Any]) -> _Group:
    rows = table["rows"]
    counts = [row["tokens"] for row in rows]
    # Between two tuned counts the edge stands at their geometric mean: both sides are measured.
    edges = [math.isqrt(low * high) for low, high in pairwise(counts)]
    firsts = [counts[0], *(edge + 1 for edge in edges)]
    lasts = [*edges, counts[-1]]
    exact, starts, choices = {}, [], []
    if counts[0] > 1:
        starts.append(1)
        why = f"nearest: below the smallest tuned token count, {counts[0]}"
        choices.append(_choice(rows[0], (1, counts[0] - 1), why))
    for row, first, last in zip(rows, firsts, lasts, strict=True):
        word, tokens = row["evidence"], row["tokens"]
        exact[tokens] = _choice(row, (first, last), f"exact: {word} at {tokens} tokens")
        starts.append(first)
        why = f"bucket: {word} at {tokens} tokens, the nearest tuned count by ratio"
        choices.append(_choice(row, (first, last), why))
    starts.append(counts[-1] + 1)
    why = f"nearest: above the largest tuned token count, {counts[-1]}"
    choices.append(_choice(rows[-1], (counts[-1] + 1, MOST_TOKENS), why))
    return _Group(
        problem=dict(table["problem"]), exact=exact, starts=tuple(starts), choices=tuple(choices)
    )


def _choice(row: Mapping[str, Any], bucket: tuple[int, int], why: str) -> Choice:
    return Choice(
        config=FrozenConfig(row["config"]),
        evidence=row["evidence"],
        bucket=bucket,
        why=why,
        time_us=row["time_us"],
    )


def _default(op: str, default: Mapping[str, Value] | None) -> _Group:
    what = "the kernel's own config" if default is not None else "launch the kernel's own config"
    choice = Choice(
        config=FrozenConfig(default or {}),
        evidence="none",
        bucket=(1, MOST_TOKENS),
        why=f"default: the table has no row of {op} whose code would fit; {what}",
    )
    return _Group(problem={}, exact={}, starts=(1,), choices=(choice,))


def _differing(group: _Group, problem: Mapping[str, Any]) -> list[str]:
    """Return the keys that were asked for and are otherwise in the group."""
    return [key for key, value in problem.items() if group.problem.get(key) != value]


def _nearest(groups: list[_Group], problem: Mapping[str, Any]) -> _Group | None:
    """Return the choices of the problem that differs least while its code is the same.

    Only routing, expert counts, layout, GPU size and the like may differ: what is launched stays
    legal.
    """
    legal = [g for g in groups if not set(_differing(g, problem)) & set(CODE_KEYS)]
    if not legal:
        return None

    def distance(group: _Group) -> tuple[int, float]:
        own, asked = group.problem.get("local_experts", 1), problem.get("local_experts")
        apart = abs(math.log(own / asked)) if asked else 0.0
        return len(_differing(group, problem)), apart

    best = min(legal, key=distance)
    differing = _differing(best, problem)
    told = ", ".join(f"{k} {best.problem.get(k)} instead of {problem[k]}" for k in differing)
    return best.borrowed(f"tuned for {told}")


def _is_sqlite(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def _from_database(source: str | Path) -> Document:
    # Imported here: a table file is read without SQLAlchemy.
    from ..db.formats.json import table_document
    from ..db.store import open_store

    with open_store(source, create=False) as store:
        return table_document(store.winners())
