"""What a report says in sentences: the summary, the command that repeats the sweep."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import exp, log
from statistics import median

from ..db import Silicon, Trial, Winner
from ..search_spaces import Unit
from .report_records import MEANINGS, Agreement, Point, Refusal, Verdict
from .request import SweepRequest

# Options whose names differ from the request's fields.
_OPTIONS = {"budget_s": "budget"}


def command_of(request: Mapping[str, object], silicon: Silicon) -> str:
    """Return the command that asks for the same sweep; a target left open is filled in.

    Predicted and recorded times need no GPU, so the name in the silicon can be given as the target.
    """
    known = {f.name: f.default for f in fields(SweepRequest)}
    words = ["rubin-tune", "sweep", str(request.get("kernel", "megamoe"))]
    for name, value in request.items():
        if name == "kernel" or value is None or known.get(name) == value:
            continue
        spelled = f"{value:g}s" if name == "budget_s" else str(value)
        words += [f"--{_OPTIONS.get(name, name)}", spelled]
    if request.get("target") is None:
        words += ["--target", f"sm_{silicon.arch}"]
    return shlex.join(words)


def summary_of(
    verdicts: Sequence[Verdict],
    points: Sequence[Point],
    agreements: Sequence[Agreement],
    refusals: Sequence[Refusal],
    row: Winner | Trial,
    state: str,
) -> tuple[str, ...]:
    """Return the report in a few sentences."""
    layers = [v for v in verdicts if v.winner.unit is Unit.LAYER]
    words = [_gain(layers, row), *_worth(verdicts), _effort(points, refusals)]
    if agreements:
        middle = median(a.spearman for a in agreements)
        words.append(
            f"The cost model ordered these variants with a rank correlation of {middle:.2f} "
            f"(median of {len(agreements)} tables)."
        )
    if state != "finished":
        words.append(f"The sweep is {state}, not finished: the same command goes on from there.")
    return tuple(words)


def _gain(layers: Sequence[Verdict], row: Winner | Trial) -> str:
    what = f"{row.kernel} for {row.problem.shape.model} on {row.silicon.name}"
    if not layers:
        return f"{what}: no layer has been chosen yet."
    mean = exp(sum(log(v.winner.speedup) for v in layers) / len(layers))
    best = max(layers, key=lambda v: v.winner.speedup).winner
    evidence = min(v.winner.evidence for v in layers).word
    kept = sum(v.word in ("default kept", "tie") for v in layers)
    text = (
        f"{what}: the whole layer is {mean:.2f}x as fast as with the defaults ({evidence}; "
        f"geometric mean of {len(layers)} token counts), at best {best.speedup:.2f}x at "
        f"{best.problem.tokens} tokens ({best.time_us:.1f} us instead of "
        f"{best.default_time_us:.1f} us)"
    )
    if kept:
        text += f"; at {kept} of them nothing beats the default by more than the tie band"
    return f"{text}."


def _worth(verdicts: Sequence[Verdict]) -> list[str]:
    words = sorted({v.winner.evidence.word for v in verdicts})
    return [f"Times are {word}: {MEANINGS[word]}." for word in words]


def _effort(points: Sequence[Point], refusals: Sequence[Refusal]) -> str:
    variants, timed = {p.variant for p in points}, sum(p.time_us is not None for p in points)
    reused = sum(not p.is_own for p in points)
    text = f"{len(variants)} variants were tried, {timed} trials have a time"
    refused = sum(r.count for r in refusals)
    text += f", {refused} were refused" if refused else ", none was refused"
    return f"{text}; {reused} come from earlier sweeps." if reused else f"{text}."
