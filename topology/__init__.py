"""What the machine is: GPUs, locality domains, memory levels, NVLink racks, collectives.

Every figure has a source and a confidence; one that nobody has published raises when asked for.
"""

from .catalogue import gpu_names, load_gpu, load_rack, rack_names, resolve_target
from .detect import detect_gpu, is_present
from .environment import FAKE_DOMAINS, fake_domains
from .facts import Confidence, Fact, Sheet
from .gpu import Gpu, Placement, SharedMemory
from .graph import Topology
from .rack import Collective, Fit, Rack
from .show import Row, describe

__all__ = [
    "FAKE_DOMAINS",
    "Collective",
    "Confidence",
    "Fact",
    "Fit",
    "Gpu",
    "Placement",
    "Rack",
    "Row",
    "SharedMemory",
    "Sheet",
    "Topology",
    "describe",
    "detect_gpu",
    "fake_domains",
    "gpu_names",
    "is_present",
    "load_gpu",
    "load_rack",
    "rack_names",
    "resolve_target",
]
