"""`sglang_fused_moe`: the Triton kernel that SGLang 0.5.23 launches, with that engine's semantics.

The kernel itself is the installed SGLang's: nothing of it stands here. Its layouts of weights, rows and routes
are vLLM's (`_fused_moe_inputs`); its arguments, defaults and table are its own.

Source: SGLang 0.5.23, sglang/kernels/ops/moe/fused_moe_triton_kernels.py, `invoke_fused_moe_kernel` (facts,
engines 1.4).
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput
from ..search_spaces import LaunchConfig, Problem, Space, Unit
from ..search_spaces import sglang_fused_moe as spaces
from ..topology import Gpu
from ._kernel import Launch
from .fused_moe import FusedMoe, aligned

if TYPE_CHECKING:  # torch costs seconds
    from ._fused_moe_inputs import Inputs

_MODULE = "sglang.kernels.ops.moe.fused_moe_triton_kernels"
# Up to so many rows the engine lets the next launch start early.
_EARLY_ROWS = 512


class SglangFusedMoe(FusedMoe):
    """SGLang's kernel: each GEMM has its config, both share block_m."""

    name = "sglang_fused_moe"
    serves_engine = "sglang"

    def require(self, evaluator: str) -> None:
        """Refuse to compile or time where SGLang is not installed, and recordings of other kernels.

        Raises:
            InvalidInput: the evaluator needs the package, or reads vLLM's recordings.
        """
        if evaluator == "recorded":
            raise InvalidInput(
                "kernel 'sglang_fused_moe' with evaluator 'recorded': landscapes are recordings of vLLM's "
                "kernel, about which SGLang's says nothing; sweep it where SGLang is installed"
            )
        if find_spec("sglang") is None:
            raise InvalidInput(
                f"kernel 'sglang_fused_moe' with evaluator {evaluator!r} launches SGLang's own kernel, and "
                "sglang is not installed here: install it"
            )

    def source_hash(self) -> str:
        """Return a hash of the engine's version, which fixes its source; "absent" without it."""
        try:
            found = version("sglang")
        except PackageNotFoundError:
            found = "absent"
        return hashlib.sha256(f"sglang {found} fused_moe_kernel".encode()).hexdigest()[:16]

    def space(self, problem: Problem, unit: Unit, gpu: Gpu) -> Space:
        """The engine's grid, within its rules."""
        return spaces.space(problem, unit, gpu)

    def default(self, problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
        """What the engine launches without a table."""
        return spaces.default(problem, unit, gpu)

    def coupling(self, config: LaunchConfig) -> str:
        """Both GEMMs read one alignment of the routes to block_m."""
        return str(config["block_m"])

    def _launch(
        self, problem: Problem, unit: Unit, config: LaunchConfig, inputs: Inputs, out: Any
    ) -> Launch:
        import triton.language as tl

        module: Any = import_module(_MODULE)
        weight, scale = inputs.weights[unit]
        rows, row_scale = inputs.rows[unit]
        fp8 = scale is not None
        block_m, block_n = config.integer("block_m"), config.integer("block_n")
        order, experts, padded = aligned(inputs.topk_ids, block_m, problem.local_experts)
        device = rows.device.type
        args = (
            rows, None, weight, None, None, out, row_scale, scale, inputs.topk_weights,
            order, experts, padded, None,
            weight.shape[1], weight.shape[2], len(order), inputs.topk_ids.numel(),
            rows.stride(0), rows.stride(1),
            weight.stride(0), weight.stride(2), weight.stride(1),
            0, 0,
            out.stride(-2), out.stride(-1),
            row_scale.stride(0) if row_scale is not None else 0,
            row_scale.stride(1) if row_scale is not None else 0,
            scale.stride(0) if scale is not None else 0,
            scale.stride(2) if scale is not None else 0,
            scale.stride(1) if scale is not None else 0,
            128 if fp8 else 0, 128 if fp8 else 0,
        )  # fmt: skip
        options = {
            "BLOCK_SIZE_M": block_m,
            "BLOCK_SIZE_N": block_n,
            "BLOCK_SIZE_K": config.integer("block_k"),
            "GROUP_SIZE_M": config.integer("group_m"),
            "MUL_ROUTED_WEIGHT": False,
            "top_k": problem.shape.top_k if unit is Unit.GATE_UP else 1,
            "compute_type": tl.bfloat16,
            "use_fp8_w8a8": fp8,
            "use_int8_w8a8": False,
            "use_int8_w8a16": False,
            "per_channel_quant": False,
            "even_Ks": weight.shape[2] % config.integer("block_k") == 0,
            "c_sorted": False,
            "swap_ab": fp8 and _swaps(module, block_m, block_n, device),
            "FUSE_ADD_TO_OUTPUT": False,
            "MASK_OUTPUT": False,
            "FUSE_SUM_ALL_REDUCE": False,
            "ROUTER_TOPK": 1,
            "num_warps": config.integer("num_warps"),
            "num_stages": config.integer("num_stages"),
            "enable_fp_fusion": True,
        }
        # Every target that is compiled for has programmatic dependent launch; the engine asks its GPU.
        if device == "meta" or (device == "cuda" and module.is_arch_support_pdl()):
            early = rows.shape[0] <= _EARLY_ROWS
            options |= {"USE_GDC": True, "launch_pdl": True, "GDC_EARLY": early}
        programs = -(-len(order) // block_m) * -(-weight.shape[1] // block_n)
        return Launch(
            fn=module.fused_moe_kernel,
            grid=(programs,),
            args=args,
            kwargs=options,
            is_gemm=True,
        )


def _swaps(module: Any, block_m: int, block_n: int, device: str) -> bool:
    """Say whether the engine swaps the operands: it asks the GPU, so offline Hopper's rule stands."""
    if device == "cuda":
        return bool(module.should_enable_swap_ab(block_m, block_n))
    return block_m < 64 and block_n >= 64


PROVIDES = SglangFusedMoe()
