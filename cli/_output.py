"""Tables for people on stdout, JSON for programs, progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import TracebackType

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table


def print_json(value: object) -> None:
    """Write one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table to stdout, as wide as it needs when stdout is no terminal.

    Raises:
        ValueError: a row has not one cell a column.
    """
    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        cells = [escape(str(cell)) for _, cell in zip(columns, row, strict=True)]
        table.add_row(*cells)
    width = None if sys.stdout.isatty() else 200
    Console(width=width, soft_wrap=False).print(table)


class TerminalProgress:
    """Draws a sweep's progress on stderr; silent with --quiet or when stderr is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        """Open the bar."""
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._quiet = quiet
        self._lines = not quiet and not console.is_terminal
        self._task: int | None = None

    def __enter__(self) -> TerminalProgress:
        """Start drawing."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing."""
        self._bar.stop()

    def stage(self, name: str, total: int) -> None:
        """Begin a stage."""
        if self._lines:
            click.echo(f"rubin-tune: {name} ({total})", err=True)
        self._task = self._bar.add_task(name, total=total, note="")

    def step(self, note: str = "") -> None:
        """Advance the present stage by one."""
        if self._task is not None:
            self._bar.update(self._bar.task_ids[self._task], advance=1, note=note)

    def say(self, words: str) -> None:
        """Write a line above the bar."""
        if self._lines:
            click.echo(f"rubin-tune: {words}", err=True)
        elif not self._quiet:
            self._bar.console.print(f"rubin-tune: {words}", markup=False, highlight=False)
