"""A report as one self-contained HTML page: style, script, charts and data inside."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import InvalidInput
from ..search_spaces import LaunchConfig
from ..tuner.report_records import MEANINGS
from ._lookup import spelled

if TYPE_CHECKING:
    from jinja2 import Environment

    from ..tuner.report_records import Report

# With plotly.js (4.8 MB) and the tables the page stays under 6 MB, and a browser draws the dots at once.
MOST_DATA_BYTES = 900_000
MOST_TRIALS = 15_000
SECTIONS = (
    ("summary", "Summary"),
    ("winners", "Winners"),
    ("landscape", "Landscape"),
    ("roofline", "Roofline"),
    ("search", "Search"),
    ("compiler", "Compiler"),
    ("model", "Prediction"),
    ("refused", "Refused"),
    ("workload", "Workload"),
    ("reproduce", "Repeat it"),
)
_MARK = '<meta name="generator" content="rubin-tune'
_HEAD_BYTES = 2048


def render(report: Report) -> str:
    """Return the page.

    Raises:
        InvalidInput: plotly or jinja2 is not installed.
    """
    environment, plotly = _tools()
    document: dict[str, Any] = report.as_json()
    data, left_out = _fitting(document)
    page: str = environment.get_template("report.html").render(
        version=__version__,
        d=document,
        kernel=report.kernel,
        data=_embedded(data),
        drawn=len(data["trials"]["tokens"]),
        left_out=left_out,
        meanings=MEANINGS,
        sections=SECTIONS,
        figures=_figures(document),
        has_seconds=any(s is not None for s in document["seconds"].values()),
        compiled=_compiled(document["winners"]),
        has_facts=any(v["compile"] for v in document["variants"]),
        no_roofs_because=report.no_roofs_because,
        style=_read("report.css"),
        script=_read("report.js"),
        plotly=plotly,
    )
    return page


def write_page(path: Path, page: str) -> None:
    """Write the page whole, in place of an older report of ours or of nothing.

    Raises:
        InvalidInput: another file is there, or the place cannot be written.
    """
    draft = path.with_name(f".{path.name[:80]}.{os.getpid()}.draft")
    try:
        if path.exists() and not _is_report(path):
            raise InvalidInput(
                f"file {str(path)!r} exists and is no report of rubin-tune: name another"
            )
        draft.write_text(page, encoding="utf-8", newline="")
        draft.replace(path)
    except OSError as error:
        raise InvalidInput(
            f"file {str(path)!r} cannot be written: {error.strerror}; name another"
        ) from error
    finally:
        if draft.parent.is_dir():
            draft.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Refuse, before any work, a place where `write_page` would.

    Raises:
        InvalidInput: another file is there, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise InvalidInput(f"file {str(path)!r} is a folder: name a file, such as report.html")
    if path.exists() and not _is_report(path):
        raise InvalidInput(
            f"file {str(path)!r} exists and is no report of rubin-tune: name another"
        )
    folder = path.parent
    if not folder.is_dir():
        raise InvalidInput(f"folder {str(folder)!r} does not exist: make it")
    if not os.access(folder, os.W_OK):
        raise InvalidInput(f"folder {str(folder)!r} cannot be written: name another")


def _is_report(path: Path) -> bool:
    with path.open("rb") as stream:
        return _MARK.encode() in stream.read(_HEAD_BYTES)


def _tools() -> tuple[Environment, str]:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InvalidInput(
            f"--html needs {error.name}, which is not installed: pip install 'rubin-tune[report]'"
        ) from error
    environment = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined
    )
    macro = environment.from_string(_CHART).module
    environment.globals |= {
        "chart": macro.chart,  # type: ignore[attr-defined]
        "time": _time,
        "interval": _interval,
        "spelled": _spelled,
        "changes": _changes,
    }
    return environment, get_plotlyjs()


_CHART = """{% macro chart(name, title, caption, selects) %}
<figure>
<h3 id="title-{{ name }}">{{ title }}</h3>
{% if selects %}<p class="controls">{% for id, label in selects %}
<label>{{ label }} <select id="{{ id }}"></select></label>{% endfor %}</p>{% endif %}
<div class="plot" id="chart-{{ name }}" role="img"
 aria-labelledby="title-{{ name }}"></div>
