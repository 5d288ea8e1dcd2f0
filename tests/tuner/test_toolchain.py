"""What stands here and what it can do, told without importing triton."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rubin_tune.tuner import toolchain as tools

Triton = Callable[..., Path]
NEWER = "    if arch < 90:\n        return knobs.nvidia.ptxas\n    return knobs.nvidia.ptxas_blackwell\n"
OLDER = "    return knobs.nvidia.ptxas_blackwell if arch >= 100 else knobs.nvidia.ptxas\n"


@pytest.fixture
def triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    """Build a folder that looks like an installed triton, and forget what is cached about the real one."""

    def build(*, source: str = NEWER, knows: str = "sm_90a sm_100a") -> Path:
        tools_folder = tmp_path / "backends/nvidia/bin"
        tools_folder.mkdir(parents=True)
        compiler = tmp_path / "backends/nvidia/compiler.py"
        compiler.write_text(f"def get_ptxas(arch: int) -> knobs.NvidiaTool:\n{source}\n\n")
        assembler(tools_folder / "ptxas", "12.8.93", "sm_90a")
        assembler(tools_folder / "ptxas-blackwell", "13.4.59", knows)
        return tmp_path

    monkeypatch.setattr(tools, "_triton_folder", lambda: tmp_path)
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    monkeypatch.delenv("TRITON_PTXAS_BLACKWELL_PATH", raising=False)
    _forget()
    yield build
    _forget()


def _forget() -> None:
    for cached in (
        tools.toolchain, tools.ptxas_version, tools.why_unsupported, tools._second_assembler_from,
    ):  # fmt: skip
        cached.cache_clear()


def assembler(path: Path, version: str, knows: str) -> Path:
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --help ] && echo "{knows}" || echo "release, V{version}"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("source", "hopper"), [(NEWER, "13.4.59"), (OLDER, "12.8.93")])
def test_hoppers_assembler_is_the_one_that_this_triton_runs(
    triton: Triton, source: str, hopper: str
) -> None:
    triton(source=source)
    assert tools.ptxas_version(90) == hopper
    assert tools.ptxas_version(107) == "13.4.59"


def test_an_assembler_named_by_the_environment_wins_if_it_can_be_run(
    triton: Triton, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton()
    own = assembler(tmp_path / "my-ptxas", "13.5.37", "sm_107a")
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", str(own))
    assert tools.ptxas_version(107) == "13.5.37"
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", "/no/such/ptxas")
    assert tools.ptxas_path(107) != Path("/no/such/ptxas")


def test_a_target_that_the_assembler_lacks_is_told_with_a_way_out(
    triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton(knows="sm_90a sm_100a sm_103a")
    monkeypatch.setattr(tools, "_version", lambda package: "3.9.0")
    targets = tools.supported_targets()
    assert targets == {90: "", 100: "", 103: "", 107: "ptxas 13.4.59 does not know sm_107"}
    assert "TRITON_PTXAS_BLACKWELL_PATH" in tools.advice(107)


@pytest.mark.parametrize(
    ("installed", "why"),
    [("", "triton is not installed"), ("3.4.0", "triton 3.4.0 is too old")],
)
def test_a_triton_that_cannot_do_it_is_told(
    triton: Triton, monkeypatch: pytest.MonkeyPatch, installed: str, why: str
) -> None:
    triton()
    monkeypatch.setattr(tools, "_version", lambda package: installed)
    assert tools.why_unsupported(100) == why


def test_the_toolchain_is_told_without_importing_triton_or_torch() -> None:
    script = (
        "import sys\nfrom rubin_tune.tuner.toolchain import toolchain, supported_targets\n"
        "toolchain(107), supported_targets()\n"
        "print(sorted({'triton', 'torch'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
