"""A server that is gone for a while: a transaction is tried again, with growing pauses, up to a limit.

Only whole transactions are: each method of the store is one, and doing it twice leaves what doing it once
leaves. So it does not matter whether the server died before it committed or before it could say so.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from ..errors import DatabaseGone

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
GROWTH = 1.6

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Outages:
    """When the server was gone, and how long we go on trying.

    Args:
        wait_s: Seconds after which a transaction is given up.
        says: Hears the first failure of each outage, in words.

    Attributes:
        seconds: Of each outage that ended, in order.
    """

    wait_s: float
    says: Callable[[str], None] | None = None
    seconds: list[float] = field(default_factory=list)

    def through(self, transaction: Callable[[], _T]) -> _T:
        """Return what the transaction returns, tried again while the server is gone.

        Raises:
            DatabaseGone: for longer than `wait_s`.
        """
        try:
            return transaction()
        except DatabaseGone as error:
            return self._again(transaction, error)

    def _again(self, transaction: Callable[[], _T], error: DatabaseGone) -> _T:
        began, pause_s, tries = time.monotonic(), FIRST_PAUSE_S, 1
        if self.says is not None and self.wait_s > 0:
            self.says(f"{error}".split(";")[0] + f": trying again for {self.wait_s:g} s")
        while True:
            left_s = self.wait_s - (time.monotonic() - began)
            if left_s <= 0:
                raise DatabaseGone(f"{error}; tried {tries} times in {self.wait_s:g} s") from error
            self._pause(min(pause_s, left_s))
            pause_s = min(pause_s * GROWTH, LONGEST_PAUSE_S)
            tries += 1
            try:
                found = transaction()
            except DatabaseGone as again:
                error = again
            else:
                self.seconds.append(time.monotonic() - began)
                return found

    def _pause(self, seconds: float) -> None:
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            # Who interrupts the waiting does not want the last words waited for either.
            self.wait_s = 0.0
            raise


class Interrupted(Protocol):
    """What has transactions that may be cut off."""

    @property
    def outages(self) -> Outages:
        """How long it waits."""
        ...


_Owner = TypeVar("_Owner", bound=Interrupted)


def transaction(
    method: Callable[Concatenate[_Owner, _P], _T],
) -> Callable[Concatenate[_Owner, _P], _T]:
    """Make a method that is one transaction, and that may be done twice, outlast an outage."""

    @functools.wraps(method)
    def outlasting(self: _Owner, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.outages.through(lambda: method(self, *args, **kwargs))

    return outlasting
