"""megamoe cross-compiled for four GPUs, none of which is here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from rubin_tune.kernels.megamoe import PROVIDES
from rubin_tune.search_spaces import (
    GEMMS,
    LaunchConfig,
    Layout,
    MoEShape,
    Problem,
    Routing,
    Unit,
    load_model,
)

pytestmark = pytest.mark.compile

ARCHS = (90, 100, 103, 107)
PAIRS = (
    ("bf16", "bf16", 0),
    ("fp8_block128", "fp8_block128", 64),
    ("mxfp4", "mxfp8", 32),
    ("mxfp4", "bf16", 0),
)
NAMES = [f"{weights}x{activations}" for weights, activations, _ in PAIRS]
TILES: tuple[dict[str, Any], ...] = (
    {"block_m": 128, "load": "pointers", "split": "none"},
    {"block_m": 128, "load": "tma", "split": "domains"},
    {"block_m": 16, "load": "pointers", "split": "domains", "swap_ab": True},
    {"block_m": 32, "load": "tma", "split": "none", "swap_ab": True},
    {"block_m": 128, "load": "tma", "split": "none", "schedule": "persistent", "num_warps": 8},
    {
        "block_m": 16,
        "load": "pointers",
        "split": "none",
        "swap_ab": True,
        "schedule": "persistent",
    },
)
TILE_NAMES = ["plain", "tma-split", "swap-split", "swap-tma", "persistent-tma", "persistent-swap"]
Compile = Callable[[Any, int], Any]


def problem_of(weights: str, activations: str) -> Problem:
    shape = MoEShape(
        model="test", experts=64, top_k=8, hidden=2048, intermediate=768,
        weights=weights, activations=activations,
    )  # fmt: skip
    return Problem(shape=shape, layout=Layout(), routing=Routing(kind="uniform"), tokens=64)


def config_of(pair: tuple[str, str, int], **changes: Any) -> LaunchConfig:
    base = LaunchConfig.of(
        block_n=128, block_k=128 if pair[0] == "mxfp4" else 64, num_warps=4, num_stages=3,
        group_m=1, swap_ab=False, act_group=pair[2],
    )  # fmt: skip
    return base.replace(**changes)


def compiled(
    compile_for: Compile, pair: tuple[str, str, int], unit: Unit, arch: int, **changes: Any
) -> Any:
    problem = problem_of(*pair[:2])
    inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
    (launch,) = PROVIDES.launches(problem, unit, config_of(pair, **changes), inputs)
    return compile_for(launch, arch)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
@pytest.mark.parametrize("tile", TILES, ids=TILE_NAMES)
def test_every_structure_compiles_to_tensor_core_code_of_its_gpu(
    compile_for: Compile, tile: dict[str, Any], pair: tuple[str, str, int], arch: int
) -> None:
    instruction = "wgmma.mma_async" if arch == 90 else "tcgen05.mma"
    for unit in GEMMS:
        kernel = compiled(compile_for, pair, unit, arch, **tile)
        assert instruction in kernel.asm["ptx"]
        assert ("cp.async.bulk.tensor" in kernel.asm["ptx"]) == (tile["load"] == "tma")
        assert ("%smid" in kernel.asm["ptx"]) == (tile["split"] == "domains")


@pytest.mark.parametrize("tokens", [64, 4096])
@pytest.mark.parametrize("arch", ARCHS)
def test_glue_compiles_and_touches_memory_only_after_the_launch_before(
    compile_for: Compile, arch: int, tokens: int
) -> None:
    pair = PAIRS[2]
    problem = problem_of(*pair[:2]).at(tokens)
    inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
    config = config_of(pair, block_m=16, load="tma", split="none")
    for launch in PROVIDES.launches(problem, Unit.GLUE, config, inputs):
        kernel = compile_for(launch, arch)
        assert kernel.asm["cubin"]
        assert waits_first(kernel.asm["ptx"])


@pytest.mark.parametrize("tile", TILES, ids=TILE_NAMES)
@pytest.mark.parametrize("arch", [90, 107])
def test_gemms_touch_memory_only_after_the_launch_before(
    compile_for: Compile, tile: dict[str, Any], arch: int
) -> None:
    for unit in GEMMS:
        assert waits_first(compiled(compile_for, PAIRS[1], unit, arch, **tile).asm["ptx"])


def waits_first(ptx: str) -> bool:
    """Say whether every path waits for the launch before, then signals, then touches device memory."""
    begin = ptx.index("griddepcontrol.wait")
    signal = ptx.index("griddepcontrol.launch_dependents")
    memory = re.search(r"\b((ld|st|atom|red|prefetch)\.\S*global|cp\.async)", ptx)
    assert memory is not None
    # No branch may lead around the wait.
    return begin < signal < memory.start() and "bra" not in ptx[:begin].split("{", 1)[1]


@pytest.mark.parametrize("unit", GEMMS, ids=lambda unit: unit.value)
@pytest.mark.parametrize("block_m", [16, 64])
def test_packed_fp4_halves_weight_stages_and_doubles_the_instruction_on_sm_107(
    compile_for: Compile, block_m: int, unit: Unit
) -> None:
    tile = {"block_m": block_m, "swap_ab": True, "load": "pointers", "split": "none"}

    def stage_and_mmas(arch: int) -> tuple[int, int]:
        deep = compiled(compile_for, PAIRS[2], unit, arch, num_stages=5, **tile)
        flat = compiled(compile_for, PAIRS[2], unit, arch, num_stages=4, **tile)
        mmas = len(re.findall(r"tcgen05\.mma\S*mxf8f6f4", flat.asm["ptx"]))
        return deep.metadata.shared - flat.metadata.shared, mmas

    (old, old_mmas), (new, new_mmas) = stage_and_mmas(103), stage_and_mmas(107)
    # The weight stage is 128 x 128 elements: a byte each padded, half a byte packed.
    assert old - new == 128 * 128 // 2
    assert old_mmas == 2 * new_mmas > 0


@pytest.mark.parametrize("unit", GEMMS, ids=lambda unit: unit.value)
def test_the_default_of_deepseek_v41_flash_compiles_for_vr200(
    compile_for: Compile, unit: Unit
) -> None:
    from rubin_tune.topology import load_gpu

    shape = load_model("deepseek-v4.1-flash")
    problem = Problem(
        shape=shape, layout=Layout(kind="dep", ranks=2), routing=Routing(kind="uniform"), tokens=8
    )
    inputs = PROVIDES.make_inputs(problem, device="meta", seed=0)
    config = PROVIDES.default(problem, unit, load_gpu("vr200"))
    (launch,) = PROVIDES.launches(problem, unit, config, inputs)
    kernel = compile_for(launch, 107)
    assert "mxf8f6f4" in kernel.asm["ptx"]
    assert kernel.metadata.shared <= load_gpu("vr200").shared_memory_limit("oversized")
