"""`fused_moe`: the Triton kernel that vLLM 0.33 launches, with that engine's semantics.

The kernel itself is the installed vLLM's: nothing of it stands here. Without vLLM its space, defaults and
floors still work, and a recorded landscape can be searched and exported.

Source: vLLM 0.33, vllm/model_executor/layers/fused_moe/fused_moe.py (facts, engines 1.1 and 2.1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..search_spaces import LaunchConfig, Problem, Space, Unit
from ..search_spaces import fused_moe as spaces
from ..topology import Gpu
from ._kernel import Launch, Work
from ._work import gemm_work, glue_work

if TYPE_CHECKING:  # torch costs seconds, and a recording needs none of it
    from ._fused_moe_inputs import Inputs

_MODULE = "vllm.model_executor.layers.fused_moe.fused_moe"


class FusedMoe:
    """vLLM's kernel: one config serves both GEMMs, weights are loaded through pointers."""

    name = "fused_moe"
    serves_engine = "vllm"

    def require(self, evaluator: str) -> None:
        """Refuse to compile or time where vLLM is not installed.

        Raises:
            InvalidInput: the evaluator needs the package.
        """
        if evaluator != "recorded" and find_spec("vllm") is None:
            raise InvalidInput(
                f"kernel 'fused_moe' with evaluator {evaluator!r} launches vLLM's own kernel, and vllm "
                "is not installed here: install it, or use --evaluator recorded:FILE"
            )

    def source_hash(self) -> str:
        """Return a hash of the engine's version, which fixes its source; "recorded" without it."""
        try:
            found = version("vllm")
        except PackageNotFoundError:
            found = "recorded"
        return hashlib.sha256(f"vllm {found} fused_moe_kernel".encode()).hexdigest()[:16]

    def units(self) -> tuple[Unit, ...]:
        """Both GEMMs."""
        return (Unit.GATE_UP, Unit.DOWN)

    def space(self, problem: Problem, unit: Unit, gpu: Gpu) -> Space:
        """The engine's grid, its clamps applied."""
        return spaces.space(problem, unit, gpu)

    def default(self, problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
        """What the engine launches without a table."""
        return spaces.default(problem, unit, gpu)

    def coupling(self, config: LaunchConfig) -> str:
        """One config for both GEMMs."""
        return config.key

    def glue(self, unit: Unit, config: LaunchConfig) -> str:
        """The engine's glue is the same for all."""
        return ""

    def work(self, problem: Problem, unit: Unit) -> Work:
        """Floors of the layer, whatever kernel runs it."""
        return glue_work(problem) if unit is Unit.GLUE else gemm_work(problem, unit)

    def make_inputs(self, problem: Problem, *, device: str, seed: int) -> Inputs:
        """Draw weights and activations in the engine's layout."""
        from ._fused_moe_inputs import make

        return make(problem, device=device, seed=seed)

    def rotate(self, inputs: Inputs, problem: Problem, *, seed: int) -> Inputs:
        """Draw activations and routing anew over the same weights."""
        from ._fused_moe_inputs import redraw

        device = inputs.topk_ids.device.type
        return redraw(inputs, problem, device=device, seed=seed)

    def launches(
        self, problem: Problem, unit: Unit, config: LaunchConfig, inputs: Inputs
    ) -> tuple[Launch, ...]:
        """Return the launch that the engine makes for one GEMM."""
        import torch

        weight, _ = inputs.weights[unit]
        routes = problem.tokens * problem.shape.top_k
        out = torch.empty(routes, 1, weight.shape[1], dtype=torch.bfloat16, device=weight.device)
        return (self._launch(problem, unit, config, inputs, out),)

    def layer(
        self, problem: Problem, configs: Mapping[Unit, LaunchConfig], inputs: Inputs
    ) -> tuple[Launch, ...]:
        """Return both GEMMs; the engine's glue is CUDA code of its own and is not launched here."""
        return tuple(
            launch
            for unit in self.units()
            for launch in self.launches(problem, unit, configs[unit], inputs)
        )

    def verify(
        self, problem: Problem, unit: Unit, config: LaunchConfig, *, device: str, seed: int
    ) -> float:
        """Compare one GEMM's rows with float64."""
        import torch

        from ._fused_moe_inputs import make, reference

        inputs = make(problem, device=device, seed=seed)
        expected = reference(problem, unit, inputs)
        routes, columns = expected.shape
        out = torch.full((routes, 1, columns), float("nan"), dtype=torch.bfloat16, device=device)
        self._launch(problem, unit, config, inputs, out).run()
        ours = out[:, 0].double()
        local = inputs.topk_ids.reshape(-1) >= 0
        difference = (ours - expected)[local].norm(dim=1) / expected[local].norm(dim=1)
        worst = difference.nan_to_num(nan=float("inf")).max().item() if local.any() else 0.0
        return float(worst)

    def tolerance(self, problem: Problem, unit: Unit) -> float:
        """bf16 outputs round to 2^-9; the float32 accumulation over K adds less than as much again."""
        return 2.0**-7

    def _launch(
        self, problem: Problem, unit: Unit, config: LaunchConfig, inputs: Inputs, out: Any
    ) -> Launch:
        import triton.language as tl

        module: Any = import_module(_MODULE)
        kernel = module.fused_moe_kernel
        if not hasattr(kernel, "params"):
            raise InvalidInput(
                "vLLM found no GPU driver on this machine and switched its Triton kernels off: compile "
                "'fused_moe' where the GPU is, or use --evaluator recorded:FILE"
            )
        weight, scale = inputs.weights[unit]
        rows, row_scale = inputs.rows[unit]
        fp8 = scale is not None
        block_m = config.integer("block_m")
        block_n = config.integer("block_n")
        order, experts, padded = aligned(inputs.topk_ids, block_m, problem.local_experts)
        routes = inputs.topk_ids.numel()
        most = len(order)
        if rows.shape[0] < block_m:
            most = min(most, routes * block_m)
        programs = -(-most // block_m) * -(-weight.shape[1] // block_n)
        args = (
            rows, weight, out, None, row_scale, scale, None, order, experts, padded,
            weight.shape[1], weight.shape[2], most, routes,
            rows.stride(0), rows.stride(1),
            weight.stride(0), weight.stride(2), weight.stride(1),
            out.stride(1), out.stride(2),
            row_scale.stride(0) if row_scale is not None else 0,
            row_scale.stride(1) if row_scale is not None else 0,
            scale.stride(0) if scale is not None else 0,
            scale.stride(2) if scale is not None else 0,
            scale.stride(1) if scale is not None and scale.shape[1] > 1 else 0,
            0, 0,
            128 if fp8 else 0, 128 if fp8 else 0,
        )  # fmt: skip
        options = {
            "BLOCK_SIZE_M": block_m,
            "BLOCK_SIZE_N": block_n,
            "BLOCK_SIZE_K": config.integer("block_k"),
            "GROUP_SIZE_M": config.integer("group_m"),
            "SPLIT_K": 1,
            "MUL_ROUTED_WEIGHT": False,
            "top_k": problem.shape.top_k if unit is Unit.GATE_UP else 1,
            "compute_type": tl.bfloat16,
            "use_fp8_w8a8": fp8,
            "use_int8_w8a8": False,
            "use_int8_w8a16": False,
            "per_channel_quant": False,
            "naive_block_assignment": False,
            "HAS_BIAS": False,
            # The engine swaps operands on Hopper for small tiles of fp8 (its utils.enable_swap_ab).
            "SWAP_AB": fp8 and block_m < 64 and block_n >= 64,
            "USE_TD": False,
            "num_warps": config.integer("num_warps"),
            "num_stages": config.integer("num_stages"),
            "enable_fp_fusion": True,
        }
        return Launch(
            fn=kernel,
            grid=(programs,),
            args=args,
            kwargs=options,
            is_gemm=True,
        )


def aligned(topk_ids: Any, block_m: int, experts: int) -> tuple[Any, Any, Any]:
    """Return (sorted route ids padded per expert to block_m, expert of each block, padded length).

    The engine does this in CUDA; padding entries hold the number of routes, as there.
    """
    import torch

    routes = topk_ids.numel()
    most = routes + min(experts, routes) * (block_m - 1)
    most = -(-most // block_m) * block_m
    device = topk_ids.device
    order = torch.full((most,), routes, dtype=torch.int32, device=device)
    blocks = torch.full((most // block_m,), -1, dtype=torch.int32, device=device)
    padded = torch.zeros(1, dtype=torch.int32, device=device)
    if device.type == "meta":
        return order, blocks, padded
    ids = topk_ids.reshape(-1)
    place = 0
    for expert in range(experts):
        mine = (ids == expert).nonzero()[:, 0].to(torch.int32)
        taken = -(-len(mine) // block_m) * block_m
        order[place : place + len(mine)] = mine
        blocks[place // block_m : (place + taken) // block_m] = expert
        place += taken
    padded.fill_(place)
    return order, blocks, padded


PROVIDES = FusedMoe()
