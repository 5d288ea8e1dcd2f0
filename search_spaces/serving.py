"""How an engine turns requests into steps: the settings of the batcher simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from ..errors import InvalidInput

ASSIGNMENTS = ("least_requests", "least_tokens", "round_robin")
ROLES = ("mixed", "prefill", "decode")
MOST_RANKS = 1024
MOST_CHUNK = 1 << 20
MOST_US = 10_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Data-parallel attention ranks that step together, and how each fills a step.

    The three times are *declared assumptions*, not measurements: a step takes
    `fixed_us + prefill_us * p + decode_us * d` where p and d are the prefill and decode tokens of
    the rank that has most of them, because the ranks wait for the slowest. They decide only how many
    requests arrive during a step; docs/workloads.md shows how much that matters.

    Attributes:
        ranks: Attention data-parallel ranks (n of DEPn).
        chunk: Most tokens one rank processes in a step (vLLM max_num_batched_tokens, SGLang
            chunked_prefill_size).
        max_batch: Most sequences one rank works on (vLLM max_num_seqs).
        speculative: Draft tokens a decoding sequence brings to a step besides its own.
        acceptance: Share of draft tokens that are accepted.
        assign: How an arriving request gets its rank, ties to the lowest rank: "least_requests"
            (4 * waiting + running, as vLLM's balancer), "least_tokens" (prompt tokens not computed
            yet, then requests), "round_robin".
        role: "mixed"; "prefill": an instance that hands each request on after its first token;
            "decode": one that gets requests whose prompt is computed already.
        prefix_cache: Do not compute prompt tokens that an earlier request had (unlimited, shared by
            all ranks: an upper bound).
        fixed_us: Time of a step without its tokens.
        prefill_us: Time a prefill token adds.
        decode_us: Time a decode token (drafts included) adds.
    """

    ranks: int = 1
    chunk: int = 8192
    max_batch: int = 256
    speculative: int = 0
    acceptance: float = 0.7
    assign: str = "least_requests"
    role: str = "mixed"
    prefix_cache: bool = False
    fixed_us: float = 10_000.0
    prefill_us: float = 20.0
    decode_us: float = 20.0

    def __post_init__(self) -> None:
        """Refuse settings that no engine can have."""
        _check_counts(self)
        _check_numbers(self)
        for name, known in (("assign", ASSIGNMENTS), ("role", ROLES)):
            if getattr(self, name) not in known:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)!r}: must be one of {', '.join(known)}"
                )
        if not isinstance(self.prefix_cache, bool):
            raise InvalidInput(f"prefix_cache is {self.prefix_cache!r}: must be true or false")
        need = self.max_batch * (1 + self.speculative)
        if need > self.chunk:
            raise InvalidInput(
                f"chunk is {self.chunk}: must be at least max_batch * (1 + speculative) = {need}, "
                f"or decoding sequences would wait for each other; lower max_batch"
            )

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens a decoding sequence brings to a step."""
        return 1 + self.speculative

    @property
    def generated_per_step(self) -> float:
        """Tokens a decoding sequence gets from a step."""
        return 1 + self.speculative * self.acceptance

    def step_us(self, prefill: int, decode: int) -> int:
        """Return the assumed time of a step, in whole microseconds (at least 1).

        Args:
            prefill: Prefill tokens of the rank that has most.
            decode: Decode tokens of the rank that has most.
        """
        time = self.fixed_us + self.prefill_us * prefill + self.decode_us * decode
        return max(1, round(time))

    def as_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Serving:
        """Make one from what `as_dict` returned.

        Raises:
            InvalidInput: an unknown setting, or a value that cannot be meant.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidInput(
                f"unknown serving setting {unknown[0]!r}: known are {sorted(known)}"
            )
        return cls(**values)  # type: ignore[arg-type]  # checked by __post_init__


def _check_counts(serving: Serving) -> None:
    for name, least, most in (
        ("ranks", 1, MOST_RANKS),
        ("chunk", 1, MOST_CHUNK),
        ("max_batch", 1, MOST_CHUNK),
        ("speculative", 0, 64),
    ):
        value = getattr(serving, name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(f"{name} is {value!r}: must be an integer from {least} to {most}")


def _check_numbers(serving: Serving) -> None:
    for name, most in (
        ("acceptance", 1.0),
        ("fixed_us", MOST_US),
        ("prefill_us", MOST_US),
        ("decode_us", MOST_US),
    ):
        value = getattr(serving, name)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not 0 <= value <= most:
            raise InvalidInput(f"{name} is {value!r}: must be a number from 0 to {most:g}")


def parse_ranks(text: str) -> int:
    """Return the attention ranks of "single" or "depN".

    Raises:
        InvalidInput: another layout: epN and tpN do not say how attention is sharded.
    """
    found = re.fullmatch(r"(single)|dep([0-9]{1,4})", text.strip().lower())
    if found and (found[1] or 1 <= int(found[2]) <= MOST_RANKS):
        return int(found[2] or 1)
    raise InvalidInput(f"layout is {text!r}: must be single or depN (dep8), N up to {MOST_RANKS}")
