"""Arithmetic that reads the same for one config (plain numbers) and for a whole space (arrays).

The scalar branch matters: one prediction is a hundred operations, and each would cost a
microsecond as a numpy call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..search_spaces import LaunchConfig

# One value, or one a config. Any: numpy has no type for either that adds and multiplies.
Number = Any


def larger(a: Number, b: Number) -> Number:
    """Return the maximum."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a > b else b


def smaller(a: Number, b: Number) -> Number:
    """Return the minimum."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a < b else b


def choose(condition: Number, yes: Number, no: Number) -> Number:
    """Return `yes` where the condition holds, else `no`."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def upward(value: Number) -> Number:
    """Round up to a whole number."""
    return np.ceil(value) if isinstance(value, np.ndarray) else float(math.ceil(value))


def downward(value: Number) -> Number:
    """Round down to a whole number."""
    return np.floor(value) if isinstance(value, np.ndarray) else float(math.floor(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the model reads of a config, one value or one a config.

    Attributes:
        is_swapped: Weights are the M operand of the matrix instruction.
        is_tma: Tiles are loaded by the tensor memory accelerator.
        is_split: Weight columns are scheduled by locality domain.
        is_persistent: Programs walk over tiles.
    """

    block_m: Number
    block_n: Number
    block_k: Number
    num_warps: Number
    num_stages: Number
    group_m: Number
    is_swapped: Number
    is_tma: Number
    is_split: Number
    is_persistent: Number


def is_engine(config: LaunchConfig) -> bool:
    """Whether the config is one of vLLM's kernel, whose configs name no load path."""
    return "load" not in config


def columns_of(config: LaunchConfig, *, is_fp8: bool, arch: int) -> Columns:
    """Read one config; vLLM's kernel clamps block_k and swaps by a rule of its own.

    Source: facts, engines 2.1: BLOCK_SIZE_K = min(BLOCK_SIZE_K, block_shape); SWAP_AB on SM90
    where BLOCK_SIZE_M < 64 and BLOCK_SIZE_N >= 64 (fp8 only: shared bytes of the landscapes).
    """
    values = config.as_dict()
    block_m, block_n, block_k = (int(values[n]) for n in ("block_m", "block_n", "block_k"))
    swapped = bool(values.get("swap_ab", False))
    if "load" not in values and is_fp8:
        block_k = min(block_k, 128)
        swapped = arch == 90 and block_m < 64 and block_n >= 64
    return Columns(
        block_m=block_m,
        block_n=block_n,
        block_k=block_k,
        num_warps=int(values["num_warps"]),
        num_stages=int(values["num_stages"]),
        group_m=int(values["group_m"]),
        is_swapped=swapped,
        is_tma=values.get("load") == "tma",
        is_split=values.get("split") == "domains",
        is_persistent=values.get("schedule") == "persistent",
    )


@lru_cache(maxsize=8)
def table_of(configs: tuple[LaunchConfig, ...], *, is_fp8: bool, arch: int) -> Columns:
    """Read many configs of one kernel into arrays; the last few spaces are kept."""
    read = [columns_of(config, is_fp8=is_fp8, arch=arch) for config in configs]

    def column(name: str, kind: type) -> Number:
        return np.array([getattr(one, name) for one in read], dtype=kind)

    whole = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m")
    flags = ("is_swapped", "is_tma", "is_split", "is_persistent")
    return Columns(
        **{name: column(name, float) for name in whole},
        **{name: column(name, bool) for name in flags},
    )


def distinct(values: Number) -> Sequence[int]:
    """Return the different whole numbers among the values."""
    found = np.unique(np.asarray(values, dtype=np.int64))
    return [int(v) for v in found]
