"""What a sweep tells while it runs; the terminal draws it, tests and programs may ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Listener of a running sweep."""

    def stage(self, name: str, total: int) -> None:
        """A stage begins that has `total` steps."""
        ...

    def step(self, note: str = "") -> None:
        """One step of the present stage is done."""
        ...

    def say(self, words: str) -> None:
        """Something happened that its reader may want to know while the run waits or goes on."""
        ...


class Silence:
    """Listener that says nothing."""

    def stage(self, name: str, total: int) -> None:
        """Say nothing."""

    def step(self, note: str = "") -> None:
        """Say nothing."""

    def say(self, words: str) -> None:
        """Say nothing."""
