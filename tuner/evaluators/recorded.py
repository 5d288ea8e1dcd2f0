"""Times read from a recorded landscape: for tests, for comparing searches, for others' measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log2
from pathlib import Path

from ...db import CompileReport, Evidence, Measurement, Rejected, Silicon, Toolchain, Why
from ...db.landscape import Landscape, Row, read_landscape
from ...db.silicon import silicon_of
from ...errors import InvalidInput
from ...search_spaces import GEMMS, Constraint, LaunchConfig, Space, Unit
from ...search_spaces.space import Point
from ..evaluation import LayerOutcome, Outcome, Pair, Setting
from ..statistics import median_interval

Key = tuple[Unit, int, LaunchConfig]


@dataclass(slots=True)
class RecordedEvaluator:
    """Recorded evidence."""

    setting: Setting
    landscape: Landscape
    rows: Mapping[Key, Row]
    evidence: Evidence = Evidence.RECORDED
    policy: str = "recorded/1"
    compiles: bool = False
    _known: dict[Unit, frozenset[LaunchConfig]] = field(default_factory=dict)
    _timed: dict[int, frozenset[LaunchConfig]] = field(default_factory=dict)

    @property
    def silicon(self) -> Silicon:
        """The GPU that the header names, as its topology file describes it."""
        return replace(silicon_of(self.setting.gpu), name=self.landscape.gpu)

    @property
    def toolchain(self) -> Toolchain:
        """What the header says made the code; what it does not say stays empty."""
        return Toolchain(triton=self.landscape.triton, ptxas="", torch=self.landscape.torch)

    def hold(self, wait_s: float = 0.0, says: Callable[[str], None] | None = None) -> None:
        """A file is shared."""

    def warm_up(self) -> None:
        """Nothing takes time to get ready."""

    def restrict(self, space: Space, unit: Unit) -> Space:
        """Return the points that were recorded for the unit."""
        if unit not in self._known:
            self._known[unit] = frozenset(c for u, _, c in self.rows if u is unit)
        known = self._known[unit]
        recorded = Constraint(
            name="recorded",
            reason="the landscape holds no such point",
            on=tuple(p.name for p in space.parameters),
            holds=lambda point: _config(space, point) in known,
        )
        return replace(space, constraints=(*space.constraints, recorded))

    def stand_in(self, tokens: int, config: LaunchConfig) -> LaunchConfig:
        """Return the timed config that differs least: a grid may lack the engine's default.

        It must be timed for both GEMMs, so that the layer with defaults has a time too.
        """
        if tokens not in self._timed:
            timed = [
                {
                    c
                    for (u, t, c), row in self.rows.items()
                    if (u, t) == (unit, tokens) and row.samples_us
                }
                for unit in GEMMS
            ]
            self._timed[tokens] = frozenset.intersection(*map(frozenset, timed))
        known = self._timed[tokens]
        if config in known or not known:
            return config

        def distance(other: LaunchConfig) -> tuple[int, float, str]:
            ours, theirs = config.as_dict(), other.as_dict()
            # Tiles and warps make another kernel; stages and raster order only another schedule.
            heavy = sum(ours[n] != theirs[n] for n in ours if n not in ("group_m", "num_stages"))
            steps = sum(abs(log2(max(int(ours[n]), 1) / max(int(theirs[n]), 1))) for n in ours)
            return heavy, steps, other.key

        return min(known, key=distance)

    def evaluate(
        self,
        unit: Unit,
        config: LaunchConfig,
        report: CompileReport | None,
        best_us: Mapping[int, float],
    ) -> Mapping[int, Outcome]:
        """Look the variant up at every token count."""
        return {tokens: self._look_up(unit, tokens, config) for tokens in self.setting.ladder}

    def together(
        self, unit: Unit, tokens: int, configs: Sequence[LaunchConfig]
    ) -> Mapping[LaunchConfig, Outcome]:
        """Look up again: a recording holds one visit a config."""
        return {config: self._look_up(unit, tokens, config) for config in configs}

    def layers(self, tokens: int, pairs: Sequence[Pair]) -> list[LayerOutcome]:
        """Add the two GEMMs; a recording holds no glue."""
        return [LayerOutcome(glue=None, layer=self._sum(tokens, pair)) for pair in pairs]

    def close(self) -> None:
        """Nothing to end."""

    def _look_up(self, unit: Unit, tokens: int, config: LaunchConfig) -> Outcome:
        row = self.rows.get((unit, tokens, config))
        if row is None:
            detail = "not in the landscape"
            return Outcome.refused(Rejected(config=config, why=Why.ILLEGAL, detail=detail))
        if not row.samples_us:
            detail = row.status or "no time was recorded"
            return Outcome.refused(Rejected(config=config, why=Why.COMPILE_ERROR, detail=detail))
        measurement = Measurement(
            samples_us=row.samples_us, policy=self.policy, launches_per_sample=8
        )
        return Outcome(
            config=config,
            time_us=measurement.median_us,
            interval_us=median_interval(row.samples_us),
            measurement=measurement,
        )

    def _sum(self, tokens: int, pair: Pair) -> Outcome:
        parts = [self._look_up(unit, tokens, config) for unit, config in pair.items()]
        lost = next((p for p in parts if p.time_us is None), None)
        if lost is not None:
            return lost
        return Outcome(
            config=pair[Unit.GATE_UP],
            time_us=sum(p.time_us or 0.0 for p in parts),
            interval_us=(
                sum(p.interval_us[0] for p in parts if p.interval_us),
                sum(p.interval_us[1] for p in parts if p.interval_us),
            ),
        )


def _config(space: Space, point: Point) -> LaunchConfig:
    return LaunchConfig.of({p.name: point[p.name] for p in space.parameters})


def make(setting: Setting, *, cache_dir: Path, argument: str = "") -> RecordedEvaluator:
    """Read the landscape and check that it speaks of the sweep's problem.

    Raises:
        CorruptFile: it is no landscape.
        InvalidInput: it was recorded for another problem or lacks a token count.
    """
    if not argument:
        raise InvalidInput("evaluator 'recorded' names no file: write recorded:FILE")
    landscape = read_landscape(Path(argument))
    wrong = landscape.mismatch(setting.problems[0])
    if wrong:
        raise InvalidInput(f"landscape {argument!r} does not fit: {wrong}")
    missing = [t for t in setting.ladder if t not in landscape.tokens]
    if missing:
        raise InvalidInput(
            f"landscape {argument!r} holds no tokens {', '.join(map(str, missing))}: "
            f"it holds {', '.join(map(str, landscape.tokens))}; give --tokens some of these"
        )
    problem = setting.problems[0]
    spaces = {unit: setting.kernel.space(problem, unit, setting.gpu) for unit in GEMMS}
    rows = {
        (row.unit, row.tokens, spaces[row.unit].canonical(row.config)): row
        for row in landscape.rows
    }
    return RecordedEvaluator(setting, landscape, rows)


PROVIDES = make
