"""How few evaluations samplers need on recorded spaces.

Run `python -m benchmarks.search --landscape FILE ... [--sampler NAME ...] [--json]`; `--help` lists the
rest. A FILE is a landscape of the fused-MoE kernel (a table for each (tokens, GEMM)), a Kernel Tuner
cache or a KTT file. Every sampler runs as `rubin-tune sweep` runs it, through the same search; an
evaluation is a look-up in the recording, failures included. The figures are the share of the optimum's
speed that the best point found has (recorded evidence), median and worst over seeds. With --prior the
cost model's ranking is given to the search, with --prior-landscape also the times of another landscape:
three heads of the first and one of the second begin. Where the package kernel_tuner is importable its
strategies run on the same spaces (--sampler kt:NAME).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np

from rubin_tune.errors import InvalidInput, RubinTuneError, UnknownName
from rubin_tune.registry import names
from rubin_tune.tuner import samplers as shipped

from ._search_run import PEER, Outcome, Source, compare

EVALUATIONS = "24,50,100,200"


def _print(outcomes: Sequence[Outcome], evaluations: Sequence[int]) -> None:
    width = max(len(o.table.name) for o in outcomes)
    heads = "".join(f"{f'at {n}':>15}" for n in evaluations)
    print(f"{'landscape':<{width}}  {'sampler':<12}{heads}  score")
    for outcome in outcomes:
        entries = [outcome.entry(n) for n in evaluations]
        cells = "".join(f"{f'{e.median:.3f} ({e.worst:.2f})':>15}" for e in entries)
        score = outcome.table.score(outcome.orders)
        print(f"{outcome.table.name:<{width}}  {outcome.sampler:<12}{cells}  {score:5.2f}")
    print("share of the optimum's speed: median over seeds (worst seed); recorded times")
    if len({o.table.name for o in outcomes}) > 1:
        _print_summary(outcomes, evaluations)


def _print_summary(outcomes: Sequence[Outcome], evaluations: Sequence[int]) -> None:
    for sampler in dict.fromkeys(o.sampler for o in outcomes):
        own = [o for o in outcomes if o.sampler == sampler]
        parts = []
        for n in evaluations:
            medians = [o.entry(n).median for o in own]
            parts.append(f"at {n}: {median(medians):.3f} (worst table {min(medians):.3f})")
        print(f"{sampler}: median over {len(own)} tables {'; '.join(parts)}")


def _plot(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw the median curves, a panel a table."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput("--plot needs matplotlib: pip install matplotlib") from None
    shown = list(dict.fromkeys(o.table.name for o in outcomes))
    rows = -(-len(shown) // 4)
    figure = Figure(figsize=(4.2 * min(4, len(shown)), 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, min(4, len(shown)), squeeze=False, sharey=True)
    for panel, name in zip(panels.flat, shown, strict=False):
        for outcome in (o for o in outcomes if o.table.name == name):
            curve = outcome.curve()
            panel.plot(np.arange(1, len(curve) + 1), curve, label=outcome.sampler)
        panel.set_title(name, fontsize=8)
        panel.set_xlabel("evaluations")
    panels.flat[0].set_ylabel("share of the optimum's speed (median)")
    panels.flat[0].legend()
    figure.savefig(path)


def _samplers(given: Sequence[str]) -> list[str]:
    """Return sampler names; `default` is the one that `sweep` uses; none = all that are shipped."""
    own = names("tuner.samplers")
    wanted = [shipped.DEFAULT if name == "default" else name for name in given] or own
    for name in wanted:
        if name not in own and not name.startswith(PEER):
            raise UnknownName("sampler", name, ["default", *own, f"{PEER}STRATEGY"])
    return list(dict.fromkeys(wanted))


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = [0]
    if counts[0] < 1:
        raise InvalidInput(f"evaluations is {text!r}: must be positive numbers, as {EVALUATIONS}")
    return counts


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    add = parser.add_argument
    add("--landscape", type=Path, nargs="+", action="extend", required=True, metavar="FILE")
    add("--sampler", nargs="+", action="extend", default=[], metavar="NAME")
    add("--evaluations", default=EVALUATIONS, help=f"default {EVALUATIONS}")
    add("--seeds", type=int, default=30)
    add("--prior", action="store_true", help="give the cost model's ranking")
    add("--prior-landscape", type=Path, nargs="+", action="extend", default=[], metavar="FILE")
    add("--jobs", type=int, default=2, help="processes (default 2)")
    add("--plot", type=Path, metavar="SVG")
    add("--json", action="store_true", help="print a JSON list")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, compare, print; 2 for input that makes no sense."""
    options = _parser().parse_args(arguments)
    try:
        return _main(options)
    except RubinTuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> int:
    evaluations, samplers = _counts(options.evaluations), _samplers(options.sampler)
    if options.seeds < 1 or options.jobs < 1:
        raise InvalidInput("seeds and jobs must be at least 1")
    sources = [
        Source(path=path, prior=options.prior, others=tuple(options.prior_landscape))
        for path in options.landscape
    ]
    outcomes = compare(sources, samplers, max(evaluations), options.seeds, options.jobs)
    if options.plot is not None:
        _plot(outcomes, options.plot)
    if options.json:
        entries = [asdict(o.entry(n)) for o in outcomes for n in evaluations]
        print(json.dumps(entries))
    else:
        _print(outcomes, evaluations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
