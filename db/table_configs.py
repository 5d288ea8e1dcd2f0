"""Configs of a table of winners, each once: in columns, and a layer's by the numbers of its parts.

A table's 10,000 rows launch a thousand or two of configs, and most of these are a pair of others:
what a layer launches is what its GEMMs launch. db/table_file.py shows the form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .table_check import rows_of

_Names = tuple[str, ...]
# A plain config: its parameters, and its values as text (an integer, a word and true differ).
_Part = tuple[_Names, str]


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


_Joint = tuple[_Names, tuple[_Part, ...]]


@dataclass(frozen=True, slots=True)
class _Known:
    """Plain configs by their parameters, and how configs of some names are parted."""

    plain: dict[_Names, dict[str, list[Any]]] = field(default_factory=dict)
    plans: dict[_Names, list[tuple[str, _Names, list[int]]]] = field(default_factory=dict)

    def parts(self, config: Mapping[str, Any]) -> _Joint:
        """Return the units of a config and the plain configs they have; no units = one is all."""
        names, values = tuple(config), list(config.values())
        if names not in self.plans:
            self.plans[names] = _plan(names)
        plan, parts = self.plans[names], []
        for _, own, indices in plan:
            part = [values[i] for i in indices]
            text = str(part)
            self.plain.setdefault(own, {})[text] = part
            parts.append((own, text))
        return tuple(unit for unit, _, _ in plan if unit), tuple(parts)

    def numbered(self, asked: Iterable[_Joint]) -> tuple[list[Any], dict[_Joint, int]]:
        """Return the document's configs, and the number of each that was asked for."""
        kinds: list[dict[str, Any]] = []
        plain: dict[_Part, int] = {}
        for names in sorted(self.plain):
            texts = sorted(self.plain[names])
            plain.update({(names, text): len(plain) + i for i, text in enumerate(texts)})
            rows = [self.plain[names][text] for text in texts]
            kinds.append({"count": len(rows), "values": _columns(names, rows)})
        found: dict[_Joint, int] = {((), (part,)): number for part, number in plain.items()}
        joint: dict[_Names, dict[tuple[int, ...], _Joint]] = {}
        for units, parts in set(asked):
            if units:
                numbers = tuple(plain[part] for part in parts)
                joint.setdefault(units, {})[numbers] = (units, parts)
        for units, places in sorted(joint.items()):
            ordered = sorted(places)
            found.update({places[row]: len(found) + i for i, row in enumerate(ordered)})
            kinds.append({"count": len(ordered), "parts": _columns(units, ordered)})
        return kinds, found


def _columns(names: _Names, rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _plan(names: _Names) -> list[tuple[str, _Names, list[int]]]:
    """Return the units that parameters name: unit ("" = none), its parameters, their places."""
    split = [name.partition(".") for name in names]
    if not names or not all(unit and own for unit, _, own in split):
        split = [("", "", name) for name in names]
    plan = []
    for unit in sorted({unit for unit, _, _ in split}) or [""]:
        mine = sorted((own, i) for i, (prefix, _, own) in enumerate(split) if prefix == unit)
        plan.append((unit, tuple(own for own, _ in mine), [i for _, i in mine]))
    return plan
