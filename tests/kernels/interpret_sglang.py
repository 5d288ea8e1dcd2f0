"""Runs and compiles SGLang's own kernel as we launch it; prints JSON. Started by test_sglang_fused_moe.py.

The kernel's file is the real one; what it imports of the engine, for other paths than ours, is replaced.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import types
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

os.environ["TRITON_INTERPRET"] = "1"

KERNEL = "sglang.kernels.ops.moe.fused_moe_triton_kernels"


def replace_imports() -> None:
    """Put packages without their __init__, and empty stand-ins, where the kernel's file imports from."""
    spec = find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    parts = KERNEL.split(".")
    for end in range(1, len(parts)):
        package = types.ModuleType(".".join(parts[:end]))
        package.__path__ = [str(root.joinpath(*parts[1:end]))]
        sys.modules[package.__name__] = package
    text = root.joinpath(*parts[1:]).with_suffix(".py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang"):
            module = sys.modules.setdefault(str(node.module), types.ModuleType(str(node.module)))
            for alias in node.names:
                stand_in = MagicMock() if alias.name == "envs" else lambda *_, **__: False
                setattr(module, alias.name, stand_in)
    importlib.import_module(KERNEL)


def main() -> None:
    """Verify both GEMMs in fp8: the interpreter multiplies bf16 wrongly."""
    replace_imports()
    from rubin_tune.kernels.sglang_fused_moe import PROVIDES
    from rubin_tune.search_spaces import GEMMS, Layout, MoEShape, Problem, parse_routing
    from rubin_tune.topology import load_gpu

    shape = MoEShape(
        model="test", experts=5, top_k=2, hidden=256, intermediate=128,
        weights="fp8_block128", activations="fp8_block128",
    )  # fmt: skip
    problem = Problem(shape=shape, layout=Layout(), routing=parse_routing("uniform"), tokens=13)
    for unit in GEMMS:
        config = PROVIDES.default(problem, unit, load_gpu("h200"))
        # Tiles of fewer rows, which the engine swaps on Hopper, are none to triton 3.9: it indexes a scalar.
        for changes in ({}, {"block_n": 256, "block_k": 64, "group_m": 1}):
            error = PROVIDES.verify(problem, unit, config.replace(**changes), device="cpu", seed=0)
            print(json.dumps({"error": error, "tolerance": PROVIDES.tolerance(problem, unit)}))


if __name__ == "__main__":
    main()
