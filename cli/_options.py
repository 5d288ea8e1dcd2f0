"""Options that several commands share, so that a name means the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def problem_options(command: F) -> F:
    """Add the options that describe a problem."""
    for option in reversed(
        (
            click.option("--model", default="deepseek-v4.1-flash", show_default=True,
                         metavar="NAME|FILE", help="A preset, a config.json or a TOML."),
            click.option("--target", metavar="NAME",
                         help="vr200, h200, ... or sm_NNN; default: the GPU present, else vr200."),
            click.option("--layout", default="auto", show_default=True,
                         help="auto, single, depN, epN or tpN."),
            click.option("--dtype", help="Weights: bf16, fp8 or mxfp4; default: the checkpoint's."),
            click.option("--activations", help="bf16, fp8 or mxfp8; default: the model's."),
            click.option("--routing", metavar="KIND|FILE",
                         help="balanced, uniform, lognormal:S, zipf:A or a file of counts; "
                         "default lognormal:0.5 (recorded landscapes: uniform)."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def database_option(command: F) -> F:
    """Add --db."""
    return click.option(
        "--db",
        envvar="RUBIN_TUNE_DB",
        metavar="URL|PATH",
        help="Database; default: SQLite in the user's data folder, or RUBIN_TUNE_DB.",
    )(command)


def json_option(command: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")(
        command
    )
