"""`rubin-tune workload`: what it prints, what it refuses, and the tables of docs/workloads.md."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rubin_tune.cli import main
from rubin_tune.search_spaces import load_steps

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "../shared/data/traces"
DOC = ROOT / "docs/workloads.md"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"

Run = Callable[..., Result]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three requests, the second while the first decodes, the third after both."""
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,1000,4\n0.031,500,2\n9,2000,1\n")
    return path


def found(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "rubin-tune.workload/1"
    workloads: list[dict[str, Any]] = document["workloads"]
    return workloads


def refused(result: Result, words: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert re.fullmatch(rf"rubin-tune: .*{words}.*\n", result.stderr)


def test_show_counts_steps_and_idle_ranks(run: Run, trace: Path) -> None:
    (one,) = found(run("workload", "show", str(trace), "--layout", "dep2", "--json"))
    # Request 2 comes at 31 ms and is assigned at 40.08, when 1 has decoded once (least: rank 1).
    kinds = {k["kind"]: k for k in one["summary"]["kinds"]}
    assert (kinds["prefill"]["steps"], kinds["decode"]["steps"]) == (3, 2)
    assert kinds["prefill"]["idle_share"] == pytest.approx(2 / 3)
    assert kinds["prefill"]["no_prefill_share"] == 1
    assert (one["layout"], one["origin"]["requests"]) == ("dep2", 3)


def test_show_prints_a_table_and_a_histogram(run: Run, trace: Path) -> None:
    result = run("workload", "show", str(trace))
    assert result.exit_code == 0
    for words in ("trace.csv: 3 requests, mixed instance", "dep4", "prefill", "1024-2047", "█"):
        assert words in result.stdout
    assert result.stderr == ""


def test_several_layouts_and_rates_give_a_line_each(run: Run, trace: Path) -> None:
    words = ("workload", "show", str(trace), "--layout", "single,dep8", "--rate", "1, 2")
    pairs = [(w["layout"], w["origin"]["rate"]) for w in found(run(*words, "--json"))]
    assert pairs == [("single", 1), ("single", 2), ("dep8", 1), ("dep8", 2)]
    assert "decode steps" not in run(*words).stdout


def test_every_setting_reaches_the_batcher(run: Run, trace: Path) -> None:
    words = (
        "--role decode --assign round_robin --chunk 4096 --max-batch 32 --speculative 2 "
        "--acceptance 0.5 --fixed-us 5 --prefill-us 6 --decode-us 7 --prefix-cache --requests 2"
    )
    (one,) = found(run("workload", "show", str(trace), *words.split(), "--json"))
    assert one["serving"] == {
        "ranks": 4, "chunk": 4096, "max_batch": 32, "speculative": 2, "acceptance": 0.5,
        "assign": "round_robin", "role": "decode", "prefix_cache": True, "fixed_us": 5.0,
        "prefill_us": 6.0, "decode_us": 7.0,
    }  # fmt: skip
    assert one["origin"]["requests"] == 2


def test_defaults_in_the_help_are_those_of_the_batcher(run: Run, trace: Path) -> None:
    (one,) = found(run("workload", "show", str(trace), "--json"))
    text = " ".join(run("workload", "show", "--help").stdout.split())
    for name, value in one["serving"].items():
        if name in ("ranks", "prefix_cache"):
            continue
        shown = f"{value:g}" if isinstance(value, float) else value
        option = re.search(rf"--{name.replace('_', '-')} [A-Z]+ .*?\[default: ([^\]]*)\]", text)
        assert option is not None, name
        assert option[1] == str(shown), name


def test_repairs_are_said_on_stderr(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEADER + "5,1,1\n\n0,1,1\n")
    result = run("workload", "show", "t.csv")
    assert "1 requests out of order were sorted by time (the first on line 4)" in result.stderr
    assert "1 blank lines were skipped" in result.stderr
    (one,) = found(run("workload", "show", "t.csv", "--json"))
    assert len(one["origin"]["repairs"]) == 2


def test_steps_are_written_and_shown_again(run: Run, trace: Path, tmp_path: Path) -> None:
    result = run("workload", "steps", str(trace), "--layout", "dep2", "--out", "s.jsonl.gz")
    assert "5 steps in 5 records: s.jsonl.gz" in result.stdout
    again = found(run("workload", "show", "s.jsonl.gz", "--json"))
    assert again == found(run("workload", "show", str(trace), "--layout", "dep2", "--json"))
    assert len(load_steps(tmp_path / "s.jsonl.gz")) == 5


def test_a_sample_of_prefill_steps_is_written(run: Run, trace: Path, tmp_path: Path) -> None:
    words = ("--steps", "2", "--kind", "prefill", "--out", "s.jsonl", "--json")
    (one,) = found(run("workload", "steps", str(trace), *words))
    assert one["summary"]["steps"] == 2
    assert load_steps(tmp_path / "s.jsonl").prefill.any(axis=1).all()
    assert "prefill" in run("workload", "show", "s.jsonl").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["show", "none.csv"], "no such file"),
        (["show", "trace.csv", "--layout", "tp4"], "layout is 'tp4': must be single or depN"),
        (["show", "trace.csv", "--rate", "fast"], "rate is 'fast'"),
        (["show", "trace.csv", "--rate", "0"], "rate is 0.0"),
        (["show", "trace.csv", "--rate", "nan"], "rate is nan"),
        (["show", "trace.csv", "--format", "sharegpt"], "trace format is 'sharegpt'"),
        (["show", "trace.csv", "--format", "mooncake"], "line 1, column 1"),
        (["show", "trace.csv", "--requests", "0"], "requests is 0"),
        (["show", "trace.csv", "--chunk", "128"], "chunk is 128: must be at least"),
        (["show", "trace.csv", "--assign", "random"], "assign is 'random'"),
        (["steps", "trace.csv", "--out", "s.jsonl", "--rate", "1,2"], "2 workloads"),
        (["steps", "trace.csv", "--out", "s.jsonl", "--steps", "99"], "steps is 99"),
        (["steps", "trace.csv", "--out", "none/s.jsonl"], "cannot write"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_code_2(
    run: Run, trace: Path, words: list[str], said: str
) -> None:
    refused(run("workload", *words), re.escape(said))
    assert not Path("s.jsonl").exists()


def test_importing_search_spaces_loads_nothing_heavy() -> None:
    code = (
        "import sys, rubin_tune.search_spaces, rubin_tune.cli._workload;"
        "print([m for m in ('pandas', 'torch', 'triton', 'scipy', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# The tables of docs/workloads.md, made again.

TABLE = re.compile(
    r"```console\n\$ rubin-tune (?P<command>[^\n]*)\n```\n\n"
    r"<!-- shown: (?P<field>\w+) of (?P<kind>\w+) steps -->\n"
    r"\| with \| req/s \| DEP2 \| DEP4 \| DEP8 \|\n[|-]*\n(?P<rows>(?:\|[^\n]*\n)+)"
)


def rows() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield (command with the row's options, field, kind, cells)."""
    for table in TABLE.finditer(DOC.read_text()):
        for line in table["rows"].splitlines():
            first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            options = first.strip("`") if first.startswith("`") else ""
            command = f"{table['command']} {options}".strip()
            yield command, table["field"], table["kind"], cells


def test_every_table_of_the_page_is_checked() -> None:
    text = DOC.read_text()
    assert len(TABLE.findall(text)) == text.count("<!-- shown:") == text.count("```console") == 13
    assert "%" not in re.sub(r"86 %", "", TABLE.sub("", text))


@pytest.mark.parametrize(("command", "field", "kind", "cells"), list(rows()))
def test_the_page_shows_what_the_command_finds(
    command: str, field: str, kind: str, cells: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not DATA.exists():
        pytest.skip("no ../shared/data/traces beside the repository")
    monkeypatch.chdir(DATA)
    workloads = found(CliRunner().invoke(main, ["-q", *shlex.split(command), "--json"]))
    kinds = [next(k for k in w["summary"]["kinds"] if k["kind"] == kind) for w in workloads]
    form = "{:.1%}" if field.endswith("share") else "{:.2f}"
    shown = [f"{workloads[0]['requests_per_s']:.2f}", *(form.format(k[field]) for k in kinds)]
    assert shown == cells
