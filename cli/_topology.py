"""`rubin-tune topology`."""

from __future__ import annotations

import click

from ._group import Commands
from ._options import json_option
from ._output import print_json, print_table


@click.group(cls=Commands)
def topology() -> None:
    """GPUs and racks: facts with their sources.

    \b
    Example:
      rubin-tune topology show vr200
    """


@topology.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the GPUs and racks that are described, and the GPU in this machine.

    \b
    Example:
      rubin-tune topology list
    """
    from ..topology import detect_gpu, gpu_names, load_gpu, load_rack, rack_names

    live = detect_gpu()
    gpus = [load_gpu(name) for name in gpu_names()]
    racks = [load_rack(name) for name in rack_names()]
    if as_json:
        print_json(
            {
                "schema": "rubin-tune.topology/1",
                "gpus": [{"name": g.name, "arch": f"sm_{g.arch}", "title": g.title} for g in gpus],
                "racks": [{"name": r.name, "title": r.title} for r in racks],
                "present": live.name if live else None,
            }
        )
        return
    rows = [(g.name, "gpu", f"sm_{g.arch}", g.title) for g in gpus]
    rows += [(r.name, "rack", "", r.title) for r in racks]
    print_table("known hardware", ["name", "kind", "target", "title"], rows)
    click.echo(f"GPU in this machine: {live.name if live else 'none'}")


@topology.command()
@click.argument("name", required=False)
@json_option
def show(name: str | None, as_json: bool) -> None:
    """Show every fact of a GPU or rack with its confidence and source; default: the GPU present.

    \b
    Example:
      rubin-tune topology show vr_nvl72
    """
    from ..errors import InvalidInput
    from ..topology import Gpu, Rack, describe, detect_gpu, load_rack, rack_names, resolve_target

    thing: Gpu | Rack
    if name is None:
        live = detect_gpu()
        if live is None:
            raise InvalidInput("no GPU in this machine: name one, for example vr200")
        thing = live
    else:
        thing = load_rack(name) if name in rack_names() else resolve_target(name)
    rows = describe(thing)
    if as_json:
        print_json(
            {
                "schema": "rubin-tune.topology/1",
                "name": thing.name,
                "facts": [
                    dict(zip(("fact", "value", "confidence", "source"), row, strict=True))
                    for row in rows
                ],
            }
        )
        return
    print_table(f"{thing.name}: {thing.title}", ["fact", "value", "confidence", "source"], rows)
