"""A dict that cannot be changed and can be a key: problems and configs of a table of winners."""

from __future__ import annotations

from typing import NoReturn, TypeVar

_V = TypeVar("_V")


class FrozenDict(dict[str, _V]):
    """Equal to the plain dict of the same items; its hash is made once."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:  # type: ignore[override]
        """Return a hash of the items, whatever their order."""
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def __reduce__(self) -> tuple[type[FrozenDict[_V]], tuple[dict[str, _V]]]:
        """Let ranks send it to each other."""
        return FrozenDict, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a table's problems and configs cannot be changed: make a dict of one")

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse
    update = _refuse
