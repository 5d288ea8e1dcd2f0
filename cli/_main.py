"""The commands."""

from __future__ import annotations

import click

from .. import __version__
from . import (
    _compare,
    _db,
    _explain,
    _export,
    _import,
    _inspect,
    _lookup,
    _report,
    _requalify,
    _spaces,
    _sweep,
    _topology,
    _workload,
)
from ._group import Commands

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, context_settings=HELP)
@click.version_option(__version__, prog_name="rubin-tune")
@click.option("-v", "--verbose", is_flag=True, help="Show a traceback where something is refused.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.pass_context
def main(context: click.Context, verbose: bool, quiet: bool) -> None:
    """Tune mixture-of-experts kernels for a GPU, and use what was found.

    \b
    Start here:
      rubin-tune sweep megamoe                                     (no GPU needed)
      rubin-tune sweep megamoe --model qwen3-30b-a3b --dtype fp8   (times on the GPU present)
    """
    context.obj = {"traceback": verbose, "quiet": quiet}


for _command in (
    _sweep.sweep,
    _spaces.spaces,
    _inspect.inspect,
    _inspect.doctor,
    _lookup.lookup,
    _explain.explain,
    _export.export,
    _import.import_files,
    _requalify.requalify,
    _db.db,
    _report.report,
    _compare.compare,
    _topology.topology,
    _workload.workload,
):
    main.add_command(_command)
