"""`rubin-tune lookup`."""

from __future__ import annotations

import click

from ._options import database_option, json_option, problem_options
from ._output import print_json


@click.command()
@click.argument("kernel", default="megamoe")
@problem_options
@click.option("--tokens", type=int, required=True, help="Tokens over all ranks.")
@click.option(
    "--unit", type=click.Choice(["gate_up", "down", "layer"]), default="layer", show_default=True
)
@database_option
@json_option
def lookup(
    kernel: str, tokens: int, unit: str, db: str | None, as_json: bool, **options: object
) -> None:
    """Say which config would be launched for a token count, and why.

    \b
    Example:
      rubin-tune lookup megamoe --tokens 100
    """
    from ..tuner import SweepRequest, look_up

    request = SweepRequest(kernel=kernel, **options)  # type: ignore[arg-type]
    found = look_up(request, tokens=tokens, unit=unit, database=db)
    if as_json:
        print_json(found)
        return
    click.echo(" ".join(f"{k}={v}" for k, v in sorted(found["config"].items())))
    click.echo(f"{found['evidence']}: {found['why']}")
