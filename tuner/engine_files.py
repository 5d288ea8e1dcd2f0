"""Which file of a tuned table each rank of an engine asks for, and which of its rows it takes.

Engines find a table by its file's name alone, and take the row whose token count is nearest by
difference (facts: vLLM 0.33 and SGLang 0.5.23 alike); the names are those of db/formats/ENGINE.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

from ..db import Winner
from ..errors import ExportRefused, InvalidInput
from ..kernels._kernel import Kernel
from ..registry import load
from ..registry import names as offered
from ..search_spaces import VLLM_LADDER, Problem
from ..topology import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFile:
    """What some ranks of an engine ask for.

    Attributes:
        ranks: Of the group that shares the layer.
        experts: Experts on each of them, the E of the file's name.
        file: Its name, with the folder that the engine expects it in where it expects one.
        key: The row that it takes at the asked token count, as the file spells it.
        what: Whose row that is.
    """

    ranks: tuple[int, ...]
    experts: int
    file: str
    key: str
    what: str


def engine_files(
    engine: str,
    kernel: Kernel,
    problem: Problem,
    gpu: Gpu,
    *,
    row: Winner | None,
    tuned: Sequence[int],
    device_name: str | None,
) -> list[EngineFile]:
    """Return what each rank asks for at the problem's token count.

    Args:
        engine: A format whose kernel is an engine's.
        kernel: Must be that engine's kernel.
        problem: The layer, its layout and the token count.
        gpu: What it runs on.
        row: A winner; its silicon's name is the driver's where it was measured.
        tuned: Token counts that have a winner; the others of the ladder are the engine's default.
        device_name: The GPU's name as the driver says it; None = from the row.

    Raises:
        InvalidInput: no such engine, or no GPU's name is known.
        ExportRefused: the kernel is not the engine's, or the engine reads no such table.
    """
    if engine not in offered("db.formats"):
        raise InvalidInput(f"unknown engine {engine!r}: known are {', '.join(_engines())}")
    module = _module(engine)
    file_name: Callable[..., str] | None = getattr(module, "file_name", None)
    if file_name is None:
        raise InvalidInput(f"format {engine!r} is no engine's table: name vllm or another engine")
    if not _reads(kernel, engine):
        raise ExportRefused(
            f"{engine} reads no table for kernel {kernel.name!r}: explain the engine's own kernel"
        )
    device = _device(device_name, row, gpu)
    # SGLang has a second table for the second GEMM.
    twice = "down" in signature(file_name).parameters
    names = [
        file_name(problem, device),
        *([file_name(problem, device, down=True)] if twice else []),
    ]
    folder = _folder(module, row)
    ladder = sorted({*VLLM_LADDER, *tuned})
    key = min(ladder, key=lambda count: abs(count - problem.tokens))
    what = "a winner's row" if key in tuned else "the engine's own default, pinned by export"
    return [
        EngineFile(
            ranks=ranks,
            experts=experts,
            # Both engines' names begin with the experts of the rank that asks.
            file=folder + re.sub(r"^E=\d+", f"E={experts}", name),
            key=str(key),
            what=what,
        )
        for experts, ranks in _ranks(problem).items()
        for name in names
    ]


def _engines() -> list[str]:
    return [name for name in offered("db.formats") if hasattr(_module(name), "file_name")]


def _module(engine: str) -> ModuleType:
    return import_module(type(load("db.formats", engine)).__module__)


def _ranks(problem: Problem) -> dict[int, tuple[int, ...]]:
    """Return ranks by the number of their experts; the first ones have one more where some do."""
    layout, experts = problem.layout, problem.shape.experts
    each, more = divmod(experts, layout.expert_ranks)
    own = [each + (rank < more) for rank in range(layout.expert_ranks)]
    if layout.expert_ranks == 1:
        own = [experts] * layout.ranks
    return {n: tuple(rank for rank, has in enumerate(own) if has == n) for n in dict.fromkeys(own)}


def _reads(kernel: Kernel, engine: str) -> bool:
    return kernel.serves_engine == engine


def _device(given: str | None, row: Winner | None, gpu: Gpu) -> str:
    measured = "" if row is None or row.silicon.name == gpu.title else row.silicon.name
    if given or measured:
        return given or measured
    raise InvalidInput(
        f"the GPU's name as its driver says it is not known (ours is {gpu.title!r}): give what "
        "nvidia-smi says with --device-name, such as 'NVIDIA H200'"
    )


def _folder(module: Any, row: Winner | None) -> str:
    folder_name: Callable[[Winner], str] | None = getattr(module, "folder_name", None)
    return "" if folder_name is None or row is None else f"configs/{folder_name(row)}/"
