"""Kernels that are wrong in one place each: every one must be refused by `verify`.

Each is the source of megamoe with one text replaced. Runs on the GPU where there is one, else in Triton's
interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

GEMM, GLUE, PLAN = "_megamoe_gemm.py", "_megamoe_glue.py", "_megamoe_plan.py"
CONFIG: dict[str, Any] = {
    "block_m": 16, "block_n": 128, "block_k": 64, "num_warps": 4, "num_stages": 2, "group_m": 1,
    "swap_ab": False, "load": "pointers", "split": "none", "act_group": 0,
}  # fmt: skip
SHAPE: dict[str, Any] = {
    "experts": 4, "top_k": 2, "hidden": 128, "intermediate": 128, "weights": "bf16", "activations": "bf16",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is verified: one unit or the layer on a small shape."""

    unit: str
    shape: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def words(self) -> dict[str, Any]:
        """Return it as interpret.py reads it."""
        return {
            "unit": self.unit,
            "shape": {**SHAPE, **self.shape},
            "config": {**CONFIG, **self.config},
            "tokens": 9,
        }


FP8 = {"weights": "fp8_block128", "activations": "fp8_block128"}
MX = {"weights": "mxfp4", "activations": "mxfp8"}
OSS = {"kind": "swiglu", "alpha": 1.702, "limit": 7.0, "up_shift": 1.0}
CASES = {
    "gate_up": Case("gate_up"),
    "ragged": Case("gate_up", {"hidden": 160}),
    "ragged down": Case("down", {"hidden": 144}, {"block_n": 64}),
    "fp8": Case("gate_up", {**FP8, "hidden": 384}, {"act_group": 64}),
    "fp8 narrow tiles": Case("gate_up", FP8, {"act_group": 32, "block_n": 64}),
    "fp8 down": Case(
        "down", {**FP8, "hidden": 256, "intermediate": 256}, {"act_group": 64, "block_n": 256}
    ),
    "mx": Case("gate_up", {**MX, "hidden": 256}, {"act_group": 32, "block_k": 128}),
    "gpt-oss": Case("gate_up", {"activation": OSS, "biases": True}),
    "swapped": Case("gate_up", {}, {"swap_ab": True}),
    "persistent": Case("gate_up", {}, {"schedule": "persistent"}),
    "domains": Case("down", {"hidden": 256}, {"split": "domains", "block_n": 64}),
    "bands": Case("gate_up", {}, {"group_m": 4}),
    "layer": Case("layer", {"routed_scaling_factor": 2.5}),
    "layer, permuted": Case("layer", {}, {"load": "tma"}),
    "weight on input": Case("layer", {"weight_on_input": True}),
}

K_LOOP = "for step in range(0, tl.cdiv(k, BLOCK_K)):"
COMBINE_LOOP = """    for slot in tl.static_range(TOP_K):
        row = tl.load(inverse + token * TOP_K + slot)
        place = rows"""
COMBINE_STORE = "    tl.store(place, to_bf16(total * factor), mask=columns < live_width)\n"
INTO_THE_NEXT_TOKEN = """
    next_live = tl.where(token + 1 < tl.load(live_tokens), width, 0)
    tl.store(place + width, to_bf16(total), mask=columns < next_live)
"""
LIVE_COLUMNS = "live = row_live[:, None] & (columns < n)[None, :]"

