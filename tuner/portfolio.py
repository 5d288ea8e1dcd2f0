"""The smallest set of configs that serves a whole token ladder, so that a server warms few kernels.

Exact, by mixed-integer programming (scipy's HiGHS). With y[u, c] = 1 where config c of unit u is in
the set, z[t, k] = 1 where token count t launches configs of coupling k, and x[t, u, c] = 1 where it
launches c:

    minimise    sum y + w * sum of losses                   (w so small that no config is worth it)
    subject to  sum over k of z[t, k] = 1                   one coupling a token count
                sum over c in k of x[t, u, c] = z[t, k]     one config a unit, of that coupling
                x[t, u, c] <= y[u, c]                       only configs of the set
                sum of times of x at t <= (1 + tolerance) * the winners' sum
                sum over c of y[u, c] <= cap

Where no set of at most `cap` configs keeps the tolerance, the set of at most `cap` with the smallest
sum of losses is taken, and the losses say so. No unit may become slower than its default where the
winner was not: where the set has no such config, the default is launched though outside the set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ..db import Winner
from ..db.codec import config_from_json, config_to_json
from ..errors import InvalidInput
from ..search_spaces import LaunchConfig, Unit

# What leaving a token count to its default costs, in losses: more than any set that serves it.
_OUTSIDE = 100.0
# A set within this of the winners covers a token count: recorded samples spread by 1-3 %.
TOLERANCE = 0.01
DEFAULT_CAP = 6
# HiGHS proves ladders of 18 counts and 100 configs a unit in about a second; what takes longer is
# used as it is, and said to be unproven.
_TIME_LIMIT_S = 30.0
# Rounding of a solver's binary.
_HALF = 0.5

Times = Mapping[Unit, Mapping[LaunchConfig, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Portfolio:
    """A set of configs and what it costs.

    Attributes:
        cap: The most configs a unit.
        tolerance: Loss up to which a token count counts as covered.
        configs: The set of each unit, in config order.
        losses: For each token count the summed time of the units over the winners', less 1.
        outside: Token counts whose default stands though it is not in the set: the set was slower.
        proven: Whether the solver proved that no smaller set exists (or, where the cap binds, no
            set of smaller loss).
    """

    cap: int
    tolerance: float
    configs: tuple[tuple[Unit, tuple[LaunchConfig, ...]], ...]
    losses: tuple[tuple[int, float], ...]
    outside: tuple[int, ...] = ()
    proven: bool = True

    @property
    def worst_loss(self) -> float:
        """The largest loss of a token count."""
        return max((loss for _, loss in self.losses), default=0.0)

    def of(self, unit: Unit) -> tuple[LaunchConfig, ...]:
        """Return one unit's set."""
        return dict(self.configs).get(unit, ())

    def __str__(self) -> str:
        """Say it for people."""
        sizes = ", ".join(f"{len(configs)} of {unit.value}" for unit, configs in self.configs)
        losses = ", ".join(f"{loss:+.1%} at {tokens}" for tokens, loss in self.losses)
        proof = "" if self.proven else "; a smaller set was not ruled out"
        apart = f"; the default stands outside it at {self.outside}" if self.outside else ""
        return f"portfolio: {sizes}; time over the unrestricted winners': {losses}{apart}{proof}"

    def as_json(self) -> dict[str, Any]:
        """Return the stored and printed form."""
        return {
            "cap": self.cap,
            "tolerance": self.tolerance,
            "configs": {u.value: [config_to_json(c) for c in cs] for u, cs in self.configs},
            "losses": [{"tokens": tokens, "loss": loss} for tokens, loss in self.losses],
            "outside": list(self.outside),
            "proven": self.proven,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Portfolio:
        """Read what `as_json` wrote."""
        return cls(
            cap=found["cap"],
            tolerance=found["tolerance"],
            configs=tuple(
                (Unit(unit), tuple(config_from_json(config) for config in configs))
                for unit, configs in found["configs"].items()
            ),
            losses=tuple((row["tokens"], row["loss"]) for row in found["losses"]),
            outside=tuple(found["outside"]),
            proven=found["proven"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """What is known at one token count.

    Attributes:
        times_us: Time of every config that has one, by unit.
        winner: What won there.
        default: What is launched when nothing is known.
    """

    times_us: Times
    winner: Mapping[Unit, LaunchConfig]
    default: Mapping[Unit, LaunchConfig]

    @property
    def reference_us(self) -> float:
        """The winners' summed time."""
        return sum(self.times_us[unit][config] for unit, config in self.winner.items())

    def limit_us(self, unit: Unit) -> float:
        """Return the slowest time that a unit may be given.

        It is the default's, if it has one: the default keeps its right. A winner that is itself
        slower (an engine's one config for both units) leaves its own time as the limit.
        """
        default = self.times_us[unit].get(self.default[unit], np.inf)
        return max(default, self.times_us[unit][self.winner[unit]])


Ladder = Mapping[int, Column]


def choose(
    ladder: Ladder,
    coupling: Callable[[LaunchConfig], str],
    *,
    cap: int = DEFAULT_CAP,
    tolerance: float = TOLERANCE,
) -> Portfolio:
    """Return the smallest set of configs within the tolerance, or the best set of `cap` a unit.

    Args:
        ladder: Times, winner and default of each token count; winners have times.
        coupling: Units are launched together only with configs of one coupling.
        cap: The most configs a unit.
        tolerance: Allowed loss over the winners, as a share.

    Raises:
        InvalidInput: the solver found no set in its time.
    """
    problem = _Model(ladder, coupling, cap)
    solved = problem.solve(tolerance) or problem.solve(None)
    if solved is None:
        raise InvalidInput(f"no set of {cap} configs a unit was found in {_TIME_LIMIT_S:.0f} s")
    configs, picks, proven = solved
    outside = tuple(tokens for tokens in ladder if not picks[tokens])
    losses = tuple((t, _loss(ladder[t], picks[t] or ladder[t].default)) for t in ladder)
    return Portfolio(
        cap=cap,
        tolerance=tolerance,
        configs=tuple((u, tuple(sorted(cs, key=lambda c: c.key))) for u, cs in configs.items()),
        losses=losses,
        outside=outside,
        proven=proven,
    )


def _loss(column: Column, picks: Mapping[Unit, LaunchConfig]) -> float:
    total = sum(column.times_us[unit][config] for unit, config in picks.items())
    return total / column.reference_us - 1.0


_Solved = tuple[dict[Unit, list[LaunchConfig]], dict[int, dict[Unit, LaunchConfig]], bool]
_Row = tuple[dict[int, float], float, float]


class _Model:
    """The program: numbered variables, and rows {variable: factor} between two bounds."""

    def __init__(self, ladder: Ladder, coupling: Callable[[LaunchConfig], str], cap: int) -> None:
        self._ladder = ladder
        self._coupling = coupling
        self._cap = cap
        self._y: dict[tuple[Unit, LaunchConfig], int] = {}
        self._x: dict[tuple[int, Unit, LaunchConfig], int] = {}
        self._z: dict[tuple[int, str], int] = {}
        self._outside: dict[int, int] = {}
        self._rows: list[_Row] = []
        self._count = 0

    def solve(self, tolerance: float | None) -> _Solved | None:
        """Return (set of each unit, picks of each token count, proven), None where there is none.

        With a tolerance the set is the smallest; without, losses are summed and the cap binds.
        """
        for numbered in (self._y, self._x, self._z, self._outside):
            numbered.clear()
        self._rows.clear()
        self._count = 0
        for tokens, column in self._ladder.items():
            if not self._add(tokens, column, tolerance):
                return None
        for unit in {unit for unit, _ in self._y}:
            own = {number: 1.0 for (u, _), number in self._y.items() if u is unit}
            self._rows.append((own, 0.0, float(self._cap)))
        return self._read(self._run(self._cost(tolerance)))

    def _new(self) -> int:
        self._count += 1
        return self._count - 1

    def _add(self, tokens: int, column: Column, tolerance: float | None) -> bool:
        most = np.inf if tolerance is None else (1 + tolerance) * column.reference_us
        choices = _choices(column, self._coupling, most)
        if tolerance is not None and not choices:
            return False
        one: dict[int, float] = {}
        if tolerance is None:
            self._outside[tokens] = self._new()
            one[self._outside[tokens]] = 1.0
        total: dict[int, float] = {}
        for kind, units in choices.items():
            z = self._z[tokens, kind] = self._new()
            one[z] = 1.0
            for unit, times in units.items():
                row = {z: -1.0}
                for config, time_us in times.items():
                    x = self._x[tokens, unit, config] = self._new()
                    if (unit, config) not in self._y:
                        self._y[unit, config] = self._new()
                    y = self._y[unit, config]
                    row[x] = 1.0
                    total[x] = time_us / column.reference_us
                    self._rows.append(({x: 1.0, y: -1.0}, -np.inf, 0.0))
                self._rows.append((row, 0.0, 0.0))
        self._rows.append((one, 1.0, 1.0))
        if tolerance is not None:
            # A picosecond's slack: sums of floats differ by their order.
            self._rows.append((total, 0.0, 1 + tolerance + 1e-9))
        return True

    def _cost(self, tolerance: float | None) -> Any:
        cost = np.zeros(self._count)
        for number in self._outside.values():
            cost[number] = _OUTSIDE
        for (tokens, unit, config), number in self._x.items():
            column = self._ladder[tokens]
            cost[number] = column.times_us[unit][config] / column.reference_us
        if tolerance is not None:
            # All losses together weigh less than one config.
            cost *= 0.5 / (1 + sum(cost))
            for number in self._y.values():
                cost[number] = 1.0
        return cost

    def _run(self, cost: Any) -> Any:
        data, rows, columns = [], [], []
        for place, (factors, _, _) in enumerate(self._rows):
            for number, factor in factors.items():
                data.append(factor)
                rows.append(place)
                columns.append(number)
        matrix = csr_array((data, (rows, columns)), shape=(len(self._rows), self._count))
        low = [row[1] for row in self._rows]
        high = [row[2] for row in self._rows]
        return milp(
            cost,
            constraints=LinearConstraint(matrix, low, high),
            integrality=np.ones(self._count),
            bounds=Bounds(0, 1),
            options={"time_limit": _TIME_LIMIT_S, "mip_rel_gap": 0.0},
        )

    def _read(self, found: Any) -> _Solved | None:
        if found.x is None:
            return None
        picks: dict[int, dict[Unit, LaunchConfig]] = {tokens: {} for tokens in self._ladder}
        configs: dict[Unit, list[LaunchConfig]] = {u: [] for u, _ in self._y}
        for (tokens, unit, config), number in self._x.items():
            if found.x[number] > _HALF:
                picks[tokens][unit] = config
                if config not in configs[unit]:
                    configs[unit].append(config)
        return configs, picks, bool(found.status == 0)


def _choices(
    column: Column, coupling: Callable[[LaunchConfig], str], most_us: float
) -> dict[str, dict[Unit, dict[LaunchConfig, float]]]:
    """Return by coupling what each unit may launch; couplings that a unit lacks are left out.

    Args:
        column: One token count.
        coupling: Of a config.
        most_us: Most that the units may take together.
    """
    kinds: dict[str, dict[Unit, dict[LaunchConfig, float]]] = {}
    for unit, times in column.times_us.items():
        limit = column.limit_us(unit)
        for config, time_us in times.items():
            if time_us <= limit:
                kinds.setdefault(coupling(config), {}).setdefault(unit, {})[config] = time_us
    found = {}
    for kind, units in kinds.items():
        if len(units) != len(column.times_us):
            continue
        fastest = {unit: min(times.values()) for unit, times in units.items()}
        spare = most_us * (1 + 1e-9) - sum(fastest.values())
        if spare < 0:
            continue
        found[kind] = {
            unit: {c: t for c, t in times.items() if t - fastest[unit] <= spare}
            for unit, times in units.items()
        }
    return found


def held_to(
    chosen: Portfolio, rows: Sequence[Winner], references_us: Mapping[int, float]
) -> Portfolio:
    """Return the portfolio with the losses that were found when its picks were timed.

    Args:
        chosen: The set, as the trials gave it.
        rows: The winners held to it, other units' rows included.
        references_us: Summed time of the unrestricted winners at each token count.
    """
    totals: dict[int, float] = {}
    outside = set()
    for row in rows:
        own = chosen.of(row.unit)
        if own:
            tokens = row.problem.tokens
            totals[tokens] = totals.get(tokens, 0.0) + row.time_us
            if row.config not in own:
                outside.add(tokens)
    losses = tuple((t, totals[t] / references_us[t] - 1.0) for t in sorted(totals))
    return replace(chosen, losses=losses, outside=tuple(sorted(outside)))
