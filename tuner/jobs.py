"""One variant to compile: the record, its key, its JSON, and the work itself.

Light on purpose: another Python, which has triton and torch but not all that we install, imports this file.
"""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from ..db.codec import (
    compile_from_json,
    compile_to_json,
    problem_from_json,
    problem_to_json,
    rejected_from_json,
    rejected_to_json,
)
from ..db.records import CompileReport, Rejected, Toolchain, Why
from ..errors import InvalidInput, StorageFull
from ..registry import load
from ..search_spaces import LaunchConfig, Problem, Unit
from .compile import report_on

# History: 1 = the first; 2 = weights told from activations of the same tile size, sm_90's own ptxas.
_FORMAT = 2
# What every job is compiled at: the code does not depend on the token count.
_TOKENS = 128
# Fields of a shape that change no code.
_UNCODED = ("model", "also", "layers")

Outcome = CompileReport | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """One variant for one target."""

    kernel: str
    problem: Problem
    unit: Unit
    config: LaunchConfig
    arch: int

    def key(self, source_hash: str, made_by: Toolchain) -> str:
        """Hash of everything that changes the code: neither tokens nor routing nor the model's name."""
        record = problem_to_json(self.problem.at(_TOKENS))
        # A row of the down GEMM is one token-expert pair, whatever top_k made it.
        left_out = (*_UNCODED, "top_k") if self.unit is Unit.DOWN else _UNCODED
        parts = {
            "format": _FORMAT,
            "kernel": [self.kernel, source_hash],
            "shape": {k: v for k, v in record["shape"].items() if k not in left_out},
            "layout": record["layout"],
            "unit": self.unit.value,
            "config": self.config.key,
            "arch": self.arch,
            "toolchain": made_by.key,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def compile_job(job: CompileJob) -> Outcome:
    """Compile one job in this process; the compiler's own words come back where it refuses.

    Raises:
        StorageFull: Triton has no room for its cache, which is not the variant's fault.
    """
    try:
        kernel: Any = load("kernels", job.kernel)
        problem = job.problem.at(_TOKENS)
        inputs = kernel.make_inputs(problem, device="meta", seed=0)
        launch = kernel.launches(problem, job.unit, job.config, inputs)[-1]
        return report_on(launch, job.arch)
    except InvalidInput as error:
        return Rejected(config=job.config, why=Why.ILLEGAL, detail=str(error))
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no room for compiled variants: {error}") from error
        # Triton, LLVM and ptxas raise what they like; all of it is this variant's outcome.
        return Rejected(config=job.config, why=Why.COMPILE_ERROR, detail=_words(error))


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values."""
    if isinstance(outcome, Rejected):
        return {"rejected": rejected_to_json(outcome)}
    return {"report": compile_to_json(outcome)}


def outcome_from_json(found: dict[str, Any]) -> Outcome:
    """Read what `outcome_to_json` wrote."""
    if "rejected" in found:
        return rejected_from_json(found["rejected"])
    return compile_from_json(found["report"])


def job_to_json(job: CompileJob) -> dict[str, Any]:
    """Return a job as JSON values."""
    return {
        "kernel": job.kernel,
        "problem": problem_to_json(job.problem),
        "unit": job.unit.value,
        "config": job.config.as_dict(),
        "arch": job.arch,
    }


def job_from_json(found: dict[str, Any]) -> CompileJob:
    """Read what `job_to_json` wrote."""
    return CompileJob(
        kernel=found["kernel"],
        problem=problem_from_json(found["problem"]),
        unit=Unit(found["unit"]),
        config=LaunchConfig.of(found["config"]),
        arch=found["arch"],
    )


def _words(error: BaseException) -> str:
    text = str(error) or repr(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return f"{type(error).__name__}: {' | '.join(telling[:3])}"[:800]
