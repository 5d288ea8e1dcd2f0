"""Recorded landscapes: read whole, or refused with the line that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rubin_tune.db.landscape import read_landscape
from rubin_tune.errors import CorruptFile
from rubin_tune.search_spaces import Unit

SHARED = Path(__file__).parents[2] / "../shared/data/landscapes"
HEADER: dict[str, Any] = {
    "kind": "header", "shape": "m", "E": 4, "H": 256, "I": 128, "topk": 2, "global_E": 8,
    "dtype": "fp8", "gpu": "NVIDIA H200", "triton": "3.6.0", "torch": "2.11.0",
    "grid": {"BLOCK_SIZE_M": [16, 32], "BLOCK_SIZE_N": [64], "BLOCK_SIZE_K": [128],
             "GROUP_SIZE_M": [1], "num_warps": [4], "num_stages": [3]},
    "Ms": [16],
}  # fmt: skip
ROW: dict[str, Any] = {
    "g": 1, "M": 16, "c": [16, 64, 128, 1, 4, 3], "sh": 1000, "ct": 0.5, "regs": 90, "spill": 0,
    "lat": 0.1, "t": [10.0, 11.0, 12.0],
}  # fmt: skip


def write(path: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_rows_come_back_in_our_spelling(tmp_path: Path, name: str) -> None:
    failed = {**{k: v for k, v in ROW.items() if k not in ("t", "regs", "spill", "lat")}, "g": 2}
    found = read_landscape(write(tmp_path / name, HEADER, ROW, {**failed, "st": "out of memory"}))
    first, second = found.rows
    assert (first.unit, first.tokens, first.config["block_m"]) == (Unit.GATE_UP, 16, 16)
    assert first.samples_us == (10.0, 11.0, 12.0)
    assert (second.unit, second.samples_us, second.status) == (Unit.DOWN, (), "out of memory")
    assert found.tokens == (16,)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"t": [1.0, -1.0]}, 2), ({"t": [float("nan")]}, 2), ({"t": "fast"}, 2), ({"g": 3}, 2),
        ({"M": 0}, 2), ({"M": "16"}, 2), ({"c": [16, 64]}, 2), ({"c": [16, 64, 128, 1, 4, "x"]}, 2),
        ({"sh": -1}, 2),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named_by_its_line(
    tmp_path: Path, change: dict[str, Any], line: int
) -> None:
    path = write(tmp_path / "a.jsonl", HEADER, {**ROW, **change})
    with pytest.raises(CorruptFile, match=f"line {line}"):
        read_landscape(path)


@pytest.mark.parametrize("missing", ["shape", "E", "H", "I", "topk", "dtype", "grid", "Ms"])
def test_a_header_that_lacks_a_key_is_refused(tmp_path: Path, missing: str) -> None:
    header = {k: v for k, v in HEADER.items() if k != missing}
    with pytest.raises(CorruptFile, match="line 1"):
        read_landscape(write(tmp_path / "a.jsonl", header, ROW))


@pytest.mark.parametrize("lines", [(), ("",), ("{",), ("[]",), (ROW,), ("\x00",)])
def test_what_is_no_landscape_is_refused(tmp_path: Path, lines: tuple[object, ...]) -> None:
    with pytest.raises(CorruptFile):
        read_landscape(write(tmp_path / "a.jsonl", *lines))


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", HEADER, *([ROW] * 500))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFile):
        read_landscape(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"nothing\.jsonl"):
        read_landscape(tmp_path / "nothing.jsonl")


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_recorded_landscapes_are_read_whole(dtype: str) -> None:
    found = read_landscape(SHARED / f"h200-vllm-fused-moe-qwen3-30b-a3b-{dtype}.jsonl.gz")
    assert found.tokens == (16, 128, 1024, 8192)
    assert {r.unit for r in found.rows} == {Unit.GATE_UP, Unit.DOWN}
    assert sum(bool(r.samples_us) for r in found.rows) > 3000
