"""Compiling with another Python's triton, through `PATH -m rubin_tune.tuner.compile_worker`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..db import CompileReport, Rejected, Toolchain, Why
from ..db.codec import toolchain_from_json
from ..errors import InvalidInput, UnsupportedTarget
from .jobs import CompileJob, job_to_json, outcome_from_json
from .processes import end_group

# Ours would lead the other Python back to our packages.
_OURS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


def compile_elsewhere(
    job: CompileJob, python: str, *, triton_cache: Path, time_limit_s: float
) -> tuple[CompileReport, Toolchain] | Rejected:
    """Compile one job in another Python and return its report and that Python's toolchain.

    Raises:
        InvalidInput: it is no Python, or lacks what our worker imports.
        UnsupportedTarget: its triton cannot compile for that GPU.
    """
    with tempfile.TemporaryDirectory(prefix="rubin-tune-") as folder:
        # A folder with our package alone: beside an installed one lies a triton that must not win.
        package = Path(sys.modules["rubin_tune"].__file__ or "").resolve().parent
        (Path(folder) / "rubin_tune").symlink_to(package)
        kept = {k: v for k, v in os.environ.items() if k not in _OURS}
        environment = {**kept, "PYTHONPATH": folder, "TRITON_CACHE_DIR": str(triton_cache)}
        code, out, err = _run(python, json.dumps(job_to_json(job)), environment, time_limit_s)
    if code is None:
        detail = f"not done within {time_limit_s:.0f} s"
        return Rejected(config=job.config, why=Why.COMPILE_TIMEOUT, detail=detail)
    last = (err.strip().splitlines() or ["it printed nothing"])[-1][:300]
    if code < 0:
        detail = f"the compiler's process ended by {signal.Signals(-code).name}: {last}"
        return Rejected(config=job.config, why=Why.CRASH, detail=detail)
    if code:
        raise InvalidInput(f"{python!r} cannot compile for us: {last}")
    return _read(out, python)


def _run(
    python: str, text: str, environment: dict[str, str], time_limit_s: float
) -> tuple[int | None, str, str]:
    """Return (exit code, stdout, stderr); no code where it took too long."""
    command = [python, "-m", "rubin_tune.tuner.compile_worker"]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise InvalidInput(f"cannot run {python!r}: {error.strerror}") from error
    with process:
        try:
            out, err = process.communicate(text, timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            return None, "", ""
        finally:
            end_group(process.pid)
    return process.returncode, out, err


def _read(out: str, python: str) -> tuple[CompileReport, Toolchain] | Rejected:
    try:
        found: dict[str, Any] = json.loads(out)
    except ValueError as error:
        raise InvalidInput(
            f"{python!r} cannot compile for us: it answered {out[:80]!r}"
        ) from error
    if "unsupported" in found:
        raise UnsupportedTarget(f"{python!r} {found['unsupported']}")
    outcome = outcome_from_json(found["outcome"])
    if isinstance(outcome, Rejected):
        return outcome
    return outcome, toolchain_from_json(found["toolchain"])
