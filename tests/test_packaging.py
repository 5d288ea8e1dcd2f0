"""The wheel holds `rubin_tune` and nothing else, and shadows nobody's package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
NOT_PACKAGES = {"src", "tests", "benchmarks", "docs", "build", "dist"}


def package_folders() -> set[str]:
    """Find the folders at the root that hold package files."""
    return {
        p.name
        for p in ROOT.iterdir()
        if p.is_dir() and p.name[0] not in "._" and p.name not in NOT_PACKAGES
        and not p.name.endswith(".egg-info") and any(p.rglob("*.py"))
    }  # fmt: skip


def test_map_list_and_links_name_the_same_folders() -> None:
    folders = package_folders()
    mapped = {v for v in SETTINGS["package-dir"].values() if v != "src/rubin_tune"}
    listed = {p.split(".")[1] for p in SETTINGS["packages"] if "." in p}
    links = {p.name for p in (ROOT / "src/rubin_tune").iterdir() if p.is_symlink()}
    assert folders == mapped == listed == links


def test_every_folder_with_package_files_is_listed() -> None:
    found = set()
    for folder in package_folders():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".toml") and "__pycache__" not in path.parts:
                found.add(".".join(("rubin_tune", *path.parent.relative_to(ROOT).parts)))
    assert found == set(SETTINGS["packages"]) - {"rubin_tune"}


def test_kernels_has_no_init_so_that_an_installed_kernels_package_wins() -> None:
    assert not (ROOT / "kernels/__init__.py").exists()
    spec = importlib.util.find_spec("kernels")
    assert spec is None or spec.origin is None or str(ROOT) not in spec.origin


@pytest.mark.end_to_end
def test_wheel_holds_rubin_tune_alone(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--quiet",
        "-w",
        str(tmp_path),
        ".",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {n.split("/")[0] for n in names}
    assert tops == {"rubin_tune", next(t for t in tops if t.endswith(".dist-info"))}
    for needed in ("topology/gpus/vr200.toml", "search_spaces/models.toml", "kernels/megamoe.py",
                   "cli/page/report.html", "cli/page/report.css", "cli/page/report.js"):  # fmt: skip
        assert f"rubin_tune/{needed}" in names
