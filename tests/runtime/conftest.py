"""A process in which triton is interpreted, for what runs our kernels (tests/runtime/interpret.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Interpreter:
    """The process; call it with a command and a case."""

    def __init__(self, errors: Path) -> None:
        self.errors = errors
        with errors.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("interpret.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )

    def __call__(self, command: str, **case: Any) -> dict[str, Any]:
        """Run one case; fail where it raised."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"command": command, **case}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the interpreter ended:\n{self.errors.read_text()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            pytest.fail(answer["failed"])
        return answer


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """One interpreter process for the whole session."""
    found = Interpreter(tmp_path_factory.mktemp("interpreter") / "stderr")
    yield found
    found.process.communicate()
