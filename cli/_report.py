"""`rubin-tune report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ._options import database_option, json_option
from ._output import print_json, print_table

if TYPE_CHECKING:
    from ..tuner.report_records import Report


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one self-contained page with charts.",
)
@database_option
@json_option
def report(sweep: str | None, html: Path | None, db: str | None, as_json: bool) -> None:
    """Say what SWEEP found: winners, search, predictions, refusals, how to repeat it.

    SWEEP is a sweep's id or the beginning of one; left out, it is the newest that is finished.

    \b
    Example:
      rubin-tune report --html report.html
    """
    from ..tuner.report import report as read_report
    from ._report_page import check_writable, render, write_page

    if html is not None:
        check_writable(html)
    found = read_report(sweep, database=db)
    if html is not None:
        write_page(html, render(found))
    if as_json:
        print_json(found.as_json())
    elif html is not None:
        click.echo(html)
    else:
        _print_report(found)


def _print_report(report: Report) -> None:
    click.echo(f"{report.title}: sweep {report.note.sweep_id}, {report.note.state}\n")
    click.echo(" ".join(report.summary) + "\n")
    _print_winners(report)
    if report.refusals:
        columns = ["refused because", "trials", "example", "detail"]
        rows = [
            (r.why.replace("_", " "), r.count, f"{r.unit.value} {r.config}", r.detail[:120])
            for r in report.refusals
        ]
        print_table("What was refused", columns, rows)
    if report.agreements:
        columns = ["tokens", "unit", "variants", "rank correlation", "loss of the predicted best"]
        rows_ = [
            (a.tokens, a.unit.value, a.count, f"{a.spearman:.2f}", f"{a.loss:.1%}")
            for a in report.agreements
        ]
        print_table(f"Prediction (from {report.predicted_from})", columns, rows_)
    click.echo(f"to repeat: {report.command}")
    click.echo(f"on {report.silicon.name} ({report.silicon.key}); {report.toolchain.key}")
    click.echo(f"kernel source {report.source_hash}, policy {report.policy}, in {report.database}")


def _print_winners(report: Report) -> None:
    columns = ["tokens", "unit", "time us", "interval us", "default us", "speed-up", "verdict",
               "evidence", "what changes"]  # fmt: skip
    rows = []
    for verdict in report.verdicts:
        winner = verdict.winner
        low, high = winner.interval_us
        rows.append(
            (
                verdict.tokens,
                winner.unit.value,
                f"{winner.time_us:.1f}",
                f"{low:.1f} - {high:.1f}",
                f"{winner.default_time_us:.1f}",
                f"{winner.speedup:.2f}x",
                verdict.word,
                winner.evidence.word,
                verdict.changes if winner.unit.value in ("gate_up", "down") else "",
            )
        )
    print_table("Winners", columns, rows)
