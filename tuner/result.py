"""What a sweep returns, and its stable JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..db import CompileReport, Evidence, Winner
from ..db.codec import edge_to_json
from .audit import Audit
from .imports import Baseline
from .portfolio import Portfolio
from .request import Resolved

SCHEMA = "rubin-tune.sweep/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many points of the spaces went how far.

    Attributes:
        space: Points of the product of all parameters, over the tuned units.
        legal: Distinct legal points.
        compiled: Variants that compiled (from the cache included).
        cubins: Distinct cubins among them.
        failed: Variants that did not compile, were wrong, hung or crashed.
        evaluated: Trials that have a time (variants times token counts).
        reused: Trials taken from the database.
        audited: Variants that were timed though they rank low.
        misranked: Those of them that were faster than all others.
    """

    space: int = 0
    legal: int = 0
    compiled: int = 0
    cubins: int = 0
    failed: int = 0
    evaluated: int = 0
    reused: int = 0
    audited: int = 0
    misranked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Winners of one sweep.

    Attributes:
        resolved: What was asked, resolved.
        sweep_id: Under which it stands in the database.
        database: Where, any password hidden.
        evidence: What the times are worth.
        counts: How far the points went.
        winners: One a unit and token count.
        wall_s: Seconds that this run took.
        complete: False when it was stopped by a budget or an interrupt.
        portfolio: The set that the winners are held to, where one was asked for.
        baselines: How the winners compare with an imported table's rows.
        refused: How many variants of this run were refused, by why (`Why`'s words).
        outages_s: How long the database's server was gone, each time.
    """

    resolved: Resolved
    sweep_id: str
    database: str
    evidence: Evidence
    counts: Counts
    winners: tuple[Winner, ...]
    wall_s: float
    complete: bool
    portfolio: Portfolio | None = None
    baselines: tuple[Baseline, ...] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    outages_s: tuple[float, ...] = ()

    @property
    def audit(self) -> Audit:
        """What the sample of low-ranked points showed."""
        return Audit(timed=self.counts.audited, misranked=self.counts.misranked)

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form (`rubin-tune.sweep/1`)."""
        setting = self.resolved.setting
        problem = setting.problems[0].as_dict()
        for name in ("tokens", "capacity"):
            problem.pop(name)
        return {
            "schema": SCHEMA,
            "sweep_id": self.sweep_id,
            "database": self.database,
            "kernel": setting.kernel.name,
            "target": {"gpu": setting.gpu.name, "arch": f"sm_{setting.gpu.arch}"},
            "evaluator": self.resolved.evaluator,
            "evidence": self.evidence.word,
            "problem": {**problem, "layout": setting.problems[0].layout.name},
            "counts": {name: getattr(self.counts, name) for name in Counts.__slots__},
            "winners": [winner_json(w) for w in self.winners],
            "audit": self.audit.as_json(),
            "portfolio": None if self.portfolio is None else self.portfolio.as_json(),
            "baselines": [one.as_json() for one in self.baselines],
            "refused": dict(self.refused),
            "outages_s": [round(seconds, 3) for seconds in self.outages_s],
            "complete": self.complete,
            "wall_s": round(self.wall_s, 3),
        }


def winner_json(winner: Winner) -> dict[str, object]:
    """Return one row of the result."""
    return {
        "tokens": winner.problem.tokens,
        "unit": winner.unit.value,
        "config": winner.config.as_dict(),
        "time_us": winner.time_us,
        "interval_us": list(winner.interval_us),
        "default_config": winner.default_config.as_dict(),
        "default_time_us": winner.default_time_us,
        "speedup": winner.speedup,
        "evidence": winner.evidence.word,
        "edge": None if winner.edge is None else edge_to_json(winner.edge),
        "compile": None if winner.compile is None else compile_json(winner.compile),
    }


def compile_json(report: CompileReport) -> dict[str, object]:
    """Return the compiler facts that are part of the stable output."""
    return {
        "registers": report.registers,
        "spill_bytes": report.spill_bytes,
        "shared_bytes": report.shared_bytes,
        "buffers": report.buffers,
        "tmem_columns": report.tmem_columns,
        "mma_k": report.mma_k,
    }
