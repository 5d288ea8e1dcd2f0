"""A frozen table of winners: which config to launch, and why that one.

Look-ups fall back exact -> bucket -> nearest legal -> default, and every choice says which it
was. All choices are made when a problem is bound; after that a look-up is one dict access or one
bisection, and makes no object.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..db.frozen import FrozenDict
from ..db.table_check import EDGES, EVIDENCE, NEEDS, Document, ranges, wrong_document
from ..db.table_configs import configs_of
from ..db.table_file import content_hash
from ..db.table_read import checked, in_order, read_table
from ..errors import DatabaseRefused, InvalidInput
from .choices import Choice, Choices, Edge, Look, Miss, Row, Value, choices_of, default_choices
from .limits import Limits

if TYPE_CHECKING:
    from ..topology import Gpu

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
# Problems that look-ups without `bind` remember; a server has a handful.
_MOST_REMEMBERED = 1024
# What a warning calls a problem by.
_NAMED = ("hidden", "intermediate", "experts", "top_k", "layout", "routing", "weights")
_SQLITE_MAGIC = b"SQLite format 3\x00"
_Place = tuple[str, str]


class Misses(Protocol):
    """Who is told of look-ups that no row answers: see `MissLog`."""

    def of(self, op: str, unit: str, problem: Mapping[str, Any]) -> Miss:
        """Return what is called with each missed token count of a problem, and its reason."""
        ...


class _Group:
    """Rows of one problem; its choices are made when they are first asked for."""

    __slots__ = ("_choices", "_range", "_table", "problem")

    def __init__(self, table: _Rows, problem: FrozenDict[Any], own: range) -> None:
        self._table = table
        self._range = own
        self._choices: Choices | None = None
        self.problem = problem

    @property
    def choices(self) -> Choices:
        if self._choices is None:
            self._choices = self._table.choices(self._range)
        return self._choices


class _Rows:
    """A document's rows, and which of them cannot run here."""

    __slots__ = ("_configs", "_document", "_refused", "_rows")

    def __init__(self, document: Document, limits: Limits | None) -> None:
        self._rows: dict[str, Sequence[Any]] = document["rows"]
        # Made when a row is first asked for: most rows of a table are another model's.
        self._document = document
        self._configs: list[FrozenDict[Value]] = []
        self._refused = {} if limits is None else self._refuse(document["needs"], limits)

    def legal(self, own: range) -> bool:
        """Whether any of these rows can run."""
        return not self._refused or any(i not in self._refused for i in own)

    def refused(self, own: range) -> list[tuple[int, str]]:
        """Return (tokens, why) of each of these rows that cannot run."""
        return [(self._rows["tokens"][i], self._refused[i]) for i in own if i in self._refused]

    def choices(self, own: range) -> Choices:
        """Make the choices of these rows, of which one at least can run."""
        rows = [self._row(i) for i in own if i not in self._refused]
        return choices_of(rows, dict(self.refused(own)))

    def _refuse(self, needs: Mapping[str, list[int]], limits: Limits) -> dict[int, str]:
        """Return why each row that cannot run cannot, by its number."""
        over = [limits.why_not(one) for one in zip(*(needs[name] for name in NEEDS), strict=True)]
        wide = [limits.too_many_warps(config) for config in self._known_configs()]
        if not any(over) and not any(wide):
            return {}
        pairs = enumerate(zip(self._rows["needs"], self._rows["config"], strict=True))
        whys = ((i, over[need] or wide[config]) for i, (need, config) in pairs)
        return {i: f"its own winner {why}" for i, why in whys if why}

    def _row(self, number: int) -> Row:
        return Row(
            tokens=self._rows["tokens"][number],
            config=self._known_configs()[self._rows["config"][number]],
            evidence=EVIDENCE[self._rows["evidence"][number]],
            time_us=self._rows["time_us"][number],
            last=self._rows["last"][number],
            edge=EDGES[self._rows["edge"][number]],
        )

    def _known_configs(self) -> list[FrozenDict[Value]]:
        if not self._configs:
            self._configs = [
                FrozenDict(config) for config in configs_of(self._document["configs"])
            ]
        return self._configs


