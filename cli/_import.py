"""`rubin-tune import`."""

from __future__ import annotations

from pathlib import Path

import click

from ._options import database_option, json_option
from ._output import print_json


@click.command(name="import")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--op", default="fused_moe", show_default=True, help="The kernel they are for.")
@click.option("--model", metavar="NAME|FILE", help="What they are of; default: their names say.")
@click.option("--layout", default="auto", show_default=True, help="Of --model.")
@click.option("--dtype", help="Of --model.")
@click.option("--target", metavar="NAME", help="The GPU; default: their names say.")
@click.option("--tokens", metavar="N", help="The token count of a Kernel Tuner or KTT file.")
@database_option
@json_option
def import_files(
    files: tuple[Path, ...],
    op: str,
    model: str | None,
    layout: str,
    dtype: str | None,
    target: str | None,
    tokens: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Keep others' results as seeds and baselines of a kernel, never as winners.

    Reads tables of vLLM and SGLang, Kernel Tuner caches and KTT output. All files are stored, or
    none.

    \b
    Example:
      rubin-tune import 'E=128,N=768,device_name=NVIDIA_H200.json'
    """
    from ..tuner.imports import ImportRequest, import_results

    request = ImportRequest(
        files=files,
        kernel=op,
        model=model,
        layout=layout,
        dtype=dtype,
        target=target,
        tokens=tokens,
    )
    found = import_results(request, database=db)
    if as_json:
        print_json({"schema": "rubin-tune.import/1", "files": [one.as_json() for one in found]})
        return
    for one in found:
        skipped = "".join(f"; skipped {rows} {why}" for why, rows in one.skipped)
        click.echo(f"{one.path.name}: {len(one.seeds)} seeds of {op} from {one.source}{skipped}")
