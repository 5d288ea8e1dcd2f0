"""Who uses the winners: a table that a serving engine loads and asks for configs, and what runs them.

Importing this package imports the standard library only: no torch, numpy or SQLAlchemy. `MegaMoE` imports
torch and triton when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._workspace import Workspace
from .choices import Choice, Edge, Reason
from .limits import Limits
from .misses import MissLog
from .table import Table, load
from .watch import TableWatcher

if TYPE_CHECKING:
    from .megamoe import MegaMoE as MegaMoE

__all__ = [
    "Choice",
    "Edge",
    "Limits",
    "MegaMoE",
    "MissLog",
    "Reason",
    "Table",
    "TableWatcher",
    "Workspace",
    "load",
]


def __getattr__(name: str) -> Any:
    if name == "MegaMoE":
        from .megamoe import MegaMoE

        return MegaMoE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
