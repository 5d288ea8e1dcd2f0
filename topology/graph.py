"""The machine as a graph, and the questions that the rest of the house asks of it.

Nodes: rack -> tray -> GPU -> locality domain -> memory, and one switch. Each carries `kind`. Edges
carry `kind` (holds, memory or nvlink), `bandwidth` in bytes/s and `latency` in s, None where
unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import networkx as nx

from ..errors import InvalidInput, UnknownFact
from .catalogue import load_gpu, load_rack, rack_names
from .gpu import Gpu, Placement, SharedMemory
from .rack import Collective, Fit, Rack


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One GPU, or a rack of equal GPUs; build it with `of_gpu`, `of_rack` or `around`.

    Attributes:
        gpu: What each GPU is.
        rack: The rack, or None for a single GPU.
        graph: The graph, frozen.
    """

    gpu: Gpu
    rack: Rack | None = None
    graph: nx.Graph[str] = field(compare=False, repr=False)

    @classmethod
    def of_gpu(cls, gpu: Gpu, *, fake_domains: int = 1) -> Topology:
        """Return the topology of a single GPU."""
        gpu = gpu.split(fake_domains)
        graph: nx.Graph[str] = nx.Graph()
        _add_gpu(graph, gpu, "gpu0")
        return cls(gpu=gpu, graph=nx.freeze(graph))

    @classmethod
    def of_rack(cls, rack: Rack, gpu: Gpu | None = None, *, fake_domains: int = 1) -> Topology:
        """Return the topology of a rack; `gpu` stands for the one it names (a live one, say)."""
        gpu = (gpu or load_gpu(rack.gpu)).split(fake_domains)
        return cls(gpu=gpu, rack=rack, graph=nx.freeze(_rack_graph(rack, gpu)))

    @classmethod
    def around(cls, gpu: Gpu, *, fake_domains: int = 1) -> Topology:
        """Return the rack that such GPUs come in, or the GPU alone where none is described."""
        racks = (load_rack(name) for name in rack_names())
        home = next((rack for rack in racks if rack.gpu == gpu.name), None)
        if home is None:
            return cls.of_gpu(gpu, fake_domains=fake_domains)
        return cls.of_rack(home, gpu, fake_domains=fake_domains)

    @property
    def max_ranks(self) -> int:
        """GPUs that NVLink joins."""
        return self.rack.gpus if self.rack else 1

    def read_bandwidth(self, placement: Placement | str = Placement.INTERLEAVED) -> float:
        """Return what one GPU reads from its memory, in bytes a second (see `Gpu`)."""
        return self.gpu.read_bandwidth(placement)

    def shared_memory_limit(self, mode: SharedMemory | str = SharedMemory.DEFAULT) -> int:
        """Return the most shared memory of one block, in bytes (see `Gpu`)."""
        return self.gpu.shared_memory_limit(mode)

    def occupancy(self, registers: int, shared_bytes: int, threads: int) -> int:
        """Return how many blocks of a kernel an SM holds at once (see `Gpu`)."""
        return self.gpu.occupancy(registers, shared_bytes, threads)

    def domains_of_sms(self) -> tuple[int | None, ...]:
        """Return the domain of every SM of one GPU, None for a supplemental one (see `Gpu`)."""
        return self.gpu.domains_of_sms()

    def all_to_all(self, bytes_per_rank: float, ranks: int, trips: int = 1) -> float:
        """Return the seconds in which every rank sends its share to every other.

        The fastest of NCCL's fits that copy nothing in the switch: an all-gather by plain stores
        moves as many bytes over the same links, though every peer gets the same ones.

        Args:
            bytes_per_rank: Bytes that one rank sends to all others together.
            ranks: GPUs that take part; 1 takes no time.
            trips: Times the latency is paid; the bytes cross once.

        Raises:
            InvalidInput: a negative size, no ranks, more than there are, or no trips.
            UnknownFact: no fits are known for these GPUs.
        """
        self._check(bytes_per_rank, ranks)
        if trips < 1:
            raise InvalidInput(f"trips is {trips}: must be at least 1")
        if ranks == 1:
            return 0.0
        fits = [f for f in self._fits(Collective.ALL_GATHER) if not f.multicast]
        return min(trips * f.latency_s(ranks) + f.transfer_s(bytes_per_rank, ranks) for f in fits)

    def all_reduce(self, message_bytes: float, ranks: int) -> float:
        """Return the seconds in which every rank gets the sum of all ranks' messages.

        The fastest fit; where none is published, the fastest reduce-scatter and then all-gather.

        Args:
            message_bytes: Bytes of one rank's message.
            ranks: GPUs that take part; 1 takes no time.

        Raises:
            InvalidInput: a negative size, no ranks, or more than there are.
            UnknownFact: no fits are known for these GPUs.
        """
        self._check(message_bytes, ranks)
        if ranks == 1:
            return 0.0
        if self.rack and self.rack.fits_of(Collective.ALL_REDUCE):
            return self._fastest(Collective.ALL_REDUCE, message_bytes, ranks)
        return self._fastest(Collective.REDUCE_SCATTER, message_bytes, ranks) + self._fastest(
            Collective.ALL_GATHER, message_bytes, ranks
        )

    def _fastest(self, collective: Collective, message_bytes: float, ranks: int) -> float:
        return min(f.seconds(message_bytes, ranks) for f in self._fits(collective))

    def _fits(self, collective: Collective) -> tuple[Fit, ...]:
        fits = self.rack.fits_of(collective) if self.rack else ()
        if not fits:
            raise UnknownFact(
                self.rack.name if self.rack else self.gpu.name,
                f"{collective} time",
                "no rack of these GPUs with fitted collectives is described in topology/racks",
            )
        return fits

    def _check(self, size: float, ranks: int) -> None:
        if not 0 <= size < float("inf"):
            raise InvalidInput(f"message of {size!r} bytes: must be a number of at least 0")
        if ranks < 1:
            raise InvalidInput(f"ranks is {ranks}: must be at least 1")
        if self.rack and ranks > self.rack.gpus:
            raise InvalidInput(
                f"ranks is {ranks}: {self.rack.name} joins {self.rack.gpus} GPUs by NVLink"
            )


