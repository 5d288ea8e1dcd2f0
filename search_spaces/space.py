"""Search spaces: parameters, constraints, one canonical point per code that is launched.

A space is declared, and everything asked of it (size, legal points, what each constraint removes,
neighbours, an encoding) follows. Constraints say which parameters they read, so each is evaluated
once per combination of those, not once per point.
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidConfig
from .config import LaunchConfig, Value, spell


class Point(Protocol):
    """What a constraint reads: a LaunchConfig, or a dict of the parameters it names."""

    def __getitem__(self, name: str, /) -> Value:
        """Return a parameter's value."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One axis: its name, its values in order, and what it is in a few words."""

    name: str
    values: tuple[Value, ...]
    meaning: str = ""

    def __post_init__(self) -> None:
        """Refuse an axis without values or with a doubled one."""
        if not self.values or len({(type(v), v) for v in self.values}) != len(self.values):
            raise InvalidConfig(f"values of {self.name} are {self.values!r}: must be distinct")

    @property
    def ordered(self) -> bool:
        """Whether its values are numbers, so that neighbours are the next smaller and larger."""
        return all(isinstance(v, int) and not isinstance(v, bool) for v in self.values)

    def places(self) -> NDArray[np.float64]:
        """Return each value's numbers in [0, 1], for surrogates, shape [values, features].

        Numbers are placed by their logarithm when all are powers of two, else linearly; words and
        claims get one place a value.
        """
        if not self.ordered:
            return np.eye(len(self.values))
        values = np.array([float(v) for v in self.values])
        if all(v > 0 and math.log2(v).is_integer() for v in values):
            values = np.log2(values)
        span = np.ptp(values)
        found: NDArray[np.float64] = (values - values.min()) / (span if span > 0 else 1.0)
        return found[:, None]

    def read(self, text: str) -> Value:
        """Read a value as `--set` spells it.

        Raises:
            InvalidConfig: not one of the values.
        """
        for value in self.values:
            if spell(value) == text.strip().lower():
                return value
        choices = ", ".join(spell(v) for v in self.values)
        raise InvalidConfig(f"{self.name} is {text!r}: must be one of {choices}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A rule that every legal point obeys.

    Attributes:
        name: A few words in lower case, no verb ("shared memory").
        reason: Why points that break it cannot be launched or cannot win.
        on: The parameters that `holds` reads; it may read no other.
        holds: True for points that obey.
        soft: Whether points that break it could be launched and are only thought not to win; a
            sweep's audit times a few.
    """

    name: str
    reason: str
    on: tuple[str, ...]
    holds: Callable[[Point], bool]
    soft: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """The configs of one unit for a problem and a GPU.

    Attributes:
        name: "megamoe gate_up on vr200".
        parameters: The axes.
        constraints: In the order in which they are counted.
        canonical: Maps a point to the one that stands for all that launch the same code. It must
            be idempotent, stay on the axes, and lead from obeying points to obeying points.
        seeds: Good points known from elsewhere; only legal ones are kept, doubles dropped.
    """

    name: str
    parameters: tuple[Parameter, ...]
    constraints: tuple[Constraint, ...] = ()
    canonical: Callable[[LaunchConfig], LaunchConfig] = lambda config: config
    seeds: tuple[LaunchConfig, ...] = ()
    _found: dict[str, tuple[LaunchConfig, ...]] = field(
        default_factory=dict, init=False, repr=False
    )
    _counts: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse constraints on parameters that do not exist; drop seeds that are not legal."""
        names = {parameter.name for parameter in self.parameters}
        for constraint in self.constraints:
            if not names.issuperset(constraint.on):
                raise InvalidConfig(
                    f"constraint {constraint.name!r} reads {constraint.on}: "
                    f"{self.name} has only {', '.join(sorted(names))}"
                )
        legal = [self.canonical(s) for s in self.seeds if self.why_not(s) is None]
        object.__setattr__(self, "seeds", tuple(dict.fromkeys(legal)))

    @property
    def size(self) -> int:
        """Points of the full product of the axes."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    def parameter(self, name: str) -> Parameter:
        """Return an axis.

        Raises:
            InvalidConfig: there is none of that name; near names are in the message.
        """
        for own in self.parameters:
            if own.name == name:
                return own
        names = [own.name for own in self.parameters]
        near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InvalidConfig(
            f"{self.name} has no parameter {name!r}: {hint}known are {', '.join(names)}"
        )

    def legal(self) -> tuple[LaunchConfig, ...]:
        """Return every legal, canonical point once, in the order of the axes."""
        if "legal" not in self._found:
            self._walk()
        return self._found["legal"]

    def removed(self) -> tuple[tuple[Constraint, int], ...]:
        """Return the points that each constraint removes of those the earlier ones left."""
        self.legal()
        return tuple(zip(self.constraints, self._counts, strict=True))

    def doubted(self) -> tuple[LaunchConfig, ...]:
        """Return the canonical points that break soft constraints only."""
        hard = tuple(c for c in self.constraints if not c.soft)
        if len(hard) == len(self.constraints):
            return ()
        legal = frozenset(self.legal())
        return tuple(c for c in replace(self, constraints=hard).legal() if c not in legal)

    @property
    def duplicates(self) -> int:
        """Points that obey every constraint but launch the same code as a legal one."""
        return self.size - sum(count for _, count in self.removed()) - len(self.legal())

    def contains(self, config: LaunchConfig) -> bool:
        """Whether the config is one of `legal()`, without listing them."""
        return (
            self._off_axis(config) is None
            and self.why_not(config) is None
            and self.canonical(config) == config
        )

    def why_not(self, config: LaunchConfig) -> Constraint | None:
        """Return the first constraint that the config breaks, or None."""
        off = self._off_axis(config)
        if off is not None:
            return off
        return next((c for c in self.constraints if not c.holds(config)), None)

    def neighbours(self, config: LaunchConfig) -> tuple[LaunchConfig, ...]:
        """Return the legal points that differ in one parameter.

        For numbers these are the nearest legal value below and above, else all other values.
        """
        found = []
        for parameter in self.parameters:
            for values in _directions(parameter, config[parameter.name]):
                moved = (config.replace(**{parameter.name: value}) for value in values)
                nearest = next((c for c in moved if self.contains(c)), None)
                if nearest is not None:
                    found.append(nearest)
        return tuple(dict.fromkeys(found))

    def encode(self, config: LaunchConfig) -> NDArray[np.float64]:
        """Return the point as numbers in [0, 1] (`Parameter.places`); distinct points differ."""
        axes = self.parameters
        return np.concatenate([p.places()[p.values.index(config[p.name])] for p in axes])

    def parse(self, settings: Sequence[str], base: LaunchConfig) -> LaunchConfig:
        """Change `base` by settings such as "block_m=128".

        Raises:
            InvalidConfig: no such parameter or value, or the result cannot be launched.
        """
        changes: dict[str, Value] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise InvalidConfig(f"setting is {setting!r}: must be NAME=VALUE, as block_m=128")
            parameter = self.parameter(name.strip().lower())
            if parameter.name in changes:
                raise InvalidConfig(f"{parameter.name} is set twice: must be set once")
            changes[parameter.name] = parameter.read(text)
        config = base.replace(**changes)
        broken = self.why_not(config)
        if broken is not None:
            raise InvalidConfig(f"{config} breaks {broken.name!r}: {broken.reason}")
        return self.canonical(config)

    def _off_axis(self, config: LaunchConfig) -> Constraint | None:
        values = config.as_dict()
        if values.keys() != {p.name for p in self.parameters}:
            names = ", ".join(p.name for p in self.parameters)
            return _axis_rule(f"a config of {self.name} has exactly the parameters {names}")
        for parameter in self.parameters:
            value = values[parameter.name]
            if not any(type(value) is type(v) and value == v for v in parameter.values):
                choices = ", ".join(spell(v) for v in parameter.values)
                return _axis_rule(f"{parameter.name} must be one of {choices}")
        return None

    def _walk(self) -> None:
        alive = np.ones([len(p.values) for p in self.parameters], dtype=bool)
        self._counts.clear()
        for constraint in self.constraints:
            before = int(alive.sum())
            alive &= self._table(constraint)
            self._counts.append(before - int(alive.sum()))
        names = [p.name for p in self.parameters]
        axes = [p.values for p in self.parameters]
        kept = itertools.compress(itertools.product(*axes), alive.ravel())
        points = (LaunchConfig(tuple(zip(names, values, strict=True))) for values in kept)
        self._found["legal"] = tuple(p for p in points if self.canonical(p) == p)

    def _table(self, constraint: Constraint) -> NDArray[np.bool_]:
        """Evaluate a constraint over the axes it reads, shaped to broadcast over all axes."""
        read = [p for p in self.parameters if p.name in constraint.on]
        names = [p.name for p in read]
        rows = itertools.product(*(p.values for p in read))
        holds = [bool(constraint.holds(dict(zip(names, row, strict=True)))) for row in rows]
        shape = [len(p.values) if p.name in constraint.on else 1 for p in self.parameters]
        return np.array(holds, dtype=bool).reshape(shape)


def integer(point: Point, name: str) -> int:
    """Return a parameter that is a number."""
    value = point[name]
    if not isinstance(value, int):
        raise InvalidConfig(f"{name} is {value!r}: must be an integer")
    return value


def _axis_rule(reason: str) -> Constraint:
    return Constraint(name="axes", reason=reason, on=(), holds=lambda _: False)


def _directions(parameter: Parameter, value: Value) -> list[Sequence[Value]]:
    place = parameter.values.index(value)
    below, above = parameter.values[:place][::-1], parameter.values[place + 1 :]
    if parameter.ordered:
        return [below, above]
    return [(other,) for other in (*below, *above)]
