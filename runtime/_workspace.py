"""Buffers of planned steps, shared by the layers of a model."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..kernels._megamoe_serve import ServedPlan

# Plans of more tokens than this hold large buffers, so only a few of them are kept.
SMALL_TOKENS = 256
# Smaller steps are padded to one of these, so that a server's steps of every size need few CUDA graphs.
_PADDED = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, SMALL_TOKENS)
MOST_LARGE = 4


def padded(tokens: int) -> int:
    """Return the token count that a step of `tokens` is planned for."""
    return tokens if tokens > SMALL_TOKENS else _PADDED[bisect_left(_PADDED, tokens)]


class Workspace:
    """Plans by problem and token count; layers that share one run one after the other, on one stream.

    All plans of at most 256 tokens are kept (their buffers are small, and CUDA graphs may hold their
    addresses), and the 4 last used of more.
    """

    def __init__(self) -> None:
        self._small: dict[tuple[str, int], ServedPlan] = {}
        self._large: OrderedDict[tuple[str, int], ServedPlan] = OrderedDict()

    def find(self, code: str, tokens: int) -> ServedPlan | None:
        """Return a plan that was kept."""
        if tokens <= SMALL_TOKENS:
            return self._small.get((code, tokens))
        plan = self._large.get((code, tokens))
        if plan is not None:
            self._large.move_to_end((code, tokens))
        return plan

    def plan(self, code: str, tokens: int, make: Callable[[], ServedPlan]) -> ServedPlan:
        """Return the plan of a problem (by its code) for a token count, made where it is missing."""
        found = self.find(code, tokens)
        if found is not None:
            return found
        if tokens <= SMALL_TOKENS:
            return self._small.setdefault((code, tokens), make())
        # Room first: the buffers of two large plans too many might not fit.
        while len(self._large) >= MOST_LARGE:
            self._large.popitem(last=False)
        return self._large.setdefault((code, tokens), make())
