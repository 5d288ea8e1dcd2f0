"""`rubin-tune inspect` and `rubin-tune doctor`."""

from __future__ import annotations

import sys

import click

from ._options import json_option, problem_options
from ._output import print_json, print_table


@click.command()
@click.argument("kernel", default="megamoe")
@click.option(
    "--unit", type=click.Choice(["gate_up", "down"]), default="gate_up", show_default=True
)
@problem_options
@click.option("--tokens", type=int, default=128, show_default=True, help="For the prediction.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change the default config."
)
@click.option(
    "--against", multiple=True, metavar="NAME=VALUE", help="A second config beside the first."
)
@click.option("--against-target", metavar="NAME", help="The second column's target.")
@click.option("--compile-python", metavar="PATH", help="Compile with another Python's triton.")
@json_option
def inspect(
    kernel: str,
    unit: str,
    tokens: int,
    settings: tuple[str, ...],
    against: tuple[str, ...],
    against_target: str | None,
    compile_python: str | None,
    as_json: bool,
    **options: object,
) -> None:
    """Compile one config of KERNEL and print the compiler's facts and the predicted time.

    \b
    Example:
      rubin-tune inspect megamoe --target sm_107 --set block_m=16 --against-target sm_103
    """
    from ..tuner import SweepRequest, inspect_config

    def one(more: tuple[str, ...], target: object) -> dict[str, object]:
        request = SweepRequest(kernel=kernel, **{**options, "target": target})  # type: ignore[arg-type]
        return inspect_config(
            request, unit=unit, tokens=tokens, settings=(*settings, *more), python=compile_python
        )

    found = [one((), options["target"])]
    if against or against_target:
        found.append(one(against, against_target or options["target"]))
    if as_json:
        print_json(found[0] if len(found) == 1 else {**found[0], "against": found[1]})
        return
    flat = [_flat(f) for f in found]
    names = list(dict.fromkeys(name for f in flat for name in f))
    columns = ["", *(str(f["target"]) for f in found)]
    print_table(
        f"{kernel} {unit}", columns, [(name, *(f.get(name, "") for f in flat)) for name in names]
    )


def _flat(found: dict[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, list):
            flat[prefix + name] = "; ".join(str(v) for v in value)
        else:
            flat[prefix + name] = value
    return flat


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what this machine and this toolchain can do, and how to get what is missing.

    Exit code 1 when something that a sweep needs is missing.

    \b
    Example:
      rubin-tune doctor
    """
    from ..tuner.doctor import findings

    found = findings()
    if as_json:
        print_json(
            {
                "schema": "rubin-tune.doctor/1",
                "findings": [
                    {"what": f.what, "ok": f.ok, "detail": f.detail, "advice": f.advice}
                    for f in found
                ],
            }
        )
    else:
        rows = [("yes" if f.ok else "no", f.what, f.detail, f.advice) for f in found]
        print_table("rubin-tune doctor", ["ok", "what", "detail", "what to do"], rows)
    if any(f.needed and not f.ok for f in found):
        sys.exit(1)
