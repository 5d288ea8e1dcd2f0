"""Compile one job read from stdin as JSON and answer on stdout: run by another Python than ours."""

from __future__ import annotations

import json
import os
import sys

from .farm import job_from_json, worker_answer


def main() -> None:
    """Read, compile, answer."""
    job = job_from_json(json.load(sys.stdin))
    answer = os.dup(1)
    # Whatever triton prints goes to stderr.
    os.dup2(2, 1)
    with os.fdopen(answer, "w") as stdout:
        json.dump(worker_answer(job), stdout)


if __name__ == "__main__":
    main()
