"""The report's page in a real browser: charts drawn, no network, both widths, both themes, keyboard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db import Silicon

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("plotly", reason="plotly is not installed")
pytestmark = pytest.mark.end_to_end

Run = Callable[..., Any]
# As root in a container Chromium has no sandbox; the rest keeps it from calling home.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-quic",
]  # fmt: skip


def chromium_path() -> str | None:
    named = os.environ.get("RUBIN_TUNE_CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium_path()
    with playwright.sync_playwright() as tools:
        if path is None and not Path(tools.chromium.executable_path).exists():
            pytest.skip(
                "no Chromium: install Debian's chromium, or name one in RUBIN_TUNE_CHROMIUM"
            )
        with tools.chromium.launch(executable_path=path, args=FLAGS) as found:
            yield found


class Opened:
    """A page and what it did."""

    def __init__(self, browser: Any, path: Path, *, width: int, scheme: str) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function(
            "[...document.querySelectorAll('.plot')].every(p => p.dataset.drawn)"
        )


CASES = ("measured", "recorded")


@pytest.fixture
def pages(run: Run, measured: Path, landscape: Path, tmp_path: Path) -> dict[str, Path]:
    swept = run(
        "sweep", "fused_moe", "--model", "qwen3-30b-a3b", "--dtype", "fp8", "--target", "h200",
        "--evaluator", f"recorded:{landscape}", "--trials", "12", "--db", "recorded.sqlite",
    )  # fmt: skip
    assert swept.exit_code == 0, swept.stderr
    found = {}
    for name in CASES:
        found[name] = tmp_path / f"{name}.html"
        made = run("report", "--db", str(tmp_path / f"{name}.sqlite"), "--html", str(found[name]))
        assert made.exit_code == 0, made.stderr
    return found


CHARTS = {
    "measured": {"speedups", "heat", "roof", "convergence", "seconds", "facts", "agreement", "experts"},
    "recorded": {"speedups", "heat", "roof", "convergence", "seconds", "agreement", "experts"},
}  # fmt: skip
# Marks of data in a plotly chart: dots, lines, bars, and the picture of a heat map.
MARKS = ".scatterlayer path, .barlayer path, .heatmaplayer image"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [1280, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_draws_every_chart_without_network_complaint_or_overflow(
    browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    opened = Opened(browser, pages[name], width=width, scheme=scheme)
    assert opened.complaints == []
    assert opened.requests == [pages[name].as_uri()]
    drawn = opened.page.evaluate(
        "marks => Object.fromEntries([...document.querySelectorAll('.plot')].map("
        "p => [p.id.replace('chart-', ''), p.querySelectorAll(marks).length]))",
        MARKS,
    )
    assert set(drawn) == CHARTS[name]
    assert all(drawn.values()), drawn
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_stopped_sweep_on_a_gpu_that_nobody_described_still_makes_a_page(
    browser: Any, run: Run, tmp_path: Path, sweeps: Callable[..., Path]
) -> None:
    strange = Silicon(name="?", arch=90, sms=7, memory_bytes=1, shared_limit_bytes=1)
    database = sweeps(tmp_path / "stopped.sqlite", stopped=True, silicon=strange)
    path = tmp_path / "stopped.html"
    assert run("report", "--db", str(database), "--html", str(path)).exit_code == 0
    opened = Opened(browser, path, width=420, scheme="light")
    assert opened.complaints == []
    text = opened.page.inner_text("main")
    assert "The sweep is stopped, not finished" in text
    assert "No winner is stored" in text
    assert "No roofs: no GPU of that silicon is described" in text
    assert opened.page.evaluate("document.querySelectorAll('.plot[data-drawn]').length") == 5


def test_the_button_changes_the_theme_and_the_charts_by_keyboard(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = Opened(browser, pages["measured"], width=1280, scheme="light").page
    ink = "getComputedStyle(document.querySelector('#chart-heat .ytick text')).fill"
    before = page.evaluate(ink)
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    assert page.evaluate(ink) != before


def test_selects_are_reached_by_tab_and_redraw_their_chart(
    browser: Any, pages: dict[str, Path]
) -> None:
    page = Opened(browser, pages["measured"], width=1280, scheme="light").page
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id"))
        if seen[-1] == "heat-x":
            break
    assert seen[-1] == "heat-x", seen
    title = "document.querySelector('#chart-heat .xtitle').textContent"
    before = page.evaluate(title)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(f"{title} !== {before!r}")


def test_rows_of_every_unit_can_be_shown(browser: Any, pages: dict[str, Path]) -> None:
    page = Opened(browser, pages["measured"], width=1280, scheme="light").page
    rows = page.locator("#winner-table tbody tr:visible")
    assert rows.count() == 2
    page.select_option("#winner-rows", "")
    assert rows.count() == 6


def test_print_uses_light_colours_and_hides_controls(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = Opened(browser, pages["measured"], width=1280, scheme="dark").page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.is_visible("#theme")
    assert page.pdf(path=str(tmp_path / "page.pdf")).startswith(b"%PDF")


def test_tables_stand_without_script(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["measured"].as_uri())
    assert page.is_visible("#winner-table")
    assert not page.is_visible("#chart-heat")
    assert not page.is_visible("#winner-rows")
