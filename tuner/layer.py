"""A layer's config: what its GEMMs are launched with, as one config."""

from __future__ import annotations

from collections.abc import Mapping

from ..kernels._kernel import Kernel
from ..search_spaces import LaunchConfig, Unit


def layer_config(kernel: Kernel, configs: Mapping[Unit, LaunchConfig]) -> LaunchConfig:
    """Return the shared config of an engine that takes one, else all with the unit's name before."""
    distinct = set(configs.values())
    if len(distinct) == 1 and all(kernel.coupling(c) == c.key for c in distinct):
        return distinct.pop()
    return LaunchConfig.of(
        {f"{unit.value}.{name}": value for unit, c in configs.items() for name, value in c.items}
    )
