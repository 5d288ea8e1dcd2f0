"""`rubin-tune explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..runtime.choices import Reason, edges_in_words
from ._lookup import spelled
from ._options import database_option, json_option, problem_options
from ._output import print_json, print_table

if TYPE_CHECKING:  # loading the tuner takes a second, which --help should not
    from ..tuner.explain import Explanation


@click.command()
@click.argument("kernel", default="megamoe")
@problem_options
@click.option("--tokens", type=int, required=True, help="Tokens over all ranks.")
@click.option(
    "--unit", type=click.Choice(["gate_up", "down", "layer"]), default="layer", show_default=True
)
@click.option("--engine", metavar="NAME", help="Also say what each rank of vllm, ... asks for.")
@click.option("--device-name", metavar="NAME", help="The GPU's name as the engine spells it.")
@click.option(
    "--most", type=click.IntRange(0), default=5, show_default=True, help="Alternatives a GEMM."
)
@database_option
@json_option
def explain(
    kernel: str,
    tokens: int,
    unit: str,
    engine: str | None,
    device_name: str | None,
    most: int,
    db: str | None,
    as_json: bool,
    **options: object,
) -> None:
    """Say why a config is chosen, what lost to it by how much, what was refused, and how old it is.

    \b
    Example:
      rubin-tune explain megamoe --tokens 100
      rubin-tune explain fused_moe --model qwen3-30b-a3b --dtype fp8 --tokens 100 --engine vllm
    """
    from ..tuner import SweepRequest
    from ..tuner.explain import explain

    found = explain(
        SweepRequest(kernel=kernel, **options),  # type: ignore[arg-type]
        tokens=tokens,
        unit=unit,
        database=db,
        engine=engine,
        device_name=device_name,
        most=most,
    )
    if as_json:
        print_json(found.as_json())
        return
    _print_choice(found)
    _print_lost(found)
    for file in found.files:
        ranks = ", ".join(map(str, file.ranks))
        click.echo(f"ranks {ranks}: {file.file}, key {file.key!r} ({file.what})")


def _print_choice(found: Explanation) -> None:
    for line in spelled(found.choice.config):
        click.echo(line)
    low, high = found.choice.bucket
    click.echo(
        f"{found.choice.evidence}: {found.choice.why}; the same from {low} to {high} tokens"
        + (edges_in_words(found.choice.edges) if found.choice.reason is Reason.EXACT else "")
    )
    row = found.row
    if row is None:
        return
    low_us, high_us = row.interval_us
    click.echo(
        f"row: {row.time_us:.2f} us ({low_us:.2f} - {high_us:.2f}) at {row.problem.tokens} tokens, "
        f"default {row.default_time_us:.2f} us, {row.speedup:.2f}x; sweep {row.sweep_id}, "
        f"policy {row.policy}, {row.toolchain.key}"
    )
    told = "; ".join(found.stale) or "no: toolchain and source are those of the row"
    click.echo(f"stale: {told}")


def _print_lost(found: Explanation) -> None:
    if found.alternatives:
        tried = ", ".join(f"{count} of {unit}" for unit, count in found.tried.items())
        print_table(
            f"what lost ({tried} tried)",
            ["unit", "time us", "interval us", "lost by", "evidence", "verdict", "config"],
            [
                (
                    one.unit + (" (default)" if one.is_default else ""),
                    f"{one.time_us:.2f}",
                    "" if one.interval_us is None else "{:.2f} - {:.2f}".format(*one.interval_us),
                    f"{one.lost_by:+.1%}",
                    one.evidence,
                    one.verdict,
                    one.config,
                )
                for one in found.alternatives
            ],
        )
    if found.refused:
        print_table(
            "what was refused",
            ["unit", "configs", "why", "for example", "detail"],
            [(r.unit, r.count, r.meaning, r.example, r.detail) for r in found.refused],
        )
