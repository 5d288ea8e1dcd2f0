"""Configs of a table of winners, each once: in columns, and a layer's by the numbers of its parts.

A table's 10,000 rows launch a thousand or two of configs, and most of these are a pair of others:
what a layer launches is what its GEMMs launch. db/table_file.py shows the form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from .table_check import rows_of

_Names = tuple[str, ...]
# A plain config: the number of its kind, and its values as text (an integer, a word, true differ).
_Part = tuple[int, str]
# The number of a plan, and the plain config of each of its units.
_Joint = tuple[int, tuple[_Part, ...]]


def number_configs(configs: Sequence[Mapping[str, Any]]) -> tuple[list[Any], list[int]]:
    """Return the distinct configs as a document holds them, and each given config's number.

    Args:
        configs: One dict may stand for many rows; it is looked at once.
    """
    known = _Known()
    distinct = {id(config): config for config in configs}
    parts = {number: known.parts(config) for number, config in distinct.items()}
    kinds, numbers = known.numbered(parts.values())
    mine = {config: numbers[place] for config, place in parts.items()}
    return kinds, [mine[number] for number in map(id, configs)]


def configs_of(kinds: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every config, in the order of its number."""
    found: list[dict[str, Any]] = []
    for kind in kinds:
        if "values" in kind:
            names = list(kind["values"])
            found += [dict(zip(names, row, strict=True)) for row in rows_of(kind)]
            continue
        for numbers in zip(*kind["parts"].values(), strict=True):
            parts = zip(kind["parts"], numbers, strict=True)
            named = [(unit, found[number].items()) for unit, number in parts]
            found.append({f"{unit}.{n}": value for unit, part in named for n, value in part})
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How configs of some parameters are parted.

    Attributes:
        number: Of the plan.
        units: One a part; none where the config is written whole.
        parts: The kind of each part, and what picks its values.
    """

    number: int
    units: _Names
    parts: tuple[tuple[int, Callable[[list[Any]], tuple[Any, ...]]], ...]


@dataclass(frozen=True, slots=True)
class _Known:
    """Kinds of plain configs (their parameters), the configs of each, and plans by parameters."""

    kinds: dict[_Names, int] = field(default_factory=dict)
    plain: list[dict[str, tuple[Any, ...]]] = field(default_factory=list)
    plans: dict[_Names, _Plan] = field(default_factory=dict)

    def parts(self, config: Mapping[str, Any]) -> _Joint:
        """Return the plan of a config and its plain configs."""
        names, values = tuple(config), list(config.values())
        plan = self.plans.get(names) or self._plan(names)
        found = []
        for kind, pick in plan.parts:
            part = pick(values)
            text = str(part)
            self.plain[kind][text] = part
            found.append((kind, text))
        return plan.number, tuple(found)

    def numbered(self, asked: Iterable[_Joint]) -> tuple[list[Any], dict[_Joint, int]]:
        """Return the document's configs, and the number of each that was asked for."""
        written: list[dict[str, Any]] = []
        numbers: dict[_Part, int] = {}
        for names, kind in sorted(self.kinds.items()):
            texts = sorted(self.plain[kind])
            numbers.update({(kind, text): len(numbers) + i for i, text in enumerate(texts)})
            rows = [self.plain[kind][text] for text in texts]
            written.append({"count": len(rows), "values": _columns(names, rows)})
        units = {plan.number: plan.units for plan in self.plans.values()}
        joint: dict[_Names, dict[tuple[int, ...], list[_Joint]]] = {}
        found: dict[_Joint, int] = {}
        for place in set(asked):
            own = tuple(numbers[part] for part in place[1])
            if units[place[0]]:
                joint.setdefault(units[place[0]], {}).setdefault(own, []).append(place)
            else:
                found[place] = own[0]
        known = len(numbers)
        for names, places in sorted(joint.items()):
            ordered = sorted(places)
            for number, row in enumerate(ordered, known):
                found.update(dict.fromkeys(places[row], number))
            known += len(ordered)
            written.append({"count": len(ordered), "parts": _columns(names, ordered)})
        return written, found

    def _plan(self, names: _Names) -> _Plan:
        split = [name.partition(".") for name in names]
        if not names or not all(unit and own for unit, _, own in split):
            split = [("", "", name) for name in names]
        units = sorted({unit for unit, _, _ in split}) or [""]
        parts = []
        for unit in units:
            mine = sorted((own, i) for i, (prefix, _, own) in enumerate(split) if prefix == unit)
            kind = self.kinds.setdefault(tuple(own for own, _ in mine), len(self.kinds))
            if kind == len(self.plain):
                self.plain.append({})
            parts.append((kind, _picker([i for _, i in mine])))
        plan = _Plan(number=len(self.plans), units=tuple(filter(None, units)), parts=tuple(parts))
        self.plans[names] = plan
        return plan


def _picker(indices: Sequence[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda values: tuple(values[i] for i in indices)


def _columns(names: _Names, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
