"""What may vary: problems, layouts, routings, spaces."""

from .batcher import simulate_steps
from .config import LaunchConfig, Value
from .layout import Layout, default_layout, parse_layout
from .models import load_model, model_names, with_formats
from .problem import (
    ACTIVATION_FORMATS,
    GEMMS,
    PAIRS,
    SPELLINGS,
    WEIGHT_FORMATS,
    Activation,
    Format,
    MoEShape,
    Problem,
    Unit,
)
from .recorded_routing import RecordedRouting, SkewFit, read_recorded_routing
from .routing import (
    Routing,
    expected_active_experts,
    expected_rows,
    parse_routing,
    rows_per_expert,
)
from .serving import Serving, parse_ranks
from .space import Constraint, Parameter, Space
from .step_statistics import Summary, summarise, token_histogram
from .steps import Origin, Step, Workload, load_steps, save_steps
from .tokens import VLLM_LADDER, parse_tokens
from .traces import Trace, read_trace
from .workloads import workloads_of

__all__ = [
    "ACTIVATION_FORMATS",
    "GEMMS",
    "PAIRS",
    "SPELLINGS",
    "VLLM_LADDER",
    "WEIGHT_FORMATS",
    "Activation",
    "Constraint",
    "Format",
    "LaunchConfig",
    "Layout",
    "MoEShape",
    "Origin",
    "Parameter",
    "Problem",
    "RecordedRouting",
    "Routing",
    "Serving",
    "SkewFit",
    "Space",
    "Step",
    "Summary",
    "Trace",
    "Unit",
    "Value",
    "Workload",
    "default_layout",
    "expected_active_experts",
    "expected_rows",
    "load_model",
    "load_steps",
    "model_names",
    "parse_layout",
    "parse_ranks",
    "parse_routing",
    "parse_tokens",
    "read_recorded_routing",
    "read_trace",
    "rows_per_expert",
    "save_steps",
    "simulate_steps",
    "summarise",
    "token_histogram",
    "with_formats",
    "workloads_of",
]