def _rack_graph(rack: Rack, gpu: Gpu) -> nx.Graph[str]:
    """Join all GPUs to one switch: any pair has the same bandwidth, so hops mean nothing."""
    graph: nx.Graph[str] = nx.Graph()
    graph.add_node("rack", kind="rack", name=rack.name)
    chips, latency = rack.find("switches"), rack.find("nvlink_latency")
    graph.add_node("switch", kind="switch", chips=int(chips.number) if chips else None)
    graph.add_edge("rack", "switch", kind="holds", bandwidth=None, latency=None)
    for tray in range(rack.trays):
        graph.add_node(f"tray{tray}", kind="tray")
        graph.add_edge("rack", f"tray{tray}", kind="holds", bandwidth=None, latency=None)
        for index in range(tray * rack.gpus_per_tray, (tray + 1) * rack.gpus_per_tray):
            node = f"gpu{index}"
            _add_gpu(graph, gpu, node)
            graph.add_edge(f"tray{tray}", node, kind="holds", bandwidth=None, latency=None)
            graph.add_edge(
                node,
                "switch",
                kind="nvlink",
                bandwidth=_number(gpu, "nvlink_bandwidth_one_way"),
                latency=latency.number if latency else None,
            )
    return graph


def _add_gpu(graph: nx.Graph[str], gpu: Gpu, node: str) -> None:
    graph.add_node(node, kind="gpu", name=gpu.name, sms=gpu.sms)
    for domain in range(gpu.domains):
        name = f"{node}/domain{domain}"
        graph.add_node(name, kind="domain", sms=gpu.native_sms_per_domain)
        graph.add_node(f"{name}/memory", kind="memory", bytes=gpu.memory_bytes // gpu.domains)
        graph.add_edge(node, name, kind="holds", bandwidth=None, latency=None)
    if gpu.supplemental_sms:
        graph.add_node(f"{node}/supplemental", kind="supplemental", sms=gpu.supplemental_sms)
        graph.add_edge(node, f"{node}/supplemental", kind="holds", bandwidth=None, latency=None)
    for reader in range(gpu.domains):
        for owner in range(gpu.domains):
            _add_memory_edge(graph, gpu, node, reader, owner)


def _add_memory_edge(graph: nx.Graph[str], gpu: Gpu, node: str, reader: int, owner: int) -> None:
    if reader == owner:
        placement, bandwidth = Placement.LOCAL, _local_bandwidth(gpu)
    else:
        placement, bandwidth = Placement.REMOTE, _number(gpu, "memory_read_bandwidth_remote")
    graph.add_edge(
        f"{node}/domain{reader}",
        f"{node}/domain{owner}/memory",
        kind="memory",
        placement=placement,
        # The figures are for all domains reading at once; an edge has one domain's share.
        bandwidth=None if bandwidth is None else bandwidth / gpu.domains,
        latency=None,
    )


def _local_bandwidth(gpu: Gpu) -> float | None:
    try:
        return gpu.read_bandwidth(Placement.LOCAL)
    except UnknownFact:
        return None


def _number(gpu: Gpu, name: str) -> float | None:
    fact = gpu.find(name)
    return None if fact is None else fact.number
