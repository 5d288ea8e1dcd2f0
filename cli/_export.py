"""`rubin-tune export`."""

from __future__ import annotations

from pathlib import Path

import click

from ._options import database_option, json_option, problem_options
from ._output import print_json


@click.command()
@click.argument("kernel", default="megamoe")
@problem_options
@click.option(
    "--format", "format_name", required=True, help="vllm, sglang, json, csv, python, or optuna."
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder; for optuna also a file, such as study.db.",
)
@click.option("--sweep", "sweep_id", metavar="ID", help="Only this sweep's winners.")
@click.option("--device-name", metavar="NAME", help="The GPU's name as the engine spells it.")
@click.option("--allow-predicted", is_flag=True, help="Let predicted rows into an engine's table.")
@click.option(
    "--portfolio",
    type=click.IntRange(1),
    is_flag=False,
    flag_value=6,
    metavar="[N]",
    help="Only winners of a sweep --portfolio, of at most N configs a GEMM (6).",
)
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Say what changes over this table of the engine's, or the one of the same name in a folder.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, name the files, write nothing.")
@database_option
@json_option
def export(
    kernel: str,
    format_name: str,
    out: Path,
    sweep_id: str | None,
    device_name: str | None,
    allow_predicted: bool,
    portfolio: int | None,
    dry_run: bool,
    against: Path | None,
    db: str | None,
    as_json: bool,
    **options: object,
) -> None:
    """Write KERNEL's winners for a problem as a table that an engine or our runtime loads.

    \b
    Example:
      rubin-tune export megamoe --format json --out tables/
      rubin-tune export megamoe --format optuna --out study.db   (trials, for optuna-dashboard)
    """
    from ..tuner import SweepRequest, export_winners
    from ..tuner.table_diff import Difference

    stale: dict[str, int] = {}
    changes: list[Difference] = []
    paths = export_winners(
        SweepRequest(kernel=kernel, **options),  # type: ignore[arg-type]
        stale=stale,
        format_name=format_name,
        out=out,
        sweep_id=sweep_id,
        device_name=device_name,
        allow_predicted=allow_predicted,
        portfolio=portfolio,
        dry_run=dry_run,
        against=against,
        changes=changes,
        database=db,
    )
    if as_json:
        files = [str(path) for path in paths]
        told = None if against is None else [change.as_json() for change in changes]
        print_json(
            {
                "schema": "rubin-tune.export/1",
                "files": files,
                "dry_run": dry_run,
                "changes": told,
                "stale": stale,
            }
        )
        return
    for path in paths:
        click.echo(f"would write {path}" if dry_run else path)
    for change in changes:
        click.echo(
            f"{change.file}, {change.tokens} tokens: {change.theirs or 'no row'} -> {change.ours or 'no row'}"
        )
    if against is not None:
        click.echo(f"{len(changes)} rows differ from {against}")
    for why, rows in stale.items():
        click.echo(
            f"{rows} rows are stale ({why}): rubin-tune requalify times them again", err=True
        )
