"""Which triton and ptxas stand here, and which targets they can do; triton itself is not imported."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ..db import Toolchain
from ..errors import UnsupportedTarget
from ..topology import is_present

TARGETS = (90, 100, 103, 107)
# The first triton that lowers sm_107 (it asks LLVM for sm_100 and names the target sm_107a).
# Source: facts, hardware 1.3.
TRITON_FOR_RUBIN = (3, 9)
# From which target on triton runs its second assembler, ptxas-blackwell, where its source does not say.
_SECOND_ASSEMBLER = 100
# The first whose binder and packing of arguments we call. Source: pyproject.toml.
OLDEST_TRITON = (3, 6)
_ADVICE = {
    107: "pip install 'triton>=3.9' (its ptxas is 13.4), or set TRITON_PTXAS_BLACKWELL_PATH to the "
    "ptxas of CUDA >= 13.4",
}


@cache
def toolchain(arch: int) -> Toolchain:
    """Return what this environment compiles a target with ("" for what is not installed)."""
    return Toolchain(
        triton=_version("triton"),
        ptxas=ptxas_version(arch),
        torch=_version("torch"),
        driver=_driver(),
        fp_fusion=True,
    )


def ptxas_path(arch: int) -> Path | None:
    """Return the assembler that triton runs for a target: it has one more for newer ones.

    One that an environment variable names wins, unless it cannot be run: so does triton choose.
    """
    second = arch >= _second_assembler_from()
    chosen = os.environ.get("TRITON_PTXAS_BLACKWELL_PATH" if second else "TRITON_PTXAS_PATH")
    if chosen and os.access(chosen, os.X_OK):
        return Path(chosen)
    folder = _triton_folder()
    if folder is None:
        return None
    path = folder / "backends/nvidia/bin" / ("ptxas-blackwell" if second else "ptxas")
    return path if path.exists() else None


@cache
def _second_assembler_from() -> int:
    """Return the target from which on triton uses ptxas-blackwell: 100 in triton 3.6, 90 in 3.9."""
    folder = _triton_folder()
    source = folder / "backends/nvidia/compiler.py" if folder else None
    text = source.read_text() if source and source.exists() else ""
    found = re.search(r"def get_ptxas\(arch[^\n]*\n(?:(?!\n\n).)*?arch (?:<|>=) (\d+)", text, re.S)
    return int(found[1]) if found else _SECOND_ASSEMBLER


def _triton_folder() -> Path | None:
    spec = find_spec("triton")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


@cache
def ptxas_version(arch: int) -> str:
    """Return the release of that assembler, as "13.4.59"; "" where it cannot be run."""
    found = re.search(r"V(\d+\.\d+\.\d+)", _run(arch, "--version"))
    return found[1] if found else ""


@cache
def why_unsupported(arch: int) -> str:
    """Return why this environment cannot compile for a target, "" where it can."""
    triton = _version("triton")
    if not triton:
        return "triton is not installed"
    numbers = tuple(int(n) for n in re.findall(r"\d+", triton)[:2])
    if numbers < OLDEST_TRITON:
        return f"triton {triton} is too old"
    if arch >= 107 and numbers < TRITON_FOR_RUBIN:
        return f"triton {triton} does not know sm_{arch}"
    if f"sm_{arch}" not in _run(arch, "--help"):
        return f"ptxas {ptxas_version(arch) or '(none found)'} does not know sm_{arch}"
    return ""


def supported_targets() -> dict[int, str]:
    """Return for each target why it cannot be compiled here, "" where it can."""
    return {arch: why_unsupported(arch) for arch in TARGETS}


def advice(arch: int) -> str:
    """Return how to get a missing target."""
    return _ADVICE.get(arch, "pip install 'triton>=3.6'")


def require_target(arch: int) -> None:
    """Refuse a target that cannot be compiled here.

    Raises:
        UnsupportedTarget: with what to do.
    """
    why = why_unsupported(arch)
    if why:
        raise UnsupportedTarget(f"cannot compile for sm_{arch}: {why}; {advice(arch)}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _run(arch: int, argument: str) -> str:
    path = ptxas_path(arch)
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, argument], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


@cache
def _driver() -> str:
    if not is_present():
        return ""
    path = Path("/proc/driver/nvidia/version")
    found = (
        re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", path.read_text())
        if path.exists()
        else None
    )
    return found[1] if found else "unknown"
