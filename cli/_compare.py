"""`rubin-tune compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ._options import database_option, json_option
from ._output import print_json, print_table

if TYPE_CHECKING:
    from ..db import Winner


@click.command()
@click.argument("a")
@click.argument("b")
@database_option
@json_option
def compare(a: str, b: str, db: str | None, as_json: bool) -> None:
    """Compare the winners of two sweeps: of two machines, toolchains, kernels or searches.

    A and B are sweep ids (or their beginnings) in --db, databases (their newest finished sweep), or
    DATABASE#ID.

    \b
    Example:
      rubin-tune compare before.sqlite after.sqlite
    """
    from ..tuner.compare import compare as compare_sweeps

    found = compare_sweeps(a, b, database=db)
    if as_json:
        print_json(found.as_json())
        return
    for name, side in (("A", found.a), ("B", found.b)):
        click.echo(f"{name}: sweep {side.note.sweep_id} in {side.database}")
    if found.differences:
        print_table("They differ in", ["", "A", "B"], found.differences)
    rows = [
        (
            p.a.problem.tokens,
            p.a.unit.value,
            _spelled(p.a),
            _spelled(p.b),
            f"{p.ratio:.3f}",
            p.verdict,
            p.changes if p.a.unit.value in ("gate_up", "down") else "",
        )
        for p in found.pairs
    ]
    columns = ["tokens", "unit", "A us", "B us", "B / A", "verdict", "B's config changes"]
    print_table("Winners", columns, rows)
    for name, places in (("A", found.only_a), ("B", found.only_b)):
        if places:
            words = ", ".join(f"{unit.value} at {tokens}" for tokens, unit in places)
            click.echo(f"only {name} has {words}")
    click.echo(found.summary)


def _spelled(winner: Winner) -> str:
    low, high = winner.interval_us
    interval = f" ({low:.1f} - {high:.1f})" if low < high else ""
    return f"{winner.time_us:.1f}{interval} {winner.evidence.word}"
