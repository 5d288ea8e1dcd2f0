"""Tables of several sweeps, timed again side by side on this machine's GPU.

Run `python -m benchmarks.retime --table NAME=DATABASE ... [--pool DATABASE] [--json OUT]`; `--help` lists
the rest. Each DATABASE holds a finished sweep (its newest is meant) of the same problem on this GPU.
Whole layers with each table's winners run in alternating rounds of one process, the default's too; with
--pool also the five best couplings of a large run's trials (`sweep --sampler random --trials 600`, say),
whose best is what a table is compared with. Measured evidence: medians, 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from rubin_tune.db import Store, open_store
from rubin_tune.errors import InvalidInput, RubinTuneError
from rubin_tune.search_spaces import LaunchConfig, Unit, parse_tokens
from rubin_tune.tuner.choose import couple
from rubin_tune.tuner.evaluation import Evaluator, LayerOutcome, Outcome
from rubin_tune.tuner.make import make_evaluator
from rubin_tune.tuner.report import find_note
from rubin_tune.tuner.request import Resolved, SweepRequest, resolve

POOL_BEST = 5

Pair = Mapping[Unit, LaunchConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One table's layer at one token count.

    Attributes:
        tokens: Tokens entering the layer.
        table: Its name; "default", or "pool" for the best of the large run.
        time_us: Median.
        low_us: Lower end of its 95 % interval.
        high_us: Upper end.
        configs: By unit.
    """

    tokens: int
    table: str
    time_us: float
    low_us: float
    high_us: float
    configs: dict[str, str]


def request_of(store: Store) -> tuple[str, Resolved]:
    """Return a database's newest finished sweep and what it was about."""
    sweep_id = find_note(store, None).sweep_id
    return sweep_id, resolve(SweepRequest(**store.sweep_request(sweep_id)))


def winners_of(path: str) -> tuple[Resolved, dict[int, Pair]]:
    """Return each token count's winning configs."""
    with open_store(path) as store:
        sweep_id, resolved = request_of(store)
        tables: dict[int, dict[Unit, LaunchConfig]] = defaultdict(dict)
        for winner in store.winners(sweep_id=sweep_id):
            if winner.unit in resolved.setting.kernel.units():
                tables[winner.problem.tokens][winner.unit] = winner.config
        return resolved, dict(tables)


def best_of_pool(path: str) -> dict[int, list[Pair]]:
    """Return each token count's best couplings over all trials of a sweep."""
    with open_store(path) as store:
        sweep_id, resolved = request_of(store)
        kernel = resolved.setting.kernel
        outcomes: dict[int, dict[Unit, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
        for trial in store.trials_of(sweep_id):
            if trial.unit in kernel.units() and not trial.policy.endswith("+final"):
                outcomes[trial.problem.tokens][trial.unit].append(
                    Outcome(config=trial.config, time_us=trial.time_us)
                )
    found = {}
    for tokens, units in outcomes.items():
        problem = resolved.setting.problem(tokens)
        defaults = {u: kernel.default(problem, u, resolved.setting.gpu) for u in kernel.units()}
        options = couple(units, defaults, kernel.coupling, kernel.glue)
        found[tokens] = [
            {u: o.config for u, o in option.items()} for option in options[:POOL_BEST]
        ]
    return found


def retime(
    evaluator: Evaluator,
    resolved: Resolved,
    tokens: int,
    tables: Mapping[str, Pair],
    pool: Sequence[Pair],
) -> list[Timed]:
    """Time whole layers side by side."""
    kernel, gpu = resolved.setting.kernel, resolved.setting.gpu
    problem = resolved.setting.problem(tokens)
    default = {unit: kernel.default(problem, unit, gpu) for unit in kernel.units()}
    named = [*tables.items(), ("default", default), *(("pool", pair) for pair in pool)]
    layers = evaluator.layers(tokens, [pair for _, pair in named])
    timed = [
        _timed(tokens, name, pair, layer)
        for (name, pair), layer in zip(named, layers, strict=True)
    ]
    ours = [t for t in timed if t.table != "pool"]
    best = min((t for t in timed if t.table == "pool"), key=lambda t: t.time_us, default=None)
    return [*ours, *([best] if best else [])]


def _timed(tokens: int, name: str, pair: Pair, outcome: LayerOutcome) -> Timed:
    layer = outcome.layer
    if layer.time_us is None or layer.interval_us is None:
        raise InvalidInput(f"{name} at {tokens} tokens has no time: {layer.rejected}")
    return Timed(
        tokens=tokens,
        table=name,
        time_us=layer.time_us,
        low_us=layer.interval_us[0],
        high_us=layer.interval_us[1],
        configs={unit.value: str(config) for unit, config in pair.items()},
    )


def _print(rows: Sequence[Timed], reference: str) -> None:
    tables = list(dict.fromkeys(row.table for row in rows))
    print(f"whole layer, microseconds (measured), and ratio to {reference}")
    print(f"{'tokens':>7}" + "".join(f"{name:>26}" for name in tables))
    ratios = defaultdict(list)
    for tokens in dict.fromkeys(row.tokens for row in rows):
        own = {row.table: row for row in rows if row.tokens == tokens}
        cells = []
        for name in tables:
            row = own.get(name)
            if row is None:
                cells.append("-")
                continue
            ratio = row.time_us / own[reference].time_us if reference in own else float("nan")
            ratios[name].append(ratio)
            half = (row.high_us - row.low_us) / 2
            cells.append(f"{row.time_us:.1f} +- {half:.1f} ({ratio:.3f})")
        print(f"{tokens:>7}" + "".join(f"{cell:>26}" for cell in cells))
    print("worst ratio" + "".join(f"  {n} {max(r):.3f}" for n, r in ratios.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments, time, print; 2 for input that makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retime", description=__doc__)
    parser.add_argument("--table", action="append", required=True, metavar="NAME=DATABASE")
    parser.add_argument("--pool", metavar="DATABASE")
    parser.add_argument("--tokens", help="default: all that every table has")
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args(arguments)
    try:
        return _main(options)
    except RubinTuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> int:
    named = [text.partition("=") for text in options.table]
    if not all(path for _, _, path in named):
        raise InvalidInput(f"table is {options.table[0]!r}: must be NAME=DATABASE")
    read = {name: winners_of(path) for name, _, path in named}
    pool = best_of_pool(options.pool) if options.pool else {}
    resolved = next(iter(read.values()))[0]
    shared = set.intersection(*(set(tables) for _, tables in read.values()))
    wanted = set(parse_tokens(options.tokens)) if options.tokens else shared
    if pool:
        wanted &= set(pool)
    if not wanted or not wanted <= shared:
        raise InvalidInput(f"tables share the token counts {sorted(shared)}: none of them asked")
    rows: list[Timed] = []
    with closing(make_evaluator(resolved, None)) as evaluator:
        for tokens in sorted(wanted):
            pairs = {name: tables[tokens] for name, (_, tables) in read.items()}
            rows += retime(evaluator, resolved, tokens, pairs, pool.get(tokens, ()))
    _print(rows, "pool" if pool else named[0][0])
    if options.json is not None:
        record = {
            "schema": "rubin-tune.retime/1",
            "evidence": "measured",
            "silicon": asdict(evaluator.silicon),
            "toolchain": asdict(evaluator.toolchain),
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
