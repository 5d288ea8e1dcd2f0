"""rubin-tune: tune mixture-of-experts kernels for a GPU and hand the winners to the engine.

`sweep` is the main job, `load` opens a table of its winners. Importing this package imports neither torch
nor triton nor SQLAlchemy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime import load as load
    from .tuner import sweep as sweep

__version__ = "0.1.0"
__all__ = ["__version__", "load", "sweep"]


def __getattr__(name: str) -> Any:
    # Lazy: `import rubin_tune.runtime` inside a serving engine must not pay for the tuner.
    if name == "sweep":
        from .tuner import sweep

        return sweep
    if name == "load":
        from .runtime import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
