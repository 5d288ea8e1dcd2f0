"""How the best variant is found: compile, prune, predict, time, verify, choose."""

from .dry_run import Estimate, estimate
from .imports import ImportRequest, import_results
from .plan import Plan, read_plan, run_plan
from .request import SweepRequest, resolve
from .result import SweepResult
from .sweep import sweep
from .tables import describe_spaces, export_winners, inspect_config, look_up

__all__ = [
    "Estimate",
    "ImportRequest",
    "Plan",
    "SweepRequest",
    "SweepResult",
    "describe_spaces",
    "estimate",
    "export_winners",
    "import_results",
    "inspect_config",
    "look_up",
    "read_plan",
    "resolve",
    "run_plan",
    "sweep",
]