class Table:
    """Winners, frozen. Make one with `load` or `from_document`."""

    def __init__(
        self,
        document: Document,
        *,
        gpu: Gpu | Limits | None = None,
        misses: Misses | None = None,
    ) -> None:
        limits = None if gpu is None else Limits.of(gpu)
        rows = _Rows(document, limits)
        self._document = document
        self._content_hash: str = document.get("content_hash", "")
        self._misses = misses
        self._groups: dict[_Place, list[_Group]] = {}
        self._looks: dict[str | None, dict[str, dict[FrozenDict[Any], Look]]] = {}
        self._last: FrozenDict[Any] = FrozenDict()
        problems = [FrozenDict(problem) for problem in document["problems"]]
        warnings = []
        for group, run in zip(document["groups"], ranges(document["groups"]), strict=True):
            own = range(*run)
            problem = problems[group["problem"]]
            place = group["op"], group["unit"]
            why = _foreign(problem, limits)
            told = [(0, why)] if why else rows.refused(own)
            warnings += [_warning(place, problem, tokens, why) for tokens, why in told]
            if not why and rows.legal(own):
                self._groups.setdefault(place, []).append(_Group(rows, problem, own))
        self._warnings = tuple(warnings)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        gpu: Gpu | Limits | None = None,
        misses: Misses | None = None,
    ) -> Table:
        """Read a table file, or the winners of a database.

        Args:
            source: A file that `rubin-tune export --format json` wrote, a database's file or its
                URL.
            gpu: Leave out rows that it cannot run; `warnings` says which.
            misses: Told of each look-up that no row answers (a `MissLog`).

        Raises:
            CorruptFile: the file is no table.
            DatabaseRefused: the database is not one of ours.
        """
        return cls(_read(source), gpu=gpu, misses=misses)

    @classmethod
    def from_document(
        cls,
        document: Document,
        *,
        gpu: Gpu | Limits | None = None,
        misses: Misses | None = None,
    ) -> Table:
        """Make one from a document (db/table_file.py).

        Raises:
            InvalidInput: it is none.
        """
        try:
            ordered = checked(document)
        except InvalidInput as error:
            raise InvalidInput(f"document is no table of winners: {error}") from error
        return cls(ordered, gpu=gpu, misses=misses)

    @property
    def content_hash(self) -> str:
        """Equal on two ranks exactly when their tables are; `gpu` does not change it."""
        if not self._content_hash:
            # A database's rows are put in order only where the hash is asked for.
            self._content_hash = content_hash(in_order(self._document))
        return self._content_hash

    @property
    def warnings(self) -> tuple[str, ...]:
        """Rows that were left out because the GPU cannot run them, a sentence each."""
        return self._warnings

    def assert_same(self, content_hash: str) -> None:
        """Refuse to go on with another table than another rank's.

        Raises:
            InvalidInput: the hashes differ.
        """
        if content_hash != self.content_hash:
            raise InvalidInput(
                f"tables differ between ranks: this one is {self.content_hash[:12]}, the other "
                f"is {content_hash[:12]!r}; give every rank the same file"
            )

    def ops(self) -> list[str]:
        """Return the kernels that the table knows."""
        return sorted({op for op, _ in self._groups})

    def problems(self, op: str | None = None) -> list[FrozenDict[Any]]:
        """Return the problems that the table has rows for, as look-ups take them."""
        found = (
            group.problem
            for (own, _), groups in self._groups.items()
            if op is None or own == op
            for group in groups
        )
        return list(dict.fromkeys(found))

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
                those left out match anything. Theirs is faster than a plain dict.
            tokens: Tokens over all ranks.
            unit: gate_up, down, glue or layer; None = the only one that the table has, else layer.
            default: What the kernel launches when nothing is known.

        Raises:
            InvalidInput: no such token count, or several problems match.
        """
        if default is not None:
            return self.bind(op, problem, unit=unit, default=default)(tokens)
        if type(problem) is not FrozenDict:
            # A server asks for the same problem again and again, in the same dict or an equal one.
            if self._last != problem:
                self._last = FrozenDict(problem)
            problem = self._last
        try:
            look = self._looks[unit][op][problem]
        except KeyError:
            look = self._remember(op, problem, unit)
        return look(tokens)

    def bind(
        self,
        op: str,
        problem: Mapping[str, Any],
        *,
        unit: str | None = None,
        default: Mapping[str, Value] | None = None,
    ) -> Look:
        """Return `lookup` with everything fixed but the token count: for the hot path."""
        which = unit or self._only_unit(op)
        miss = None if self._misses is None else self._misses.of(op, which, problem)
        return self._choices(op, problem, which, default).look(miss)

    def edges(
        self, op: str, problem: Mapping[str, Any], *, unit: str | None = None
    ) -> tuple[Edge, ...]:
        """Return where the buckets of a problem meet, and what each edge stands on."""
        return tuple(self._choices(op, problem, unit or self._only_unit(op), None).edges)

    def _choices(
        self,
        op: str,
        problem: Mapping[str, Any],
        unit: str,
        default: Mapping[str, Value] | None,
    ) -> Choices:
        groups = self._groups.get((op, unit), [])
        same = [group for group in groups if not _differing(group, problem)]
        if len(same) > 1:
            keys = sorted({key for g in same for key in g.problem if key not in problem})
            raise InvalidInput(
                f"{len(same)} problems of {op!r} match: must be one; also give {', '.join(keys)}"
            )
        if same:
            return same[0].choices
        near = _nearest(groups, problem)
        return default_choices(op, default) if near is None else near

    def _remember(self, op: str, problem: Mapping[str, Any], unit: str | None) -> Look:
        look = self.bind(op, problem, unit=unit)
        known = self._looks.setdefault(unit, {}).setdefault(op, {})
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        known[FrozenDict(problem)] = look
        return look

    def _only_unit(self, op: str) -> str:
        units = {unit for own, unit in self._groups if own == op}
        return units.pop() if len(units) == 1 else "layer"


def load(source: str | Path, *, gpu: Gpu | Limits | None = None) -> Table:
    """Return the table of a file or database: see `Table.load`."""
    return Table.load(source, gpu=gpu)


def _foreign(problem: Mapping[str, Any], limits: Limits | None) -> str:
    if limits is None or problem.get("arch", limits.arch) == limits.arch:
        return ""
    return f"they are for sm_{problem['arch']}, {limits.name} is sm_{limits.arch}"


def _warning(place: _Place, problem: Mapping[str, Any], tokens: int, why: str) -> str:
    what = f"the row of {tokens} tokens is" if tokens else "all rows are"
    named = ", ".join(f"{k} {problem[k]}" for k in _NAMED if k in problem)
    return f"{' '.join(place)} ({named}): {what} left out: {why}"


def _differing(group: _Group, problem: Mapping[str, Any]) -> list[str]:
    """Return the keys that were asked for and are otherwise in the group."""
    return [key for key, value in problem.items() if group.problem.get(key) != value]


def _nearest(groups: list[_Group], problem: Mapping[str, Any]) -> Choices | None:
    """Return the choices of the problem that differs least while its code is the same.

    Only routing, expert counts, layout, GPU size and the like may differ: what is launched stays
    legal.
    """
    legal = [g for g in groups if not set(_differing(g, problem)) & set(CODE_KEYS)]
    if not legal:
        return None

    def distance(group: _Group) -> tuple[int, float]:
        own, asked = group.problem.get("local_experts"), problem.get("local_experts")
        known = all(isinstance(count, int) and count > 0 for count in (own, asked))
        apart = abs(math.log(own / asked)) if known else 0.0  # type: ignore[operator]
        return len(_differing(group, problem)), apart

    best = min(legal, key=distance)
    differing = _differing(best, problem)
    told = ", ".join(f"{k} {best.problem.get(k)} instead of {problem[k]}" for k in differing)
    return best.choices.borrowed(f"tuned for {told}")


def _read(source: str | Path) -> Document:
    if isinstance(source, str) and "://" in source:
        return _from_server(source)
    path = Path(source)
    return _from_database(path) if _is_sqlite(path) else read_table(path)


def _is_sqlite(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except (OSError, ValueError):
        # The reader of table files says what is wrong with it.
        return False


def _from_database(path: Path) -> Document:
    # Imported here: a table file is read without what a database needs.
    from ..db.light import read_winners

    document = read_winners(path)
    if document is None:
        return _from_server(path)
    why = wrong_document(document)
    if why:
        raise DatabaseRefused(f"database {str(path)!r} holds a winner that cannot be meant: {why}")
    return document


def _from_server(source: str | Path) -> Document:
    from ..db.formats.json import table_document
    from ..db.store import open_store

    with open_store(source, create=False) as store:
        document = table_document(store.winners())
        why = wrong_document(document)
        if why:
            raise DatabaseRefused(
                f"database {store.url!r} holds a winner that cannot be meant: {why}"
            )
        return document
