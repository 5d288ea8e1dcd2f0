"""A command line in a folder of its own, and a small recorded landscape."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rubin_tune.cli import main

GRID = {
    "BLOCK_SIZE_M": [16, 64],
    "BLOCK_SIZE_N": [64, 128],
    "BLOCK_SIZE_K": [64, 128],
    "GROUP_SIZE_M": [1, 16],
    "num_warps": [4, 8],
    "num_stages": [3, 4],
}
HEADER = {
    "kind": "header", "shape": "qwen3-30b-a3b", "E": 128, "H": 2048, "I": 768, "topk": 8,
    "global_E": 128, "dtype": "fp8", "gpu": "NVIDIA H200", "triton": "3.6.0", "torch": "2.11.0",
    "grid": GRID, "Ms": [16, 1024],
}  # fmt: skip

Run = Callable[..., Result]


def time_of(gemm: int, tokens: int, config: tuple[int, ...]) -> float:
    """A landscape with one optimum a token count: small tiles for few tokens, large for many."""
    block_m, block_n, block_k, group_m, warps, stages = config
    wanted = 16 if tokens < 100 else 64
    slow = 1.0 + (block_m != wanted) + 0.1 * (block_n == 64) + 0.05 * (block_k == 64)
    slow += 0.02 * (group_m == 16) + 0.03 * (warps == 8) + 0.01 * (stages == 3)
    return (100.0 if gemm == 1 else 60.0) * (tokens / 16) ** 0.5 * slow


@pytest.fixture
def landscape(tmp_path: Path) -> Path:
    """Write a recorded landscape; four points failed."""
    path = tmp_path / "landscape.jsonl.gz"
    lines = [json.dumps(HEADER)]
    for gemm, tokens in itertools.product((1, 2), (16, 1024)):
        for number, config in enumerate(itertools.product(*GRID.values())):
            row = {"g": gemm, "M": tokens, "c": list(config), "sh": 40960, "ct": 1.0}
            if number == 3:
                row |= {"st": "compile error"}
            else:
                base = time_of(gemm, tokens, config)
                row |= {"regs": 100, "spill": 0, "lat": 0.1, "t": [base, base * 1.01, base * 0.99]}
            lines.append(json.dumps(row))
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder with its own database and cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUBIN_TUNE_DB", str(tmp_path / "trials.sqlite"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(main, ["-q", *words])

    return invoke
