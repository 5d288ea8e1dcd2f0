"""Every command has help with an example, and is named in README or docs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import rubin_tune
from rubin_tune.cli import main

ROOT = Path(__file__).resolve().parents[2]


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = sorted(commands())


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_shows_an_example(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*words, "--help"])
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+rubin-tune {words[0]}", result.output)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_is_documented(words: tuple[str, ...]) -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"rubin-tune {' '.join(words)}" in p.read_text() for p in texts)


def test_version_is_the_package_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.output.strip().endswith(rubin_tune.__version__)


def test_public_names_exist_and_are_sorted() -> None:
    assert list(rubin_tune.__all__) == sorted(rubin_tune.__all__)
    assert all(hasattr(rubin_tune, name) for name in rubin_tune.__all__)


def test_importing_the_package_and_the_runtime_loads_nothing_heavy() -> None:
    code = (
        "import sys, rubin_tune, rubin_tune.runtime;"
        "print([m for m in ('torch', 'triton', 'sqlalchemy', 'optuna', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