<figcaption>{{ caption }}</figcaption>
</figure>
{% endmacro %}"""


def _read(name: str) -> str:
    return (resources.files(__package__ or __name__) / "page" / name).read_text(encoding="utf-8")


def _time(value: float) -> str:
    return f"{value:.1f}" if value < 9999.5 else f"{value:.0f}"


def _interval(pair: list[float] | None) -> str:
    return "" if pair is None or pair[0] == pair[1] else f"{_time(pair[0])} – {_time(pair[1])}"


def _changes(winner: dict[str, Any]) -> list[str]:
    """Return where a winner differs from its default, a layer's on a line for each unit."""
    default = winner["default_config"]
    return spelled({n: v for n, v in winner["config"].items() if default.get(n) != v})


def _spelled(config: dict[str, Any]) -> str:
    return str(LaunchConfig.of(config))


def _figures(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the few numbers that stand large at the top."""
    layers = [w for w in document["winners"] if w["unit"] == "layer"]
    times = document["trials"]["time_us"]
    figures = []
    if layers:
        best = max(layers, key=lambda w: w["speedup"])
        word = f"best layer ({best['evidence']})"
        figures.append((word, f"{best['speedup']:.2f}× at {best['tokens']}"))
        faster = sum(w["verdict"] == "faster" for w in layers)
        figures.append(("faster than the default", f"{faster} of {len(layers)}"))
    figures.append(("variants tried", str(len(document["variants"]))))
    figures.append(("trials with a time", str(sum(t is not None for t in times))))
    figures.append(("trials refused", str(sum(t is None for t in times))))
    return figures


def _compiled(winners: list[dict[str, Any]]) -> list[tuple[dict[str, Any], list[int]]]:
    """Return each winner that was compiled once, with the token counts at which it won."""
    found: dict[tuple[str, str], tuple[dict[str, Any], list[int]]] = {}
    for winner in (w for w in winners if w["compile"]):
        key = winner["unit"], _spelled(winner["config"])
        found.setdefault(key, (winner, []))[1].append(winner["tokens"])
    return sorted(found.values(), key=lambda pair: pair[0]["unit"], reverse=True)


def _fitting(document: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return what the script reads, of so many trials as fit, and how many were left out."""
    most = MOST_TRIALS
    while True:
        data, left_out = _drawn(document, most)
        if most <= 1 or len(_embedded(data)) <= MOST_DATA_BYTES:
            return data, left_out
        most //= 2


def _embedded(value: object) -> str:
    """Return JSON that no browser takes for the end of a script."""
    text = json.dumps(value, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _drawn(document: dict[str, Any], most: int) -> tuple[dict[str, Any], int]:
    """Return what the script reads, words numbered, and how many slow trials were left out."""
    trials = document["trials"]
    places = _fastest(document, most)
    variants = sorted({trials["variant"][i] for i in places})
    columns = {
        name: [trials[name][i] for i in places]
        for name in ("tokens", "time_us", "predicted_us", "at_s")
    }
    evidences, whys = sorted(set(trials["evidence"])), sorted(set(trials["why"]))
    numbers = {variant: number for number, variant in enumerate(variants)}
    columns["variant"] = [numbers[trials["variant"][i]] for i in places]
    columns["evidence"] = [evidences.index(trials["evidence"][i]) for i in places]
    columns["why"] = [whys.index(trials["why"][i]) for i in places]
    columns["own"] = [int(trials["own"][i]) for i in places]
    kept = ("winners", "floors", "roofs", "seconds", "workload")
    data = {name: document[name] for name in kept}
    data["variants"] = [document["variants"][v] for v in variants]
    data |= {"trials": columns, "evidences": evidences, "whys": whys}
    return data, len(trials["tokens"]) - len(places)


def _fastest(document: dict[str, Any], most: int) -> list[int]:
    """Return the places of at most so many trials, of every table its fastest."""
    trials, variants = document["trials"], document["variants"]
    count = len(trials["tokens"])
    if count <= most:
        return list(range(count))
    tables: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place in range(count):
        unit = variants[trials["variant"][place]]["unit"]
        tables[unit, trials["tokens"][place]].append(place)
    each = max(1, most // len(tables))

    def slowness(place: int) -> float:
        time_us = trials["time_us"][place]
        return float("inf") if time_us is None else float(time_us)

    return sorted(place for own in tables.values() for place in sorted(own, key=slowness)[:each])