# Name: (case, file, what is replaced, by what).
WRONG: dict[str, tuple[str, str, str, str]] = {
    "skips the tail of k": ("ragged", GEMM, K_LOOP, "for step in range(0, k // BLOCK_K):"),
    "skips the first step of k": (
        "gate_up", GEMM, K_LOOP, "for step in range(1, tl.cdiv(k, BLOCK_K)):",
    ),
    "loses the partial sums": (
        "fp8", GEMM, "acc += tl.dot(x_tile, w_tile.T) * scale", "acc = tl.dot(x_tile, w_tile.T) * scale",
    ),
    "reads rows past their end": (
        "ragged", GEMM, "x_tile = tl.load(x_places + k0, mask=(k0 + ks < k)[None, :], other=0.0)",
        "x_tile = tl.load(x_places + k0)",
    ),
    "reads weights past their end": (
        "ragged", GEMM, "w_tile = tl.load(w_places + k0, mask=w_live, other=0.0)",
        "w_tile = tl.load(w_places + k0)",
    ),
    "keeps the first scale of a row": (
        "fp8", GEMM, "xs = tl.load(x_scales + k0 // X_GROUP)", "xs = tl.load(x_scales)",
    ),
    "takes the next group's scale": (
        "fp8 down", GEMM, "xs = tl.load(x_scales + k0 // X_GROUP)",
        "xs = tl.load(x_scales + (k0 // X_GROUP + 1) % (k // X_GROUP))",
    ),
    "keeps the first scale of the weights": (
        "fp8", GEMM, "s0 = tl.load(s0_places + k0 // 128)", "s0 = tl.load(s0_places)",
    ),
    "scales up by gate's scales": (
        "fp8", GEMM, "s1_places = s0_places + blocks * k_blocks", "s1_places = s0_places",
    ),
    "scales a block by its neighbour's scale": (
        "fp8 down", GEMM, "tl.minimum(column0 // 128 + 1, blocks - 1)", "column0 // 128",
    ),
    "scales by the first expert's scales": (
        "fp8 down", GEMM, "w_scale + (expert * blocks + column0 // 128) * k_blocks",
        "w_scale + (column0 // 128) * k_blocks",
    ),
    "keeps the first mx scale": (
        "mx", GEMM, "ws = tl.load(ws_places + k0 // 32)\n            else", 
        "ws = tl.load(ws_places)\n            else",
    ),
    "rounds mx scales down": ("mx", GEMM, "(bits + 0x7FFFFF) >> 23", "bits >> 23"),
    "quantises by the largest, not by the largest of size": (
        "fp8", GEMM, "amax = tl.max(tl.abs(groups), axis=2)", "amax = tl.max(groups, axis=2)",
    ),
    "stores every tile's scales at the row's start": (
        "fp8 narrow tiles", GEMM, "index = column0 // GROUP + tl.arange(0, COLUMNS // GROUP)",
        "index = tl.arange(0, COLUMNS // GROUP)",
    ),
    "groups scales as the other GEMM does": (
        "fp8 down", PLAN, '"X_GROUP": x_group(problem) if gate_up else group,',
        '"X_GROUP": x_group(problem),',
    ),
    "takes the expert of the tile before": (
        "gate_up", GEMM, "expert = tl.load(tile_expert + pid_m)",
        "expert = tl.load(tile_expert + tl.maximum(pid_m, 1) - 1)",
    ),
    "swaps gate and up": ("gate_up", GEMM, "gate, up = tl.split(", "up, gate = tl.split("),
    "adds the first expert's bias": (
        "gpt-oss", GEMM, "tl.load(bias + w_rows)", "tl.load(bias + w_rows - expert * n)",
    ),
    "drops alpha": ("gpt-oss", GEMM, "tl.sigmoid(ALPHA * gate)", "tl.sigmoid(gate)"),
    "does not limit the gate": ("gpt-oss", GEMM, "gate = tl.minimum(gate, LIMIT)", "gate = gate"),
    "limits up on one side": (
        "gpt-oss", GEMM, "tl.minimum(tl.maximum(up, -LIMIT), LIMIT)", "tl.minimum(up, LIMIT)",
    ),
    "forgets what is added to up": ("gpt-oss", GEMM, "hot * (up + SHIFT)", "hot * up"),
    "leaves an expert's last row unwritten": (
        "gate_up", GEMM, "row_live = rows < row_end", "row_live = rows < row_end - 1",
    ),
    "writes one row more": ("gate_up", GEMM, "row_live = rows < row_end", "row_live = rows <= row_end"),
    "writes one column more": (
        "ragged down", GEMM, LIVE_COLUMNS, LIVE_COLUMNS.replace("< n", "< n + 1"),
    ),
    "takes the row before in the permutation": (
        "gate_up", GEMM, "tl.load(routes + source) // TOP_K",
        "tl.load(routes + tl.maximum(source, 1) - 1) // TOP_K",
    ),
    "does not transpose a swapped tile": (
        "swapped", GEMM, "acc = tl.trans(acc)", "acc = tl.reshape(acc, (BLOCK_M, BLOCK_N))",
    ),
    "stops before the last tile": (
        "persistent", GEMM, "tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0)",
        "tl.program_id(0), tiles_m * tiles_n - 1, tl.num_programs(0)",
    ),
    "computes the first half of the columns twice": (
        "domains", GEMM, "            pid_n += which * first\n", "",
    ),
    "leaves its counters behind": (
        "domains", GEMM, "        tl.atomic_xchg(tickets + 1, 0)\n", "",
    ),
    "walks over the edge of the last band": (
        "bands", GEMM, "band * GROUP_M + within % height, within // height",
        "band * GROUP_M + within % GROUP_M, within // GROUP_M",
    ),
    "drops the last expert": (
        "layer", GLUE, "tl.store(live_tiles, first + own)", "tl.store(live_tiles, first)",
    ),
    "shifts rows by one": (
        "layer", GLUE, "rows = row + tl.cumsum(mine, 0) - 1", "rows = row + tl.cumsum(mine, 0)",
    ),
    "quantises the token before": (
        "layer, permuted", GLUE, "place = x + token.to(tl.int64) * width",
        "place = x + tl.maximum(token - 1, 0).to(tl.int64) * width",
    ),
    "ignores the routed weights": (
        "layer", GLUE, "value * tl.load(weights + token * TOP_K + slot)", "value * 1.0",
    ),
    "takes the first slot's weight for all": (
        "layer", GLUE, "tl.load(weights + token * TOP_K + slot)", "tl.load(weights + token * TOP_K)",
    ),
    "applies routed weights twice": (
        "weight on input", PLAN, '"WEIGHTED": not problem.shape.weight_on_input', '"WEIGHTED": True',
    ),
    "ignores routed weights on the input": (
        "weight on input", GEMM, "acc = acc * tl.load(row_weights + route)[:, None]", "acc = acc * 1.0",
    ),
    "combines one slot too few": (
        "layer", GLUE, COMBINE_LOOP, COMBINE_LOOP.replace("(TOP_K)", "(TOP_K - 1)"),
    ),
    "forgets the layer's factor": ("layer", GLUE, "to_bf16(total * factor)", "to_bf16(total)"),
    "leaves tokens without local experts unwritten": (
        "layer", GLUE, COMBINE_STORE, COMBINE_STORE.replace("live_width)", "read_width)"),
    ),
    "combines rows of other ranks": (
        "layer", GLUE, "read_width = tl.where(row >= 0, live_width, 0)", "read_width = live_width",
    ),
    "races on combine": ("layer", GLUE, COMBINE_STORE, COMBINE_STORE + INTO_THE_NEXT_TOKEN),
}  # fmt: skip

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run(start_kernels: Callable[[str], Any]) -> Iterator[Run]:
    """Run a case on the device there is; a process that a kernel broke is replaced."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    process = start_kernels(device)

    def ask(command: str, **case: Any) -> dict[str, Any]:
        nonlocal process
        answer: dict[str, Any] = process.ask(command, **case)
        if "failed" in answer and device == "cuda":
            process.close()
            process = start_kernels(device)
        return answer

    yield ask
    process.close()


@pytest.mark.parametrize("name", CASES)
def test_the_right_kernel_is_accepted(run: Run, name: str) -> None:
    answer = run("verify", **CASES[name].words())
    assert answer.get("failed", "") == ""
    assert answer["why"] == ""
    assert answer["error"] <= answer["tolerance"]


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_is_refused_that(run: Run, name: str) -> None:
    case, file, old, new = WRONG[name]
    answer = run("wrong", **CASES[case].words(), file=file, old=old, new=new)
    if torch.cuda.is_available() and "CUDA error" in answer.get("failed", ""):
        return  # a sweep marks it as a crash and replaces its process
    assert answer.get("failed", "") == ""
    # Twice: so that no wrong kernel is refused by a hair, and another seed would let it through.
    assert answer["error"] > 2 * answer["tolerance"]


def test_races_and_what_is_left_behind_are_told_as_such(run: Run) -> None:
    for name in ("races on combine", "leaves its counters behind"):
        case, file, old, new = WRONG[name]
        answer = run("wrong", **CASES[case].words(), file=file, old=old, new=new)
        if not torch.cuda.is_available():
            # Programs that meet on a GPU may as well be wrong at once.
            assert answer["why"].startswith("gave other bits under another schedule")


@pytest.mark.parametrize(
    ("file", "comment"),
    [
        (GEMM, "# The largest finite"),
        (GLUE, "# Unrolled, so"),
        (PLAN, "# More SM ids"),
    ],
)
def test_a_change_of_a_comment_is_accepted(run: Run, file: str, comment: str) -> None:
    answer = run("wrong", **CASES["layer"].words(), file=file, old=comment, new=f"# {comment}")
    assert answer["error"] <= answer["tolerance"]


def test_there_are_enough_of_them() -> None:
    assert len(WRONG) >= 30
    assert len({(file, old, new) for _, file, old, new in WRONG.values()}) >= 30
