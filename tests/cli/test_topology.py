"""`rubin-tune topology`: tables for people, JSON for programs, pictures, refusals."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
SAMPLES = Path(__file__).parents[1] / "topology/samples"
RACK = Path(__file__).parents[2] / "topology/racks/h200_dgx.toml"


def test_import_prints_a_matrix_and_what_nvlink_joins(run: Run) -> None:
    result = run("topology", "import", str(SAMPLES / "gb200_tray.txt"))
    assert result.exit_code == 0, result.output
    assert "CPUs 72-143, NUMA 1,19-25,27-33, own NUMA 26" in result.stdout
    assert "4 GPUs, 4 of them joined by NVLink" in result.stdout


def test_import_as_json_has_devices_and_links(run: Run) -> None:
    result = run("topology", "import", str(SAMPLES / "nccl_h200.xml"), "--gpu", "h200", "--json")
    found = json.loads(result.stdout)
    assert found["schema"] == "rubin-tune.topology/1"
    assert (found["gpu"], found["nvlink_gpus"]) == ("h200", 8)
    assert found["gpus"] == [f"gpu{i}" for i in range(8)]
    nvlinks = [link for link in found["links"] if link["kind"] == "nvlink"]
    assert sum(link["lanes"] for link in nvlinks) == 8 * 18
    assert {link["bandwidth_bytes_per_s"] / link["lanes"] for link in nvlinks} == {25e9}


def test_the_gpu_that_is_said_gives_links_their_speed(run: Run) -> None:
    result = run("topology", "import", str(SAMPLES / "dgx_h200.txt"), "--gpu", "h200")
    assert "8 GPUs, 8 of them joined by NVLink, 450 GB/s one way between two" in result.stdout


def test_detect_says_when_there_is_no_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubin_tune.topology.detect.device_count", lambda: 0)
    monkeypatch.setenv("PATH", "")
    result = run("topology", "detect")
    assert result.exit_code == 0
    assert result.stdout.strip() == "no CUDA GPU in this machine: the default target is vr200"
    found = json.loads(run("topology", "detect", "--json").stdout)
    assert (found["gpus"], found["machine"]) == ([], None)


@pytest.mark.parametrize("name", ["vr200", "sm_107", "vr_nvl72", "h200_dgx", str(RACK)])
def test_plot_writes_a_picture(run: Run, tmp_path: Path, name: str) -> None:
    out = tmp_path / "made" / "picture.svg"
    result = run("topology", "plot", name, "--out", str(out))
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    assert ET.parse(out).getroot().tag.endswith("svg")


def test_plot_draws_an_imported_file(run: Run, tmp_path: Path) -> None:
    shutil.copy(SAMPLES / "dgx2_16gpu.txt", tmp_path / "topo.txt")
    result = run("topology", "plot", "topo.txt", "--out", "m.svg", "--json")
    assert json.loads(result.stdout)["files"] == ["m.svg"]
    assert (tmp_path / "m.svg").read_text().count(">NV6<") == 16 * 15


@pytest.mark.parametrize("name", ["h200_dgx", str(RACK)])
def test_show_knows_racks_by_name_and_by_file(run: Run, name: str) -> None:
    facts = json.loads(run("topology", "show", name, "--json").stdout)["facts"]
    assert "dispatch.deepep_ll" in [fact["fact"] for fact in facts]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("import", "none.txt"), "no such file"),
        (("import", str(SAMPLES / "truncated.txt")), "truncated"),
        (("import", str(SAMPLES / "gb200_tray.txt"), "--gpu", "h20o"), "did you mean h200"),
        (("import", str(SAMPLES / "gb200_tray.txt"), "--format", "hwloc"), "nvidia_smi"),
        (("plot", "vr300", "--out", "a.svg"), "did you mean vr200"),
        (("plot", "vr200", "--out", "a.png"), "must end in .svg"),
        (("plot", str(SAMPLES / "truncated.txt"), "--out", "a.svg"), "truncated"),
        (("plot", "vr200", "--out", "/proc/none/a.svg"), "cannot be written"),
        (("show", "none.toml"), "no such file"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_writes_nothing(
    run: Run, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    result = run("topology", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("*.svg"))
