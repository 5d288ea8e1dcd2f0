"""What one rank must compute: the layer's shape, its formats, how it is sharded, how tokens fall.

Everything that changes the generated code or the amount of work is a field here, because it is
part of the key under which a winner is stored.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from ..errors import InvalidInput
from .layout import Layout
from .routing import Routing


class Unit(StrEnum):
    """The parts of a layer that are timed and reported."""

    GATE_UP = "gate_up"
    DOWN = "down"
    GLUE = "glue"
    LAYER = "layer"


GEMMS = (Unit.GATE_UP, Unit.DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How numbers are stored.

    Attributes:
        name: "bf16", "fp8_block128", "mxfp8", "mxfp4" or "nvfp4".
        bits: Bits an element.
        scale_rows: Rows (N of a weight, tokens of an activation) that share a scale; 0 = no scale.
        scale_columns: Elements along K that share a scale; 0 = no scale.
        scale_bits: Bits of a scale.
    """

    name: str
    bits: int
    scale_rows: int = 0
    scale_columns: int = 0
    scale_bits: int = 0

    def bytes_of(self, rows: int, columns: int) -> int:
        """Bytes of a [rows, columns] matrix with its scales, scale blocks rounded up."""
        data = rows * -(-columns * self.bits // 8)
        if not self.scale_columns:
            return data
        scales = -(-rows // self.scale_rows) * -(-columns // self.scale_columns)
        return data + scales * self.scale_bits // 8


WEIGHT_FORMATS = {
    f.name: f
    for f in (
        Format(name="bf16", bits=16),
        Format(name="fp8_block128", bits=8, scale_rows=128, scale_columns=128, scale_bits=32),
        Format(name="mxfp4", bits=4, scale_rows=1, scale_columns=32, scale_bits=8),
    )
}
ACTIVATION_FORMATS = {
    f.name: f
    for f in (
        Format(name="bf16", bits=16),
        Format(name="fp8_block128", bits=8, scale_rows=1, scale_columns=128, scale_bits=32),
        Format(name="mxfp8", bits=8, scale_rows=1, scale_columns=32, scale_bits=8),
    )
}
# Which activations a weight format can be multiplied with; the first is the default.
PAIRS = {
    "bf16": ("bf16",),
    "fp8_block128": ("fp8_block128",),
    "mxfp4": ("mxfp8", "bf16"),
}
# What users type for --dtype and --activations.
SPELLINGS = {"fp8": "fp8_block128"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """What stands between the two GEMMs.

    Attributes:
        kind: "swiglu": silu(alpha * gate) * (up + up_shift) with clamps; "geglu":
            gelu_tanh(gate) * up; "relu2": relu(x)^2, non-gated (w13 then has I rows, not 2I).
        alpha: Multiplies the gate inside the sigmoid (gpt-oss: 1.702; else 1).
        limit: gate is clamped to <= limit, up to [-limit, limit]; None = no clamp.
        up_shift: Added to up before the product (gpt-oss: 1; else 0).
    """

    kind: str = "swiglu"
    alpha: float = 1.0
    limit: float | None = None
    up_shift: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an unknown kind or a limit that clamps everything."""
        if self.kind not in ("swiglu", "geglu", "relu2"):
            raise InvalidInput(f"activation is {self.kind!r}: must be swiglu, geglu or relu2")
        if self.limit is not None and not self.limit > 0:
            raise InvalidInput(f"activation limit is {self.limit!r}: must be positive")

    @property
    def gated(self) -> bool:
        """Whether w13 holds a gate and an up half."""
        return self.kind != "relu2"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEShape:
    """One MoE layer of a model, before sharding.

    Attributes:
        model: The name users type.
        experts: Routed experts of the whole layer.
        top_k: Experts a token.
        hidden: Model width H.
        intermediate: Width I of one routed expert.
        shared_experts: Experts that see every token.
        shared_intermediate: Width of one shared expert (0 = as `intermediate`).
        layers: MoE layers in the model.
        weights: Weight format of the checkpoint (a key of WEIGHT_FORMATS).
        activations: Activation format (a key of ACTIVATION_FORMATS).
        also: Other weight formats in which checkpoints of the model exist.
        activation: What stands between the GEMMs.
        biases: Both GEMMs add a bias.
        weight_on_input: The routed weight multiplies the input rows instead of the combine.
        routed_scaling_factor: Multiplies the routed sum.
        padded_intermediate: Width that weights are stored with (0 = as it is).
    """

    model: str
    experts: int
    top_k: int
    hidden: int
    intermediate: int
    shared_experts: int = 0
    shared_intermediate: int = 0
    layers: int = 1
    weights: str = "bf16"
    activations: str = "bf16"
    also: tuple[str, ...] = ()
    activation: Activation = Activation()
    biases: bool = False
    weight_on_input: bool = False
    routed_scaling_factor: float = 1.0
    padded_intermediate: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes that no layer can have."""
        for name in ("experts", "top_k", "hidden", "intermediate", "layers"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInput(f"{name} of {self.model!r} is {value!r}: must be at least 1")
        if self.top_k > self.experts:
            raise InvalidInput(
                f"top_k of {self.model!r} is {self.top_k}: must be at most {self.experts}"
            )
        if self.weights not in WEIGHT_FORMATS:
            raise InvalidInput(
                f"weights of {self.model!r} are {self.weights!r}: must be one of "
                f"{', '.join(WEIGHT_FORMATS)}"
            )
        if self.activations not in PAIRS[self.weights]:
            raise InvalidInput(
                f"activations of {self.model!r} are {self.activations!r}: with {self.weights} "
                f"weights they must be one of {', '.join(PAIRS[self.weights])}"
            )

    def weight_bytes(self, experts: int) -> int:
        """Bytes of both weight matrices of that many experts in one layer, scales included."""
        stored = WEIGHT_FORMATS[self.weights]
        width = self.padded_intermediate or self.intermediate
        rows = (2 if self.activation.gated else 1) * width
        one = stored.bytes_of(rows, self.hidden) + stored.bytes_of(self.hidden, width)
        return experts * one


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One rank's work for one step.

    Attributes:
        shape: The layer.
        layout: How experts and widths are sharded, over how many ranks.
        routing: How tokens fall on experts.
        tokens: Tokens entering the layer over all ranks of the expert-parallel group.
        capacity: Tokens a CUDA graph is captured for (buffers and grids are sized for it).
    """

    shape: MoEShape
    layout: Layout
    routing: Routing
    tokens: int
    capacity: int = 0

    def __post_init__(self) -> None:
        """Refuse token counts that no step has; capacity 0 means `tokens`."""
        if not isinstance(self.tokens, int) or isinstance(self.tokens, bool) or self.tokens < 1:
            raise InvalidInput(f"tokens is {self.tokens!r}: must be an integer of at least 1")
        if self.capacity == 0:
            object.__setattr__(self, "capacity", self.tokens)
        if self.capacity < self.tokens:
            raise InvalidInput(
                f"capacity is {self.capacity}: must be at least tokens = {self.tokens}"
            )
        self.layout.check(self.shape.experts, self.shape.intermediate)
        self.routing.check(self.shape.experts, self.shape.top_k)
        block = self.weights.scale_rows
        if self.layout.width_shards > 1 and block > 1 and self.local_intermediate % block:
            raise InvalidInput(
                f"layout {self.layout.name!r} leaves {self.local_intermediate} of width "
                f"{self.shape.intermediate}: must be a multiple of {block}, the rows that share a "
                f"scale in {self.weights.name}"
            )

    @property
    def local_experts(self) -> int:
        """Experts on the rank that holds most of them."""
        return self.layout.local_experts(self.shape.experts)

    @property
    def local_intermediate(self) -> int:
        """Width I on one rank, as stored (padding included)."""
        return self.layout.local_intermediate(
            self.shape.padded_intermediate or self.shape.intermediate
        )

    @property
    def weights(self) -> Format:
        """Format of both weight matrices."""
        return WEIGHT_FORMATS[self.shape.weights]

    @property
    def activations(self) -> Format:
        """Format of the rows that enter each GEMM."""
        return ACTIVATION_FORMATS[self.shape.activations]

    def gemm(self, unit: Unit) -> tuple[int, int]:
        """Return (N, K) of one of the two GEMMs: rows x K times [experts, N, K]."""
        width = self.local_intermediate
        if unit is Unit.GATE_UP:
            return (2 if self.shape.activation.gated else 1) * width, self.shape.hidden
        if unit is Unit.DOWN:
            return self.shape.hidden, width
        raise InvalidInput(f"unit {unit.value!r} is no GEMM: must be gate_up or down")

    def at(self, tokens: int) -> Problem:
        """Return the same problem for another token count (capacity follows)."""
        return replace(self, tokens=tokens, capacity=tokens)

    def as_dict(self) -> dict[str, object]:
        """Return plain JSON values, the form stored in the database."""
        found = asdict(self)
        found["routing"] = self.routing.as_dict()
        return found

    @property
    def key(self) -> str:
        """Hash of everything that changes code or work; the model's name is not part of it."""
        unnamed = ("model", "also", "layers")
        shape = {k: v for k, v in asdict(self.shape).items() if k not in unnamed}
        found = {**self.as_dict(), "shape": shape}
        text = json.dumps(found, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]
