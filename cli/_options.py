"""Options that several commands share, so that a name means the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str | None) -> float | None:
    """Read a duration such as 90, 90s, 5m or 1.5h.

    Raises:
        InvalidInput: it is none.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found is None:
        raise InvalidInput(f"budget is {text!r}: must be a duration such as 90s, 5m or 1.5h")
    return float(found[1]) * _UNITS[found[2]]


def share(text: str | None) -> float | None:
    """Read a percentage such as 0.5% as a share.

    Raises:
        InvalidInput: it is none.
    """
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if found is None:
        raise InvalidInput(f"until is {text!r}: must be a percentage such as 0.5%")
    return float(found[1]) / 100


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
