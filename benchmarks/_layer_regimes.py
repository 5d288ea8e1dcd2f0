"""The regimes that `moe_layer` measures, and what others were recorded to take in them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from rubin_tune.search_spaces import (
    Activation,
    MoEShape,
    Problem,
    load_model,
    parse_layout,
    parse_routing,
    with_formats,
)
from rubin_tune.topology import Gpu

_PEERS = Path(__file__).with_name("peers.toml")
# Steps of up to so many tokens are bound by the weights of their experts.
DECODE_TOKENS = 128
_LADDER = (16, 128, 1024, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One row of the comparison.

    Attributes:
        label: Short name, what --only matches.
        model: A preset.
        dtype: Weights, None = the checkpoint's.
        layout: single, epN, ...
        tokens: Tokens over all ranks.
        activations: None = the checkpoint's.
        rows: Which steps are drawn: "any"; "some": with a row on this rank; "none": without.
    """

    label: str
    model: str
    dtype: str | None
    layout: str
    tokens: int
    activations: str | None = None
    rows: str = "any"

    @property
    def name(self) -> str:
        """Label, tokens and, where steps are chosen, which."""
        chosen = {"any": "", "some": "-local", "none": "-empty"}[self.rows]
        return f"{self.label}/{self.tokens}{chosen}"

    @property
    def sweep_key(self) -> tuple[str, str | None, str | None, str]:
        """What one sweep covers, whatever the token counts."""
        return self.model, self.dtype, self.activations, self.layout

    @property
    def is_decode(self) -> bool:
        """Whether the step is bound by weights."""
        return self.tokens <= DECODE_TOKENS

    def problem(self, gpu: Gpu, routing: str) -> Problem:
        """Return one rank's work."""
        shape = with_formats(load_model(self.model), self.dtype, self.activations)
        return Problem(
            shape=shape,
            layout=parse_layout(self.layout, shape, gpu),
            routing=parse_routing(routing),
            tokens=self.tokens,
        )


_TINY_SHAPES = {
    "bf16": MoEShape(model="tiny", experts=8, top_k=2, hidden=256, intermediate=128),
    "fp8": MoEShape(
        model="tiny", experts=8, top_k=2, hidden=256, intermediate=128,
        weights="fp8_block128", activations="fp8_block128", routed_scaling_factor=2.5,
    ),
    "mxfp4": MoEShape(
        model="tiny", experts=4, top_k=2, hidden=128, intermediate=128, weights="mxfp4",
        biases=True, activation=Activation(alpha=1.702, limit=7.0, up_shift=1.0),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyRegime(Regime):
    """A layer small enough for Triton's interpreter: checks this program, not the kernels."""

    def problem(self, gpu: Gpu, routing: str) -> Problem:
        """Return one rank's work over a shape that is no model's."""
        shape = _TINY_SHAPES[self.dtype or "bf16"]
        return Problem(
            shape=shape,
            layout=parse_layout(self.layout, shape, gpu),
            routing=parse_routing(routing),
            tokens=self.tokens,
        )


def _ladder(
    label: str,
    model: str,
    dtype: str | None,
    layout: str,
    tokens: tuple[int, ...],
    rows: str = "any",
) -> tuple[Regime, ...]:
    return tuple(
        Regime(label=label, model=model, dtype=dtype, layout=layout, tokens=t, rows=rows)
        for t in tokens
    )


# Neighbours share a model's weights, so that they are made once.
REGIMES: tuple[Regime, ...] = (
    *_ladder("v4-flash-fp8-ep8", "deepseek-v4-flash-fp8", None, "ep8", _LADDER),
    *_ladder("v4-flash-fp8-ep8", "deepseek-v4-flash-fp8", None, "ep8", (1, 2, 4, 8), "some"),
    *_ladder("v4-flash-fp8-ep8", "deepseek-v4-flash-fp8", None, "ep8", (1,), "none"),
    *_ladder("qwen3-fp8", "qwen3-30b-a3b", "fp8", "single", _LADDER),
    *_ladder("qwen3-bf16", "qwen3-30b-a3b", "bf16", "single", _LADDER),
    *_ladder("gpt-oss-120b", "gpt-oss-120b", None, "single", (16, 128)),
    *_ladder("v4.1-flash-ep8", "deepseek-v4.1-flash", None, "ep8", (16, 128)),
)
TINY: tuple[Regime, ...] = (
    TinyRegime(label="tiny-bf16", model="tiny", dtype="bf16", layout="single", tokens=8),
    TinyRegime(label="tiny-fp8-ep2", model="tiny", dtype="fp8", layout="ep2", tokens=8),
    TinyRegime(label="tiny-mxfp4", model="tiny", dtype="mxfp4", layout="single", tokens=6),
    TinyRegime(
        label="tiny-fp8-ep2", model="tiny", dtype="fp8", layout="ep2", tokens=1, rows="none"
    ),
)


def chosen(regimes: tuple[Regime, ...], only: list[str]) -> tuple[Regime, ...]:
    """Return the regimes whose names hold one of the words; no words = all."""
    return tuple(r for r in regimes if not only or any(word in r.name for word in only))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What somebody else was once measured to take for the two bare GEMMs, in microseconds."""

    name: str
    gate_up_us: float
    down_us: float

    @property
    def both_us(self) -> float:
        """Both GEMMs."""
        return self.gate_up_us + self.down_us


def recorded_peers(problem: Problem, path: Path = _PEERS) -> tuple[Recorded, ...]:
    """Return the recorded times for a problem with uniform routing; none for other routings."""
    if problem.routing.kind != "uniform":
        return ()
    here = (problem.shape.model, problem.shape.weights, problem.layout.name)
    return tuple(
        Recorded(name=peer["name"], gate_up_us=gate_up, down_us=down)
        for peer in tomllib.loads(path.read_text())["peer"]
        if (peer["model"], peer["weights"], peer["layout"]) == here
        for tokens, gate_up, down in peer["rows"]
        if tokens == problem.tokens
    )
