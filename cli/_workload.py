"""`rubin-tune workload`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import InvalidInput
from ._group import Commands
from ._options import json_option
from ._output import print_json, print_table

if TYPE_CHECKING:
    from ..search_spaces import Summary, Workload

F = TypeVar("F", bound=Callable[..., Any])

_BAR = 40
_COLUMNS = ("layout", "rate", "req/s", "kind", "steps", "idle", "no prompt", "max/mean",
            "p50 / p99", "busy", "late")  # fmt: skip
_LEGEND = (
    "idle, no prompt: share of steps in which a rank has no token, no prompt token; max/mean: fullest "
    "rank over\nthe mean; p50 / p99: tokens over all ranks; busy, late: assumed times (--json says "
    "more, docs/workloads.md why)"
)
_SETTINGS = (
    "chunk", "max_batch", "speculative", "acceptance", "assign", "role", "prefix_cache",
    "fixed_us", "prefill_us", "decode_us",
)  # fmt: skip


@click.group(cls=Commands)
def workload() -> None:
    """Steps that a serving engine makes of a trace of requests.

    \b
    Example:
      rubin-tune workload show azure-2023-conversation.csv.gz --layout dep2,dep8
    """


def _serving_options(command: F) -> F:
    """Add the options that say how the trace is read and batched."""
    for option in reversed(
        (
            click.option("--format", "trace_format", default="auto", show_default=True,
                         help="azure (CSV), mooncake (JSON lines), lengths, or auto."),
            click.option("--requests", type=int, help="Take only the first N requests."),
            click.option("--layout", help="single or depN; several with commas.  [default: dep4]"),
            click.option("--rate", help="Factor on the load; several with commas.  [default: 1]"),
            click.option("--role", help="mixed, prefill (hands requests on after their prompt) or "
                         "decode.  [default: mixed]"),
            click.option("--assign", help="least_requests, least_tokens or round_robin.  "
                         "[default: least_requests]"),
            click.option("--chunk", type=int,
                         help="Most tokens of a rank in a step.  [default: 8192]"),
            click.option("--max-batch", type=int, help="Most sequences of a rank.  [default: 256]"),
            click.option("--speculative", type=int, help="Draft tokens a sequence.  [default: 0]"),
            click.option("--acceptance", type=float,
                         help="Share of drafts accepted.  [default: 0.7]"),
            click.option("--prefix-cache", is_flag=True, default=None,
                         help="Skip prompt tokens that an earlier request had."),
            click.option("--fixed-us", type=float,
                         help="Assumed time of an empty step.  [default: 10000]"),
            click.option("--prefill-us", type=float,
                         help="Assumed time of a prompt token.  [default: 20]"),
            click.option("--decode-us", type=float,
                         help="Assumed time of a decode token.  [default: 20]"),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@workload.command()
@click.argument("trace")
@_serving_options
@json_option
def show(trace: str, as_json: bool, **options: Any) -> None:
    """Show the steps of TRACE: tokens, share of steps with an idle rank, imbalance.

    TRACE is a trace of requests, or a file that `workload steps` wrote. Several layouts or rates
    give one line each.

    \b
    Example:
      rubin-tune workload show mooncake-conversation.jsonl.gz --role prefill --rate 0.5,1,2
    """
    from ..search_spaces import summarise

    found = [(w, summarise(w)) for w in _workloads(trace, options)]
    if as_json:
        print_json({"schema": "rubin-tune.workload/1", "workloads": [_as_json(*f) for f in found]})
        return
    _print_repairs(found[0][0])
    origin = found[0][0].origin
    title = f"{origin.trace}: {origin.requests} requests, {found[0][0].serving.role} instance"
    print_table(title, _COLUMNS, [row for f in found for row in _rows(*f)])
    click.echo(_LEGEND)
    if len(found) == 1:
        _print_histogram(found[0][1])


@workload.command()
@click.argument("trace")
@click.option("--out", required=True, metavar="FILE", help="Where to write (.jsonl or .jsonl.gz).")
@click.option("--steps", "count", type=int, help="Only this many steps, spread over the trace.")
@click.option("--kind", default="all", show_default=True,
              help="With --steps: prefill, decode or all.")  # fmt: skip
@click.option("--offset", default=0.5, show_default=True,
              help="With --steps: another offset in [0, 1) takes other steps.")  # fmt: skip
@_serving_options
@json_option
def steps(
    trace: str,
    out: str,
    count: int | None,
    kind: str,
    offset: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the steps of TRACE to a file, so that anyone can repeat a replay.

    \b
    Example:
      rubin-tune workload steps azure.csv.gz --layout dep4 --steps 40 --kind prefill --out s.jsonl
    """
    from ..search_spaces import save_steps, summarise

    found = _workloads(trace, options)
    if len(found) != 1:
        raise InvalidInput(f"{len(found)} workloads: steps are written for one layout and rate")
    chosen = found[0] if count is None else found[0].sample(count, kind, offset)
    path = save_steps(chosen, out)
    if as_json:
        print_json({"schema": "rubin-tune.workload/1", "file": str(path),
                    "workloads": [_as_json(chosen, summarise(chosen))]})  # fmt: skip
        return
    _print_repairs(chosen)
    click.echo(f"{len(chosen)} steps in {len(chosen.repeats)} records: {path}")


