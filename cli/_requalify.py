"""`rubin-tune requalify`."""

from __future__ import annotations

import click

from ._options import database_option, json_option
from ._output import TerminalProgress, print_json, print_table


@click.command()
@click.argument("kernel", default="megamoe")
@click.option(
    "--target", metavar="NAME", help="vr200, h200, ... or sm_NNN; default: the GPU present."
)
@click.option("--model", metavar="NAME", help="Only this model's winners.")
@click.option("--tokens", metavar="1,2,4", help="Only these token counts.")
@click.option(
    "--evaluator",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="auto, gpu, model or recorded:FILE.",
)
@click.option(
    "--top", type=int, default=3, show_default=True, metavar="N", help="Old configs a row."
)
@click.option("--all", "everything", is_flag=True, help="Also rows that are not stale.")
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Compile processes.")
@database_option
@json_option
@click.pass_context
def requalify(
    context: click.Context,
    /,
    jobs: int | None,
    db: str | None,
    as_json: bool,
    **options: object,
) -> None:
    """Time the old best configs of KERNEL's stale winners again, and say what moved.

    A winner is stale when the kernel's source, triton, ptxas, torch, the driver or the GPU's limits
    are others than those it was found with (see db stats). Old rows stay in the database.

    \b
    Example:
      rubin-tune requalify megamoe --tokens 16,128
    """
    from ..tuner.requalify import RequalifyRequest
    from ..tuner.requalify import requalify as time_again

    request = RequalifyRequest(**options)  # type: ignore[arg-type]
    with TerminalProgress(quiet=context.obj["quiet"]) as progress:
        found = time_again(request, database=db, jobs=jobs, progress=progress)
    if as_json:
        print_json(found.as_json())
        return
    for said in found.left_out:
        click.echo(f"left out {said}", err=True)
    if not found.rows:
        click.echo(f"no winner of {request.kernel} there is stale: nothing was timed")
        return
    print_table(
        f"{request.kernel}: times now are {found.evidence.word}",
        [
            "model",
            "tokens",
            "unit",
            "winner",
            "before us",
            "now us",
            "change",
            "evidence",
            "stale because",
        ],
        [
            (
                row.before.problem.shape.model,
                row.before.problem.tokens,
                row.before.unit.value,
                "lost" if row.after is None else "kept" if row.kept else "changed",
                f"{row.before.time_us:.1f}",
                "" if row.after is None else f"{row.after.time_us:.1f}",
                "" if row.share is None else f"{row.share:+.1%}",
                f"{row.before.evidence.word} -> {found.evidence.word}",
                ", ".join(map(str, row.why)) or "not stale",
            )
            for row in found.rows
        ],
    )
    kept = sum(row.kept for row in found.rows)
    lost = sum(row.after is None for row in found.rows)
    click.echo(
        f"{kept} winners kept, {len(found.rows) - kept - lost} changed, {lost} lost; "
        f"{found.variants} variants in {found.wall_s:.1f} s; sweeps {', '.join(found.sweeps)} in "
        f"{found.database}"
    )
    if any(row.after is not None and not row.displaces for row in found.rows):
        click.echo("weaker evidence displaces none: the old winners stand", err=True)
