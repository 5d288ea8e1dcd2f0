"""`rubin-tune lookup`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from ..search_spaces import LaunchConfig, Value
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
    for line in spelled(found["config"]):
        click.echo(line)
    click.echo(f"{found['evidence']}: {found['why']}")
    for why in found["stale"]:
        click.echo(f"stale ({why}): rubin-tune requalify times it again")


def spelled(config: Mapping[str, Value]) -> list[str]:
    """Return a config as `--set` takes it; a layer's has a line for each unit."""
    units: dict[str, dict[str, Value]] = {}
    for name, value in config.items():
        unit, _, own = name.rpartition(".")
        units.setdefault(unit, {})[own] = value
    return [
        f"{unit}: {LaunchConfig.of(values)}" if unit else str(LaunchConfig.of(values))
        for unit, values in sorted(units.items())
    ]
