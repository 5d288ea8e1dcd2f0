"""`python -m benchmarks.transformers_moe` on a tiny model, interpreted: it compares, times and writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.end_to_end
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_tiny_model_is_compared_and_timed(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = {"layers": 1, "rounds": 1, "prefill": 6, "generate": 2, "calls": 1}
    words = [f"--{name}={value}" for name, value in {"device": "cpu", **small}.items()]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.transformers_moe", *words, "--tiny", f"--json={out}"],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(("src", *(p for p in sys.path if p)))},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert set(found["times"]) == {"rubin_tune", "grouped_mm", "eager"} == set(found["agreement"])
    for row in found["agreement"].values():
        assert 0 < row["median_error"] <= row["error"] <= found["bound"]
    for works in found["times"].values():
        assert all(work["median_ms"] > 0 for work in works.values())
    assert "interpreted" in found["machine"]["device"]
