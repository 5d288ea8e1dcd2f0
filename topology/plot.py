"""Pictures: a GPU with its locality domains, a rack or node, an imported machine's links.

What is unknown is drawn dashed and in red, and said to be unknown.
"""

from __future__ import annotations

from .gpu import Gpu
from .graph import Topology
from .plot_gpu import draw_gpu
from .plot_machine import draw_machine
from .plot_rack import draw_rack
from .rack import Rack


def draw(thing: Gpu | Rack | Topology) -> str:
    """Return an SVG picture of a GPU, a rack or a topology.

    Raises:
        InvalidInput: an imported machine too large for a picture.
    """
    if isinstance(thing, Gpu):
        return draw_gpu(thing)
    if isinstance(thing, Rack):
        return draw_rack(Topology.of_rack(thing))
    if thing.machine is not None:
        return draw_machine(thing.machine)
    return draw_gpu(thing.gpu) if thing.rack is None else draw_rack(thing)
