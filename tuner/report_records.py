"""What a report says of one sweep: frozen records, and their stable JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..db import CompileReport, Evidence, Silicon, SweepNote, Toolchain, Winner
from ..search_spaces import LaunchConfig, Problem, Unit

SCHEMA = "rubin-tune.report/1"

# What each kind of figure is worth, in a sentence.
MEANINGS = {
    "measured": "timed by us on that GPU",
    "recorded": "read from a recorded measurement",
    "predicted": "from the cost model, never timed",
    "compiled": "a compiler fact, no time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A winner beside its default.

    Attributes:
        winner: The stored choice.
        default_interval_us: Of the default's time, where a trial of it is stored.
        word: "faster", "default kept", "tie" or "slower", beyond the tie band or not.
    """

    winner: Winner
    default_interval_us: tuple[float, float] | None
    word: str

    @property
    def tokens(self) -> int:
        """Token count of the row."""
        return self.winner.problem.tokens

    @property
    def changes(self) -> str:
        """The parameters in which the config differs from the default, as `--set` takes them."""
        return changes_of(self.winner.default_config, self.winner.config)

    def as_json(self) -> dict[str, object]:
        """Return one row of the stable form."""
        winner, base = self.winner, self.default_interval_us
        return {
            "tokens": self.tokens,
            "unit": winner.unit.value,
            "evidence": winner.evidence.word,
            "time_us": winner.time_us,
            "interval_us": list(winner.interval_us),
            "default_time_us": winner.default_time_us,
            "default_interval_us": None if base is None else list(base),
            "speedup": winner.speedup,
            "verdict": self.word,
            "config": winner.config.as_dict(),
            "default_config": winner.default_config.as_dict(),
            "changes": self.changes,
            "compile": facts_json(winner.compile),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One config of one unit, and what the compiler said of it."""

    unit: Unit
    config: LaunchConfig
    compile: CompileReport | None

    def as_json(self) -> dict[str, object]:
        """Return one row of the stable form."""
        return {
            "unit": self.unit.value,
            "config": self.config.as_dict(),
            "compile": facts_json(self.compile),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One trial of the search.

    Attributes:
        variant: Its place in `Report.variants`.
        tokens: Token count.
        evidence: What its time is worth.
        time_us: None where it was refused.
        interval_us: None where it was refused.
        predicted_us: The cost model's time, None where there is none to compare.
        is_own: Whether this sweep made it; else an earlier one with the same keys did.
        at_s: Seconds from the sweep's start to the trial's end; None where not stored.
        why: Why it was refused, or "".
    """

    variant: int
    tokens: int
    evidence: Evidence
    time_us: float | None
    interval_us: tuple[float, float] | None
    predicted_us: float | None
    is_own: bool
    at_s: float | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The least a unit must do at a token count, and the time that takes at the GPU's peaks."""

    tokens: int
    unit: Unit
    flops: float
    min_bytes: float
    floor_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """The GPU's peaks: bytes and operations a second, the number format, where they are from."""

    gpu: str
    bytes_per_s: float
    flops_per_s: float
    rate: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How the cost model ordered the variants of one table that were timed.

    Attributes:
        tokens: Token count.
        unit: A GEMM.
        count: Variants timed and predicted.
        spearman: Rank correlation of predicted and timed.
        loss: Time of the variant that was predicted fastest, over the best time, less 1.
    """

    tokens: int
    unit: Unit
    count: int
    spearman: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How many trials were refused for one reason, and the first of them."""

    why: str
    count: int
    variants: int
    unit: Unit
    config: LaunchConfig
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Where a sweep's time went, over its own variants; None where that is not stored.

    Attributes:
        compile_s: Summed over compile processes, which run side by side; those of variants from the
            compile cache are of when they were compiled.
        verify_s: Comparing with float64.
        time_s: Timing.
        search_s: By the clock, from the start to the search's last trial.
        choose_s: By the clock, from there to the last choice between finalists.
    """

    compile_s: float | None
    verify_s: float | None
    time_s: float | None
    search_s: float | None
    choose_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One rung of the ladder: what a rank has to do."""

    tokens: int
    tokens_per_rank: float
    rows: float
    active_experts: float
    layer_floor_us: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a page says of one sweep."""

    note: SweepNote
    database: str
    kernel: str
    source_hash: str
    current_source_hash: str
    problem: Problem
    silicon: Silicon
    toolchain: Toolchain
    policy: str
    evidence: Evidence
    command: str
    summary: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    variants: tuple[Variant, ...]
    points: tuple[Point, ...]
    floors: tuple[Floor, ...]
    roofs: Roofs | None
    no_roofs_because: str
    agreements: tuple[Agreement, ...]
    no_agreement_because: str
    predicted_from: str
    refusals: tuple[Refusal, ...]
    seconds: Seconds
    ladder: tuple[Step, ...]
    expert_shares: tuple[float, ...] = field(repr=False)
    """Expected share of this rank's rows on each of its experts, largest first."""

    @property
    def title(self) -> str:
        """What was tuned for what, in one line."""
        shape = self.problem.shape
        return (
            f"{self.kernel} for {shape.model} ({shape.weights}, {self.problem.layout.name}) "
            f"on {self.silicon.name}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the stable machine-readable form (`rubin-tune.report/1`)."""
        return {
            "schema": SCHEMA,
            "title": self.title,
            "summary": list(self.summary),
            "evidence": self.evidence.word,
            "sweep": self._sweep_json(),
            "winners": [v.as_json() for v in self.verdicts],
            "variants": [v.as_json() for v in self.variants],
            "trials": _columns(self.points),
            "floors": [
                {
                    "tokens": f.tokens,
                    "unit": f.unit.value,
                    "flops": f.flops,
                    "min_bytes": f.min_bytes,
                    "floor_us": f.floor_us,
                }
                for f in self.floors
            ],
            "roofs": self._roofs_json(),
            "agreement": self._agreement_json(),
            "refused": [self._refusal_json(r) for r in self.refusals],
            "seconds": {
                name: getattr(self.seconds, name)
                for name in ("compile_s", "verify_s", "time_s", "search_s", "choose_s")
            },
            "workload": self._workload_json(),
            "reproduce": self._reproduce_json(),
        }

    def _sweep_json(self) -> dict[str, object]:
        note = self.note
        return {
            "id": note.sweep_id,
            "state": note.state,
            "started_at": f"{note.started_at:%Y-%m-%d %H:%M:%S}",
            "ended_at": None if note.ended_at is None else f"{note.ended_at:%Y-%m-%d %H:%M:%S}",
            "counts": dict(note.counts),
            "request": dict(note.request),
        }

    def _roofs_json(self) -> dict[str, object] | None:
        roofs = self.roofs
        if roofs is None:
            return None
        return {
            "gpu": roofs.gpu,
            "bytes_per_s": roofs.bytes_per_s,
            "flops_per_s": roofs.flops_per_s,
            "rate": roofs.rate,
            "sources": list(roofs.sources),
        }

    def _agreement_json(self) -> dict[str, object]:
        rows = [
            {
                "tokens": a.tokens,
                "unit": a.unit.value,
                "count": a.count,
                "spearman": a.spearman,
                "loss": a.loss,
            }
            for a in self.agreements
        ]
        return {
            "rows": rows,
            "predicted_from": self.predicted_from,
            "none_because": self.no_agreement_because,
        }

    @staticmethod
    def _refusal_json(refusal: Refusal) -> dict[str, object]:
        return {
            "why": refusal.why,
            "trials": refusal.count,
            "variants": refusal.variants,
            "unit": refusal.unit.value,
            "config": refusal.config.as_dict(),
            "detail": refusal.detail,
        }

    def _workload_json(self) -> dict[str, object]:
        problem = self.problem
        return {
            "routing": problem.routing.name,
            "layout": problem.layout.name,
            "experts": problem.shape.experts,
            "local_experts": problem.local_experts,
            "top_k": problem.shape.top_k,
            "ladder": [
                {
                    "tokens": s.tokens,
                    "tokens_per_rank": s.tokens_per_rank,
                    "rows": s.rows,
                    "active_experts": s.active_experts,
                    "layer_floor_us": s.layer_floor_us,
                }
                for s in self.ladder
            ],
            "expert_shares": list(self.expert_shares),
        }

    def _reproduce_json(self) -> dict[str, object]:
        return {
            "command": self.command,
            "database": self.database,
            "silicon": self.silicon.key,
            "gpu": self.silicon.name,
            "toolchain": self.toolchain.key,
            "source_hash": self.source_hash,
            "current_source_hash": self.current_source_hash,
            "policy": self.policy,
        }


def changes_of(before: LaunchConfig, after: LaunchConfig) -> str:
    """Return where a config differs from another, as `--set` takes it; "" where nowhere."""
    old = before.as_dict()
    changed = {n: v for n, v in after.items if n not in old or old[n] != v}
    return str(LaunchConfig.of(changed))


def facts_json(report: CompileReport | None) -> dict[str, object] | None:
    """Return the compiler's facts that a report shows."""
    if report is None:
        return None
    names = (
        *("registers", "spill_bytes", "shared_bytes", "buffers", "tmem_columns"),
        *("mma_kind", "mma_k", "mma_count", "threads", "compile_s"),
    )
    return {name: getattr(report, name) for name in names}


def _columns(points: Sequence[Point]) -> dict[str, object]:
    """Return trials column by column: a page of thousands stays small."""
    low_high = [p.interval_us or (None, None) for p in points]
    return {
        "variant": [p.variant for p in points],
        "tokens": [p.tokens for p in points],
        "evidence": [p.evidence.word for p in points],
        "time_us": [_short(p.time_us) for p in points],
        "low_us": [_short(low) for low, _ in low_high],
        "high_us": [_short(high) for _, high in low_high],
        "predicted_us": [_short(p.predicted_us) for p in points],
        "own": [p.is_own for p in points],
        "at_s": [_short(p.at_s) for p in points],
        "why": [p.why for p in points],
    }


def _short(value: float | None) -> float | None:
    """Round to six digits, finer than any sample."""
    return None if value is None else float(f"{value:.6g}")
