"""What this machine and this toolchain can do, and how to get what is missing."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..db import default_path
from ..topology import detect_gpu
from .make import default_cache_dir
from .toolchain import advice, ptxas_path, ptxas_version, supported_targets

# Percent of the time that a GPU which only draws a desktop may be found working.
_IDLE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: The thing.
        ok: Whether it is as a sweep wants it.
        detail: What was found.
        advice: What to do where it is not.
        needed: Whether no sweep can run without it.
    """

    what: str
    ok: bool
    detail: str
    advice: str = ""
    needed: bool = False


def findings() -> list[Finding]:
    """Look at packages, assemblers, targets, the GPU and the folders."""
    return [
        Finding(what="python", ok=True, detail=platform.python_version()),
        _package(
            "torch", "pip install 'torch==2.13.0' (a CPU build) or the GPU build you serve with"
        ),
        _package("triton", "pip install 'triton==3.9.0'"),
        *_assemblers(),
        *_targets(),
        _gpu(),
        _folder("database folder", default_path().parent, "--db"),
        _folder("cache folder", default_cache_dir(), "XDG_CACHE_HOME"),
        _optional("vllm", "pip install vllm (only to time vLLM's own kernel)"),
        _optional("psycopg", "pip install 'rubin-tune[postgres]' (only for PostgreSQL)"),
    ]


def _package(name: str, how: str) -> Finding:
    try:
        return Finding(what=name, ok=True, detail=version(name), needed=True)
    except PackageNotFoundError:
        return Finding(what=name, ok=False, detail="not installed", advice=how, needed=True)


def _optional(name: str, how: str) -> Finding:
    found = _package(name, how)
    return Finding(what=name, ok=found.ok, detail=found.detail, advice=found.advice)


def _assemblers() -> list[Finding]:
    rows = []
    for arch, name in ((90, "ptxas (sm_90)"), (100, "ptxas (sm_100 and newer)")):
        found = ptxas_version(arch)
        path = ptxas_path(arch)
        detail = f"{found} at {path}" if found else f"cannot be run: {path or 'none found'}"
        rows.append(
            Finding(what=name, ok=bool(found), detail=detail, advice="" if found else advice(arch))
        )
    return rows


def _targets() -> list[Finding]:
    return [
        Finding(
            what=f"target sm_{arch}",
            ok=not why,
            detail=why or "can be compiled",
            advice=advice(arch) if why else "",
        )
        for arch, why in supported_targets().items()
    ]


def _gpu() -> Finding:
    live = detect_gpu()
    if live is None:
        detail = "none: sweeps predict with the cost model"
        return Finding(what="GPU", ok=True, detail=detail)
    detail = f"{live.title} (sm_{live.arch}, {live.sms} SMs)"
    load = _gpu_load()
    if load > _IDLE:
        advice = "end what else runs on it: times taken now would be too long"
        return Finding(what="GPU", ok=False, detail=f"{detail}, {load} % busy", advice=advice)
    return Finding(what="GPU", ok=True, detail=detail)


def _gpu_load() -> int:
    """Return how busy the first GPU is, in percent; 0 where nvidia-smi does not say."""
    command = [
        "nvidia-smi",
        "--query-gpu=utilization.gpu",
        "--format=csv,noheader,nounits",
        "-i",
        "0",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = done.stdout.strip()
    return int(said) if said.isdigit() else 0


def _folder(what: str, path: Path, how: str) -> Finding:
    nearest = next(p for p in (path, *path.parents) if p.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return Finding(what=what, ok=True, detail=str(path), needed=True)
    return Finding(
        what=what,
        ok=False,
        detail=f"{path} is not writable",
        advice=f"choose another with {how}",
        needed=True,
    )
