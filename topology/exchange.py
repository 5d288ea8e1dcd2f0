"""Tokens that ranks send to each other's experts and get back: bytes, and fitted times.

Routing is taken as uniform: every set of `top_k` distinct experts is as likely as any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from math import comb

from ..errors import InvalidInput
from .facts import Confidence


class Stage(StrEnum):
    """The two halves of an exchange."""

    DISPATCH = "dispatch"
    COMBINE = "combine"


class Copies(StrEnum):
    """How often a token's row is sent."""

    ROUTES = "every_route"
    """Once for each chosen expert, also for those on the sender's own rank."""
    RANKS = "distinct_ranks"
    """Once for each rank that holds a chosen expert, the sender's own included."""


def fp8_row_bytes(hidden: int) -> int:
    """Return the bytes of a token in FP8 with a float32 scale for each 128 elements."""
    return hidden + -(-hidden // 128) * 4


def bf16_row_bytes(hidden: int) -> int:
    """Return the bytes of a token in BF16."""
    return 2 * hidden


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What each rank sends to the experts of all ranks, and gets back.

    Attributes:
        tokens_per_rank: Tokens that enter on one rank.
        top_k: Experts of a token.
        experts: Routed experts over all ranks.
        ranks: GPUs that hold them.
        dispatch_row_bytes: Bytes of one token on its way out.
        combine_row_bytes: Bytes of one result on its way back.
    """

    tokens_per_rank: int
    top_k: int
    experts: int
    ranks: int
    dispatch_row_bytes: int
    combine_row_bytes: int

    def __post_init__(self) -> None:
        """Refuse what cannot be routed.

        Raises:
            InvalidInput: a count that cannot be, and what it may be.
        """
        for name in ("top_k", "experts", "ranks", "dispatch_row_bytes", "combine_row_bytes"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}: must be at least 1")
        if self.tokens_per_rank < 0:
            raise InvalidInput(f"tokens_per_rank is {self.tokens_per_rank}: must be at least 0")
        if self.top_k > self.experts:
            raise InvalidInput(f"top_k is {self.top_k}: must be at most {self.experts} experts")
        if self.ranks > self.experts:
            raise InvalidInput(f"ranks is {self.ranks}: must be at most {self.experts} experts")

    @property
    def distinct_ranks(self) -> float:
        """Ranks that a token goes to, on average: sum over ranks of 1 - C(E - E_r, k) / C(E, k).

        Source: facts/moe-kernels.md 5.4; there E_r = E / R, here ranks may hold one expert more.
        """
        small, more = divmod(self.experts, self.ranks)
        ways = comb(self.experts, self.top_k)
        missed = (self.ranks - more) * comb(self.experts - small, self.top_k)
        if more:
            missed += more * comb(self.experts - small - 1, self.top_k)
        return self.ranks - missed / ways

    @property
    def remote_ranks(self) -> float:
        """The same without the sender's own rank."""
        return self.distinct_ranks * (self.ranks - 1) / self.ranks

    def row_bytes(self, stage: Stage) -> int:
        """Return the bytes of one row."""
        return self.dispatch_row_bytes if stage == Stage.DISPATCH else self.combine_row_bytes

    def sent_bytes(self, stage: Stage, copies: Copies) -> float:
        """Return the bytes that one rank sends (dispatch) or receives (combine), its own too."""
        rows = self.top_k if copies == Copies.ROUTES else self.distinct_ranks
        return self.tokens_per_rank * rows * self.row_bytes(stage)

    def remote_bytes(self, stage: Stage, copies: Copies) -> float:
        """Return the part of `sent_bytes` that crosses a rank's links."""
        return self.sent_bytes(stage, copies) * (self.ranks - 1) / self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFit:
    """Time of one stage: latency + max(bytes / bandwidth, the slowest thread block).

    latency = base + (ranks - 1) x per_rank + experts x per_expert. A block carries whole tokens one
    after the other, so few blocks, or few tokens of many bytes, are slower than the links.

    Attributes:
        stage: Dispatch or combine.
        algorithm: Whose name users give it.
        copies: Which rows are counted; local ones are moved too.
        base_us: Microseconds that every call pays.
        per_rank_us: Microseconds more for each peer.
        per_expert_us: Microseconds more for each expert (its count is sent even when it is 0).
        bytes_per_s: Most that one rank's links carry.
        block_token_us: Microseconds of a block for each token; 0 = not a limit.
        block_bytes_per_s: Bytes a second of one block; 0 = not a limit.
        blocks: Blocks of a call; 0 = as many as the experts and SMs give.
        tokens: Fewest and most tokens per rank that it was fitted on.
        source: Where the constants come from.
        confidence: How far they can be trusted.
    """

    stage: Stage
    algorithm: str
    copies: Copies
    base_us: float
    per_rank_us: float
    per_expert_us: float
    bytes_per_s: float
    block_token_us: float
    block_bytes_per_s: float
    blocks: int
    tokens: tuple[int, int]
    source: str
    confidence: Confidence

    def distance(self, tokens_per_rank: int) -> float:
        """Return how far outside the fitted range a token count lies, in factors of e; 0 inside."""
        low, high = self.tokens
        inside = min(max(tokens_per_rank, low), high)
        return abs(math.log(max(tokens_per_rank, 1) / max(inside, 1)))

    def blocks_of(self, experts: int, sms: int) -> int:
        """Return the blocks of a call: as many experts share a block as make them fit the SMs.

        Source: DeepEP internode_ll.cu: num_warp_groups = ceil(experts / SMs),
        num_sms = ceil(experts / num_warp_groups).
        """
        return self.blocks or -(-experts // -(-experts // sms))

    def seconds(self, exchange: Exchange, sms: int, blocks: int | None = None) -> float:
        """Return the time of the stage.

        Args:
            exchange: What is sent.
            sms: SMs of the GPU.
            blocks: Blocks, where the user chooses how many SMs communicate.
        """
        moved = exchange.sent_bytes(self.stage, self.copies)
        used = blocks or self.blocks_of(exchange.experts, sms)
        latency = (
            self.base_us
            + (exchange.ranks - 1) * self.per_rank_us
            + exchange.experts * self.per_expert_us
        )
        slowest = self._slowest_block_s(exchange.tokens_per_rank, moved, used)
        return latency * 1e-6 + max(moved / self.bytes_per_s, slowest)

    def _slowest_block_s(self, tokens: int, moved: float, blocks: int) -> float:
        if not tokens:
            return 0.0
        deepest = -(-tokens // blocks)
        carried = moved / tokens / self.block_bytes_per_s if self.block_bytes_per_s else 0.0
        return deepest * (self.block_token_us * 1e-6 + carried)
