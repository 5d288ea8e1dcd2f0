"""Compile one job read from stdin as JSON and answer on stdout: run by another Python than ours."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ..db.codec import toolchain_to_json
from ..errors import UnsupportedTarget
from .jobs import CompileJob, compile_job, job_from_json, outcome_to_json
from .toolchain import require_target, toolchain


def main() -> None:
    """Read, compile, answer."""
    job = job_from_json(json.load(sys.stdin))
    answer = os.dup(1)
    # Whatever triton prints goes to stderr.
    os.dup2(2, 1)
    with os.fdopen(answer, "w") as stdout:
        json.dump(answer_to(job), stdout)


def answer_to(job: CompileJob) -> dict[str, Any]:
    """Return the outcome and the toolchain that made it, or why there can be none."""
    try:
        require_target(job.arch)
    except UnsupportedTarget as error:
        return {"unsupported": str(error)}
    return {
        "outcome": outcome_to_json(compile_job(job)),
        "toolchain": toolchain_to_json(toolchain(job.arch)),
    }


if __name__ == "__main__":
    main()
