"""How a layer is sharded: experts over ranks, or every expert's width over ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidInput

if TYPE_CHECKING:  # problem.py imports this module, and only a GPU's memory size is read here
    from ..topology import Gpu
    from .problem import MoEShape

KINDS = ("single", "dep", "ep", "tp")
# A width below one scale group (MX formats: 32 along K) cannot be stored on a rank.
WIDTH_GRANULE = 32
# Share of a GPU's memory that expert weights may fill; the rest is attention, KV cache, buffers.
WEIGHT_SHARE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How many ranks share a layer, and how.

    Attributes:
        kind: "single"; "dep": attention data-parallel, experts sharded; "ep": experts sharded;
            "tp": every rank has all experts and 1/ranks of their width.
        ranks: Ranks that share the layer (1 exactly for "single").
    """

    kind: str = "single"
    ranks: int = 1

    def __post_init__(self) -> None:
        """Refuse kinds that do not exist and rank counts that do not fit the kind."""
        if self.kind not in KINDS:
            raise InvalidInput(f"layout is {self.kind!r}: must be one of {', '.join(KINDS)}")
        least = 1 if self.kind == "single" else 2
        if not isinstance(self.ranks, int) or isinstance(self.ranks, bool) or self.ranks < least:
            raise InvalidInput(
                f"ranks of layout {self.kind!r} is {self.ranks!r}: must be at least {least}"
            )
        if self.kind == "single" and self.ranks != 1:
            raise InvalidInput(f"ranks of layout 'single' is {self.ranks}: must be 1")

    @property
    def name(self) -> str:
        """The spelling that users type: "single", "dep8"."""
        return self.kind if self.kind == "single" else f"{self.kind}{self.ranks}"

    @property
    def expert_ranks(self) -> int:
        """Ranks over which experts are sharded (1 for single and tp)."""
        return self.ranks if self.kind in ("dep", "ep") else 1

    @property
    def width_shards(self) -> int:
        """Parts into which each expert's width is cut (1 but for tp)."""
        return self.ranks if self.kind == "tp" else 1

    def check(self, experts: int, intermediate: int) -> None:
        """Refuse a layer that cannot be sharded so.

        Uneven expert shards are legal: 384 experts over 72 ranks leave at most 6 on a rank, and
        engines fill the free places with redundant experts.

        Raises:
            InvalidInput: more ranks than experts, or a width that does not divide.
        """
        if self.expert_ranks > experts:
            raise InvalidInput(
                f"layout {self.name!r} shards {experts} experts over {self.ranks} ranks: "
                f"must be at most {experts} ranks"
            )
        shards = self.width_shards
        if shards > 1 and (intermediate % shards or intermediate // shards % WIDTH_GRANULE):
            fit = [n for n in (2, 4, 8, 16, 32) if not intermediate % (n * WIDTH_GRANULE)]
            possible = ", ".join(f"tp{n}" for n in fit) or "no tp layout"
            raise InvalidInput(
                f"layout {self.name!r} cuts width {intermediate} into {shards} parts of "
                f"{intermediate / shards:g}: must be whole multiples of {WIDTH_GRANULE} "
                f"(possible: {possible})"
            )

    def local_experts(self, experts: int) -> int:
        """Experts on the rank that holds most of them."""
        return -(-experts // self.expert_ranks)

    def local_intermediate(self, intermediate: int) -> int:
        """Width of one expert on one rank."""
        return intermediate // self.width_shards


def parse_layout(text: str, shape: MoEShape, gpu: Gpu) -> Layout:
    """Read "auto", "single", "dep8", "ep16" or "tp4" and check it against the layer.

    Raises:
        InvalidInput: no such layout, or one that the layer cannot have.
    """
    word = text.strip().lower()
    if word == "auto":
        return default_layout(shape, gpu)
    found = re.fullmatch(r"(single)|(dep|ep|tp)([0-9]{1,6})", word)
    if not found or (found[3] is not None and int(found[3]) < 1):
        raise InvalidInput(
            f"layout is {text!r}: must be auto, single, depN, epN or tpN (dep8, tp4)"
        )
    ranks = int(found[3] or 1)
    # One rank is one GPU, whatever it is called: one problem must have one key.
    layout = Layout() if ranks == 1 else Layout(kind=found[2], ranks=ranks)
    layout.check(shape.experts, shape.intermediate)
    return layout


def default_layout(shape: MoEShape, gpu: Gpu) -> Layout:
    """Return the smallest of single, dep2, dep4, ... whose weights fit.

    The expert weights of all MoE layers may fill at most 60 % of one GPU's memory.

    Raises:
        InvalidInput: they do not fit even with one expert a rank.
    """
    budget = WEIGHT_SHARE * gpu.memory_bytes
    ranks = 1
    while ranks <= shape.experts:
        layout = Layout() if ranks == 1 else Layout(kind="dep", ranks=ranks)
        if shape.layers * shape.weight_bytes(layout.local_experts(shape.experts)) <= budget:
            return layout
        ranks *= 2
    raise InvalidInput(
        f"expert weights of {shape.model!r} take "
        f"{shape.layers * shape.weight_bytes(1) / 1e9:.0f} GB with one expert a rank: must be at "
        f"most {budget / 1e9:.0f} GB on {gpu.name!r}; name a layout with --layout"
    )
