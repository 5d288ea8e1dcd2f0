"""Fixtures for kernels: an interpreter process, and cross-compilation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Interpreter:
    """A process in which triton is interpreted, or on "cuda" runs (tests/kernels/interpret.py)."""

    def __init__(self, device: str = "cpu") -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("interpret.py")), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def __call__(self, command: str, **case: Any) -> dict[str, Any]:
        """Run one case; fail where the kernel raised."""
        answer = self.ask(command, **case)
        if "failed" in answer:
            pytest.fail(answer["failed"])
        return answer

    def ask(self, command: str, **case: Any) -> dict[str, Any]:
        """Run one case; "failed" holds what the kernel raised, or what the process said at its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"command": command, **case}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            assert self.process.stderr is not None
            return {"failed": f"the process ended:\n{self.process.stderr.read()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """One interpreter process for the whole session."""
    found = Interpreter()
    yield found
    found.close()


@pytest.fixture(scope="session")
def start_kernels() -> Callable[[str], Interpreter]:
    """The function that starts a process of kernels on "cpu" (interpreted) or "cuda"."""
    return Interpreter


def specialise(launch: Any, arch: int) -> tuple[Any, Any, Any]:
    """Return (ASTSource, target, options) exactly as a launch on that GPU would make them."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import create_function_from_signature

    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    fn = launch.fn
    binder = create_function_from_signature(fn.signature, fn.params, backend)
    kwargs = {"debug": False, **launch.kwargs}
    bound, found, _ = binder(*launch.args, **kwargs)
    options, signature, constexprs, attrs = fn._pack_args(backend, kwargs, bound, found, {})
    return ASTSource(fn, signature, constexprs, attrs), target, options.__dict__


@pytest.fixture(scope="session")
def specialised() -> Callable[[Any, int], tuple[Any, Any, Any]]:
    """The function that specialises a launch for a target."""
    return specialise


@pytest.fixture
def compile_for(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any, int], Any]:
    """A function that compiles a launch for a target, through a cache of this session's own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))

    def run(launch: Any, arch: int) -> Any:
        import triton

        source, target, options = specialise(launch, arch)
        return triton.compile(source, target=target, options=options)

    return run
