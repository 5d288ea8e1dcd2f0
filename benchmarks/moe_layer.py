"""Our MoE layer beside its peers on one GPU: `python -m benchmarks.moe_layer --help`.

Every contender reads the same tokens, routings and weights; outputs are compared with float64 and
with ours before anything is timed. Times are of CUDA graphs over rotated inputs, in interleaved
rounds of one process. What others were recorded to take is printed as recorded and never enters a
ratio between measured times. Exit code 1 when a contender was wrong or failed.

    python -m benchmarks.moe_layer --db winners.sqlite --out layer.json
    python -m benchmarks.moe_layer --device cpu --tiny       # checks this program; no GPU
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.moe_layer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument(
        "--only", nargs="+", default=[], metavar="WORD",
        help="regimes whose names hold one of these words (qwen3-bf16, v4-flash-fp8-ep8/8192, ...)",
    )  # fmt: skip
    found.add_argument("--list", action="store_true", help="print the regimes' names and stop")
    found.add_argument(
        "--db", metavar="URL or FILE",
        help="database or exported table with winners; without it a short sweep finds some",
    )  # fmt: skip
    found.add_argument(
        "--trials", type=int,
        help="variants a GEMM of a sweep where exact winners are lacking, 0 = no sweep "
        "[default: 32, with --db 0]",
    )  # fmt: skip
    found.add_argument("--routing", default="uniform", help="[default: as the peers' tables]")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--out", type=Path, help="JSON, written anew after each regime")
    found.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    found.add_argument(
        "--tiny", action="store_true", help="small layers that an interpreter can run"
    )
    found.add_argument("--cache-dir", type=Path, help="compiled variants [default: a new folder]")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options, measure, print; return the exit code."""
    asked = parser().parse_args(arguments)
    if asked.device == "cpu" and not asked.tiny:
        parser().error("--device cpu runs in Triton's interpreter: give --tiny too")
    if asked.device == "cpu":
        # Must be set before triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    with tempfile.TemporaryDirectory() as made:
        cache_dir = asked.cache_dir or Path(made)
        if asked.device == "cuda":
            os.environ["TRITON_CACHE_DIR"] = str(cache_dir / "triton")
        # Imported here: both variables are read when triton is imported.
        from . import _layer_session

        return _layer_session.run(asked, cache_dir)


if __name__ == "__main__":
    sys.exit(main())
