"""Our kernels inside transformers, beside its own: `python -m benchmarks.transformers_moe --help`.

A Qwen3-MoE of real width (qwen3-30b-a3b: hidden 2048, 128 experts of width 768, top-8) with few layers and
random weights generates 64 tokens and prefills 4096 with each experts implementation: rubin_tune,
grouped_mm and eager. First their logits are compared with the same model in float32, then each is timed:
medians of interleaved rounds, weights re-laid and everything compiled and planned before the clock starts.
Exit code 1 when an implementation's logits are off.

    python -m benchmarks.transformers_moe --json transformers.json
    python -m benchmarks.transformers_moe --table tables/megamoe-qwen3-30b-a3b-single-bf16-sm_90.json
    python -m benchmarks.transformers_moe --device cpu --tiny        # checks this program; no GPU

Needs transformers >= 5 (a machine that lacks it gets it with its needs as wheels for its Python, cp312 and
manylinux: transformers, huggingface_hub, tokenizers, safetensors, regex, pyyaml, tqdm, packaging, filelock,
fsspec, hf_xet, httpx, typer, typing_extensions).

How far logits may be off. Routes are taken from the float32 model everywhere: a router's near tie that
falls the other way is no error of the experts. What is left is rounding. Rounding to bf16 moves a number by
at most 2^-8 of itself, 2^-8 / sqrt(3) in the root mean square. On its way through a layer a row is rounded at
most 28 times: 11 in attention (norm 2, projection 1, head norms 2, rotation 3, attention 1, output 1, residual
1) and 17 in the experts (norm 2, gate_up 1, silu 1, product 1, down 1, weight 1, its product 1, sum of eight 8,
residual 1); 3 times after the last. Those errors are independent, keep their relative size through random
matrices, and norms divide by the row's own size: N roundings leave sqrt(N) 2^-8 / sqrt(3) of a row's 2-norm.
SiLU's slope of up to 1.1 and the worst of some thousand rows are covered by a factor 2. So a row of logits
may be 2 sqrt(28 layers + 3) 2^-8 / sqrt(3) off: 4.8 % with 4 layers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

IMPLEMENTATIONS = ("rubin_tune", "grouped_mm", "eager")


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.transformers_moe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--json", type=Path, metavar="OUT", help="also write the result as JSON")
    found.add_argument("--table", metavar="FILE or URL", help="winners [default: own configs]")
    found.add_argument("--layers", type=int, default=4, help="[default: 4]")
    found.add_argument("--prefill", type=int, help="tokens [default: 4096]")
    found.add_argument("--generate", type=int, help="tokens [default: 64]")
    found.add_argument("--rounds", type=int, default=7, help="[default: 7]")
    found.add_argument(
        "--calls", type=int, default=20, help="of a layer's experts alone [default: 20]"
    )
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    found.add_argument("--tiny", action="store_true", help="a model that an interpreter can run")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options, compare, time, print; return the exit code."""
    asked = parser().parse_args(arguments)
    if asked.device == "cpu" and not asked.tiny:
        parser().error("--device cpu runs in Triton's interpreter: give --tiny too")
    if asked.device == "cpu":
        # Must be set before triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    # Imported here: the variable is read when triton is imported.
    from . import _transformers_run

    return _transformers_run.run(asked)


if __name__ == "__main__":
    sys.exit(main())
