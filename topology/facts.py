"""A figure and where it comes from; a sheet of figures about one machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ..errors import UnknownFact, UnknownName
from .schema import SCHEMAS


class Confidence(StrEnum):
    """How far a figure can be trusted; UNKNOWN stands beside a figure that nobody gives."""

    PUBLISHED = "published"
    COMPILER = "compiler"
    MEASURED = "measured"
    INFERRED = "inferred"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One figure: value, unit, source, confidence. A value of None is known to be unknown."""

    value: float | int | None
    unit: str
    source: str
    confidence: Confidence

    @property
    def number(self) -> float:
        """The value as a float.

        Raises:
            UnknownFact: nobody has published it.
        """
        if self.value is None:
            raise UnknownFact("this GPU or rack", "value", self.source)
        return float(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The figures of one GPU or rack, in file order.

    Attributes:
        owner: Name of the GPU or rack, for messages.
        kind: "gpu" or "rack": which schema the figures follow.
        facts: Pairs of name and figure.
    """

    owner: str
    kind: str
    facts: tuple[tuple[str, Fact], ...] = field(repr=False)
    _index: dict[str, Fact] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the pairs: a question is asked thousands of times in a sweep."""
        object.__setattr__(self, "_index", dict(self.facts))

    def __iter__(self) -> Iterator[tuple[str, Fact]]:
        """Yield pairs of name and figure."""
        return iter(self.facts)

    def find(self, name: str) -> Fact | None:
        """Return a figure, or None where it is unknown or does not apply."""
        fact = self._index.get(name)
        return None if fact is None or fact.value is None else fact

    def fact(self, name: str) -> Fact:
        """Return a figure that has a value.

        Raises:
            UnknownFact: nobody has published it, or the machine has no such thing.
            UnknownName: there is no fact of that name at all.
        """
        found = self._index.get(name)
        if found is not None and found.value is not None:
            return found
        if name not in SCHEMAS[self.kind]:
            raise UnknownName("fact", name, SCHEMAS[self.kind])
        raise UnknownFact(self.owner, name, found.source if found else "its file does not list it")

    def first(self, *names: str) -> Fact:
        """Return the first of several figures that has a value.

        Raises:
            UnknownFact: none has one; the error is that of the last name.
        """
        found = next(filter(None, map(self.find, names)), None)
        return found or self.fact(names[-1])

    def overlaid(self, facts: Mapping[str, Fact]) -> Sheet:
        """Return a sheet in which some figures are replaced and new ones follow."""
        return Sheet(
            owner=self.owner, kind=self.kind, facts=tuple({**self._index, **facts}.items())
        )
