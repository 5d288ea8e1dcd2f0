"""`rubin-tune spaces`."""

from __future__ import annotations

import click

from ._options import json_option, problem_options
from ._output import print_json, print_table


@click.command()
@click.argument("kernel", default="megamoe")
@problem_options
@json_option
def spaces(kernel: str, as_json: bool, **options: object) -> None:
    """Show the axes of KERNEL's space, its size, and what each constraint removes.

    \b
    Example:
      rubin-tune spaces megamoe --model qwen3-30b-a3b --dtype fp8 --target h200
    """
    from ..tuner import SweepRequest, describe_spaces

    found = describe_spaces(SweepRequest(kernel=kernel, **options))  # type: ignore[arg-type]
    if as_json:
        print_json({"schema": "rubin-tune.spaces/1", "units": found})
        return
    for unit in found:
        print_table(
            f"{kernel} {unit['unit']}: {unit['size']} points, {unit['legal']} legal",
            ["axis", "values", "meaning"],
            [(p["name"], ", ".join(map(str, p["values"])), p["what"]) for p in unit["parameters"]],
        )
        print_table(
            "constraints, in order",
            ["constraint", "removes", "reason"],
            [(c["name"], c["removes"], c["reason"]) for c in unit["constraints"]],
        )
