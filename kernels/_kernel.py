"""What a kernel offers to the rest of the house.

A kernel is one file `kernels/NAME.py` with `PROVIDES = SomeKernel()`. Importing it may import triton;
listing the names of kernels imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..search_spaces import LaunchConfig, Problem, Space, Unit
from ..topology import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch, ready: `fn[grid](*args, **kwargs)`.

    The same record is compiled offline (arguments on torch's "meta" device, whose data pointers are 0
    and so aligned) and launched, so that what is inspected is what runs.

    Attributes:
        fn: A triton JITFunction.
        grid: Programs, up to three axes.
        args: Positional arguments: tensors, TensorDescriptors, integers, floats.
        kwargs: constexprs and compiler options (num_warps, num_stages, enable_fp_fusion).
        is_gemm: Whether this is one of the tuned GEMMs (False = glue).
    """

    fn: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    is_gemm: bool = False

    def run(self) -> None:
        """Launch on the current stream."""
        self.fn[self.grid](*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a unit must do at the very least, for counting floors.

    Attributes:
        flops: Floating-point operations (a multiply-add counts two), padding left out.
        min_bytes: Bytes that must cross device memory once.
        weight_bytes: The part of min_bytes that is weights of active experts.
        nvlink_bytes: Bytes that must leave or enter this rank.
    """

    flops: float
    min_bytes: float
    weight_bytes: float
    nvlink_bytes: float = 0.0


class Flaw(float):
    """An infinite error, with the reason in words (a Kernel's `verify` may return it)."""

    why: str

    def __new__(cls, why: str) -> Flaw:
        """Return infinity that knows why: "wrote after the buffer 'out'"."""
        made = super().__new__(cls, "inf")
        made.why = why
        return made

    def __reduce__(self) -> tuple[type[Flaw], tuple[str]]:
        """Pickle by the words."""
        return type(self), (self.why,)


class Kernel(Protocol):
    """The contract of a kernel."""

    name: str
    serves_engine: str
    """Engine whose tables its winners may enter ("vllm", "sglang"), or "" for our own kernels."""

    def require(self, evaluator: str) -> None:
        """Refuse, in a sentence, an evaluator for which something is not installed."""
        ...

    def source_hash(self) -> str:
        """Hash of every source file that ends in the cubin (hex, 16 characters)."""
        ...

    def units(self) -> tuple[Unit, ...]:
        """Units that are tuned, in the order they run."""
        ...

    def space(self, problem: Problem, unit: Unit, gpu: Gpu) -> Space:
        """The space of one unit for a problem and a GPU."""
        ...

    def default(self, problem: Problem, unit: Unit, gpu: Gpu) -> LaunchConfig:
        """The config that is launched when nothing is known."""
        ...

    def coupling(self, config: LaunchConfig) -> str:
        """Units of one layer may be combined only if their configs' couplings are equal."""
        ...

    def glue(self, unit: Unit, config: LaunchConfig) -> str:
        """Name the glue that a unit's config needs; configs of one name need the same."""
        ...

    def work(self, problem: Problem, unit: Unit) -> Work:
        """Expected work under the problem's routing."""
        ...

    def make_inputs(self, problem: Problem, *, device: str, seed: int) -> Any:
        """Random weights and activations and a routing drawn from the problem's distribution."""
        ...

    def rotate(self, inputs: Any, problem: Problem, *, seed: int) -> Any:
        """Return inputs for `problem` (any token count) with the same weights, drawn anew otherwise."""
        ...

    def launches(
        self, problem: Problem, unit: Unit, config: LaunchConfig, inputs: Any
    ) -> tuple[Launch, ...]:
        """Allocate what the unit needs beside `inputs` and return its launches in order.

        `inputs` may lie on "meta" (to compile), "cuda" or "cpu" (the interpreter). The main GEMM's
        launch is last.
        """
        ...

    def layer(
        self, problem: Problem, configs: Mapping[Unit, LaunchConfig], inputs: Any
    ) -> tuple[Launch, ...]:
        """Return the launches of the whole layer, in order."""
        ...

    def verify(
        self, problem: Problem, unit: Unit, config: LaunchConfig, *, device: str, seed: int
    ) -> float:
        """Run one unit on fresh random inputs with poisoned outputs; return its error.

        The error is the largest over output rows of |out - ref| / |ref| (2-norms, reference in
        float64); infinite, mostly a `Flaw`, where an element was not written or is not finite, where
        something was written past a buffer's end, and where another schedule gave other bits.
        """
        ...

    def tolerance(self, problem: Problem, unit: Unit) -> float:
        """The largest error that rounding explains, derived from the formats."""
        ...