def _workloads(trace: str, options: dict[str, Any]) -> tuple[Workload, ...]:
    from ..search_spaces import workloads_of

    return workloads_of(
        trace,
        layouts=_words(options["layout"]),
        rates=_rates(options["rate"]),
        format=options["trace_format"],
        requests=options["requests"],
        settings={n: options[n] for n in _SETTINGS if options[n] is not None},
    )


def _words(text: str | None) -> Sequence[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _rates(text: str | None) -> Sequence[float]:
    try:
        return [float(word) for word in _words(text)]
    except ValueError as error:
        raise InvalidInput(f"rate is {text!r}: must be numbers separated by commas") from error


def _layout(workload: Workload) -> str:
    return f"dep{workload.serving.ranks}" if workload.serving.ranks > 1 else "single"


def _requests_per_s(workload: Workload) -> float | None:
    """Requests a second over the arrivals (None where all come at once)."""
    span = workload.origin.last_arrival_us
    return (workload.origin.requests - 1) / span * 1e6 if span else None


def _as_json(workload: Workload, summary: Summary) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "layout": _layout(workload),
        "requests_per_s": _requests_per_s(workload),
        "origin": asdict(workload.origin),
        "serving": workload.serving.as_dict(),
        "summary": summary.as_dict(),
    }


def _rows(workload: Workload, summary: Summary) -> list[tuple[object, ...]]:
    per_s = _requests_per_s(workload)
    busy = "-" if summary.busy_share is None else f"{summary.busy_share:.0%}"
    late = "-" if summary.backlog_s is None else f"{summary.backlog_s:.0f} s"
    return [
        (
            _layout(workload),
            f"{workload.origin.rate:g}",
            "at once" if per_s is None else f"{per_s:.2f}",
            k.kind,
            k.steps,
            f"{k.idle_share:.1%}",
            f"{k.no_prefill_share:.1%}" if k.kind == "prefill" else "-",
            f"{k.imbalance:.2f}",
            f"{k.tokens_p50} / {k.tokens_p99}",
            busy,
            late,
        )
        for k in summary.kinds
    ]


def _print_repairs(workload: Workload) -> None:
    for repair in workload.origin.repairs:
        click.echo(f"rubin-tune: {workload.origin.trace}: {repair}", err=True)


def _print_histogram(summary: Summary) -> None:
    most = max(b.prefill_steps + b.decode_steps for b in summary.histogram)
    rows = []
    for bar in summary.histogram:
        prefill, decode = (
            -(-count * _BAR // most) for count in (bar.prefill_steps, bar.decode_steps)
        )
        rows.append(
            (
                f"{bar.least}-{bar.most}",
                bar.prefill_steps,
                bar.decode_steps,
                f"{bar.time_share:.1%}",
                "█" * prefill + "░" * decode,
            )
        )
    print_table(
        "tokens over all ranks",
        ["tokens", "prefill steps", "decode steps", "time", "█ prefill  ░ decode"],
        rows,
    )
