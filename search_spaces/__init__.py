"""What may vary: problems, layouts, routings, spaces."""

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
from .routing import (
    Routing,
    expected_active_experts,
    expected_rows,
    parse_routing,
    rows_per_expert,
)
from .space import Constraint, Parameter, Space
from .tokens import VLLM_LADDER, parse_tokens

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
    "Parameter",
    "Problem",
    "Routing",
    "Space",
    "Unit",
    "Value",
    "default_layout",
    "expected_active_experts",
    "expected_rows",
    "load_model",
    "model_names",
    "parse_layout",
    "parse_routing",
    "parse_tokens",
    "rows_per_expert",
    "with_formats",
]
