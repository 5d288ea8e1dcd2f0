"""`rubin-tune sweep`."""

from __future__ import annotations

import click

from ._options import database_option, json_option, problem_options, seconds, share
from ._output import TerminalProgress, print_json, print_table


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
@click.option("--sampler", default="tpe", show_default=True, help="tpe or random.")
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
    help="Time N low-ranked variants a GEMM too, and say how many should have ranked high.",
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
    help="Wait so long for a locked database.",
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
    db: str | None,
    db_wait: float,
    jobs: int | None,
    fresh: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Tune KERNEL for a model's layer over a ladder of token counts.

    \b
    Example:
      rubin-tune sweep megamoe --model qwen3-30b-a3b --target h200 --tokens 16,128,1024
    """
    from ..tuner import SweepRequest, sweep

    request = SweepRequest(
        kernel=kernel,
        budget_s=seconds(budget),
        until=share(until),
        **options,  # type: ignore[arg-type]
    )
    with TerminalProgress(quiet=context.obj["quiet"]) as progress:
        result = sweep(
            request, database=db, wait_s=db_wait, jobs=jobs, fresh=fresh, progress=progress
        )
    if as_json:
        print_json(result.as_json())
        return
    setting = result.resolved.setting
    shape = setting.problems[0].shape
    where = f"{setting.gpu.name} (sm_{setting.gpu.arch})"
    print_table(
        f"{setting.kernel.name} for {shape.model} on {where}, {setting.problems[0].layout.name}: "
        f"times are {result.evidence.word}",
        [
            "tokens",
            "unit",
            "time us",
            "interval us",
            "default us",
            "speed-up",
            "evidence",
            "config",
        ],
        [
            (
                w.problem.tokens,
                w.unit.value,
                f"{w.time_us:.1f}",
                f"{w.interval_us[0]:.1f} - {w.interval_us[1]:.1f}",
                f"{w.default_time_us:.1f}",
                f"{w.speedup:.2f}x",
                w.evidence.word,
                w.config if w.unit.value in ("gate_up", "down") else "",
            )
            for w in result.winners
        ],
    )
    counts = result.counts
    click.echo(
        f"{counts.legal} legal of {counts.space} points; {counts.compiled} variants compiled "
        f"({counts.cubins} distinct cubins), {counts.failed} failed; {counts.evaluated} trials, "
        f"{counts.reused} reused; {result.wall_s:.1f} s; sweep {result.sweep_id} in {result.database}"
    )
    if result.audit.timed:
        click.echo(str(result.audit))
    if result.portfolio is not None:
        click.echo(str(result.portfolio))
    if not result.complete:
        click.echo("stopped by --budget: the same command goes on from here", err=True)
