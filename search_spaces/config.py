"""One point of a search space."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import InvalidConfig

Value = int | str | bool


@dataclass(frozen=True, slots=True, order=True)
class LaunchConfig:
    """One legal, canonical point: parameter names (lower case) and their values, sorted by name.

    Equal configs launch the same code. Iterating gives the names.
    """

    items: tuple[tuple[str, Value], ...]

    def __post_init__(self) -> None:
        """Refuse doubled names and values that are no plain scalars."""
        names = [name for name, _ in self.items]
        if len(set(names)) != len(names):
            raise InvalidConfig(f"config names a parameter twice: {names}")
        for name, value in self.items:
            if not isinstance(value, int | str):
                raise InvalidConfig(
                    f"{name} is {value!r}: must be an integer, a string or true/false"
                )
        object.__setattr__(self, "items", tuple(sorted(self.items, key=lambda item: item[0])))

    @classmethod
    def of(cls, values: Mapping[str, Value] | None = None, **more: Value) -> LaunchConfig:
        """Make one from a mapping, keywords, or both."""
        return cls(tuple({**(values or {}), **more}.items()))

    def __getitem__(self, name: str) -> Value:
        """Return a value; KeyError where the config has no such parameter."""
        for own, value in self.items:
            if own == name:
                return value
        raise KeyError(name)

    def integer(self, name: str) -> int:
        """Return a value that must be an integer."""
        value = self[name]
        if not isinstance(value, int):
            raise InvalidConfig(f"{name} is {value!r}: must be an integer")
        return int(value)

    def get(self, name: str, default: Value) -> Value:
        """Return a value, or `default` where the config has no such parameter."""
        return dict(self.items).get(name, default)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return (name for name, _ in self.items)

    def as_dict(self) -> dict[str, Value]:
        """Return a plain dict, in name order."""
        return dict(self.items)

    def replace(self, **changes: Value) -> LaunchConfig:
        """Return the config with some values changed."""
        return LaunchConfig.of(self.as_dict(), **changes)

    @property
    def key(self) -> str:
        """Canonical JSON: the same text for the same config, on every machine."""
        return json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))

    def __str__(self) -> str:
        """Spell the config as `--set` takes it."""
        return " ".join(f"{name}={spell(value)}" for name, value in self.items)


def spell(value: Value) -> str:
    """Return a value as `--set` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
