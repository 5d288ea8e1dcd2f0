"""What evaluators share that time code compiled here, for the target as the topology describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...db import Silicon, Toolchain
from ...db.silicon import silicon_of
from ...search_spaces import LaunchConfig, Space, Unit
from ..evaluation import Setting
from ..toolchain import toolchain


@dataclass(slots=True)
class TargetEvaluator:
    """Identity of a target, and its whole space."""

    setting: Setting

    @property
    def silicon(self) -> Silicon:
        """The target: detected, or as its topology file describes it."""
        return silicon_of(self.setting.gpu)

    @property
    def toolchain(self) -> Toolchain:
        """The triton of this environment."""
        return toolchain(self.setting.gpu.arch)

    def hold(self, wait_s: float = 0.0, says: Callable[[str], None] | None = None) -> None:
        """Compilers are shared."""

    def warm_up(self) -> None:
        """Nothing takes time to get ready."""

    def restrict(self, space: Space, unit: Unit) -> Space:
        """Return the whole space: any of it can be evaluated."""
        return space

    def stand_in(self, tokens: int, config: LaunchConfig) -> LaunchConfig:
        """Return the config itself: any legal config can be evaluated."""
        return config
