"""`rubin-tune sweep`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.core import ParameterSource

from ..errors import InvalidInput
from ._options import database_option, json_option, problem_options
from ._output import TerminalProgress, print_json
from ._result import print_estimates, print_result

# Options that say how a plan is run, not what it tunes.
_BESIDE_PLAN = ("plan", "dry_run", "gpus", "wait_gpu", "jobs", "fresh", "db_wait", "db", "as_json")


@click.command()
@click.argument("kernel", default="megamoe")
@problem_options
@click.option("--tokens", metavar="1,2,4", help="Tokens over all ranks; default: vLLM's 18 sizes.")
@click.option(
    "--evaluator",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="auto, gpu, model or recorded:FILE.",
)
@click.option(
    "--sampler", default="lfbo", show_default=True, help="lfbo (ours), tpe, gp or random."
)
@click.option("--trials", type=int, metavar="N", help="Variants a GEMM.")
@click.option("--budget", metavar="5m", help="Start no new variant after this time.")
@click.option(
    "--until", metavar="0.5%", help="Stop when the expected gain of a batch is under this."
)
@click.option(
    "--portfolio",
    type=int,
    is_flag=False,
    flag_value=6,
    metavar="[N]",
    help="Hold the winners to the fewest configs within 1 %, at most N a GEMM (6).",
)
@click.option(
    "--audit",
    type=int,
    default=2,
    show_default=True,
    metavar="N",
    help="Time N pruned or low-ranked variants a GEMM too, and say how many should not be.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A TOML of several sweeps (docs/plans.md), instead of the options above.",
)
@click.option(
    "--from-misses",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tune what a server's look-ups missed (docs/lookup.md).",
)
@click.option(
    "--dry-run", is_flag=True, help="Say what it would cost and could gain; write nothing."
)
@click.option("--gpus", metavar="N|UUID", help="The GPU to time on; one a sweep.")
@click.option(
    "--wait-gpu", metavar="10m", help="Wait so long for a GPU that is held or busy; else refuse."
)
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Compile processes.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--fresh", is_flag=True, help="Measure again what is in the database.")
@click.option(
    "--db-wait",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for a database that is locked or gone.",
)
@database_option
@json_option
@click.pass_context
def sweep(
    context: click.Context,
    /,
    kernel: str,
    budget: str | None,
    until: str | None,
    plan: Path | None,
    from_misses: Path | None,
    dry_run: bool,
    db: str | None,
    db_wait: float,
    gpus: str | None,
    wait_gpu: str | None,
    jobs: int | None,
    fresh: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Tune KERNEL for a model's layer over a ladder of token counts.

    \b
    Example:
      rubin-tune sweep megamoe --model qwen3-30b-a3b --target h200 --tokens 16,128,1024
      rubin-tune sweep --plan plan.toml --dry-run
      rubin-tune sweep megamoe --from-misses misses.jsonl
    """
    from ..errors import InvalidInput
    from ..topology import is_present
    from ..tuner import SweepRequest
    from ..tuner.budget import parse_seconds, parse_share
    from ..tuner.gpu_state import visible_device
    from ..tuner.misses import plan_of_misses
    from ..tuner.plan import Options, Plan, read_plan, run_plan

    wait_gpu_s = parse_seconds(wait_gpu, "wait-gpu") or 0.0
    if gpus is not None:
        # Before anything asks the driver, which reads it once; the timing process inherits it.
        seen = visible_device(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
        os.environ["CUDA_VISIBLE_DEVICES"] = seen
        if not is_present():
            raise InvalidInput(f"gpus is {gpus!r}: the driver shows no such GPU in this machine")
    if plan is not None:
        _refuse_beside_plan(context)
        asked = read_plan(plan)
    else:
        request = SweepRequest(
            kernel=kernel,
            budget_s=parse_seconds(budget),
            until=parse_share(until),
            **options,  # type: ignore[arg-type]
        )
        asked = Plan(path=Path(), requests=(request,))
    if from_misses is not None:
        _refuse_beside_misses(context, plan)
        given = context.get_parameter_source("model") is ParameterSource.COMMANDLINE
        asked = plan_of_misses(from_misses, request, model=request.model if given else None)
    if dry_run:
        print_estimates(asked.requests, database=db, jobs=jobs, as_json=as_json)
        return
    results = []
    with TerminalProgress(quiet=context.obj["quiet"]) as progress:
        how = Options(
            database=db,
            wait_s=db_wait,
            jobs=jobs,
            fresh=fresh,
            wait_gpu_s=wait_gpu_s,
            progress=progress,
        )
        for result in run_plan(asked, how):
            results.append(result)
            if not as_json:
                print_result(result)
    if as_json and (plan or from_misses) is not None:
        document = {"schema": "rubin-tune.plan/1", "results": [one.as_json() for one in results]}
        print_json(document)
    elif as_json:
        print_json(results[0].as_json())


def _refuse_beside_plan(context: click.Context) -> None:
    """Refuse options that say what to tune: a plan says it for every entry."""
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _BESIDE_PLAN:
            raise InvalidInput(
                f"{parameter.opts[0]} is given beside --plan: write {name} into the plan's "
                "[defaults] or [[sweep]]"
            )


def _refuse_beside_misses(context: click.Context, plan: Path | None) -> None:
    """Refuse options that misses answer themselves."""
    if plan is not None:
        raise InvalidInput("--plan is given beside --from-misses: give one of them")
    for name in ("layout", "dtype", "activations", "tokens"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InvalidInput(
                f"--{name} is given beside --from-misses: the misses say it; leave it out"
            )
