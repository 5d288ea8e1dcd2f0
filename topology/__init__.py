"""What the machine is: GPUs, locality domains, memory levels, NVLink racks, collectives.

Every figure has a source and a confidence; one that nobody has published raises when asked for.
"""

from .catalogue import (
    gpu_names,
    load_described,
    load_gpu,
    load_rack,
    rack_names,
    resolve_target,
)
from .detect import detect_gpu, detect_gpus, detect_machine, is_present
from .environment import FAKE_DOMAINS, fake_domains
from .exchange import Copies, Exchange, ExchangeFit, Stage, bf16_row_bytes, fp8_row_bytes
from .facts import Confidence, Fact, Sheet
from .gpu import Gpu, Placement, SharedMemory
from .graph import Topology
from .importers import import_topology, importer_names, parse_topology
from .machine import Device, DeviceKind, Link, LinkKind, Machine
from .plot import draw
from .rack import Collective, Fit, Rack
from .show import Row, describe

__all__ = [
    "FAKE_DOMAINS",
    "Collective",
    "Confidence",
    "Copies",
    "Device",
    "DeviceKind",
    "Exchange",
    "ExchangeFit",
    "Fact",
    "Fit",
    "Gpu",
    "Link",
    "LinkKind",
    "Machine",
    "Placement",
    "Rack",
    "Row",
    "SharedMemory",
    "Sheet",
    "Stage",
    "Topology",
    "bf16_row_bytes",
    "describe",
    "detect_gpu",
    "detect_gpus",
    "detect_machine",
    "draw",
    "fake_domains",
    "fp8_row_bytes",
    "gpu_names",
    "import_topology",
    "importer_names",
    "is_present",
    "load_described",
    "load_gpu",
    "load_rack",
    "parse_topology",
    "rack_names",
    "resolve_target",
]
