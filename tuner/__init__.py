"""How the best variant is found: compile, prune, predict, time, verify, choose."""

from .request import SweepRequest, resolve
from .result import SweepResult
from .sweep import sweep
from .tables import describe_spaces, export_winners, inspect_config, look_up

__all__ = [
    "SweepRequest",
    "SweepResult",
    "describe_spaces",
    "export_winners",
    "inspect_config",
    "look_up",
    "resolve",
    "sweep",
]
