"""The machine as a graph, and the questions that the rest of the house asks of it.

Nodes: rack -> tray -> GPU -> locality domain -> memory, and one switch; of an imported machine its
hosts' CPUs, bridges, GPUs, NICs and switches. Each carries `kind`. Edges carry `kind` (holds, memory,
nvlink, or what an import calls them), `bandwidth` in bytes/s and `latency` in s, None where unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import networkx as nx

from ..errors import InvalidInput, UnknownFact, UnknownName
from .catalogue import load_gpu, load_rack, rack_names
from .exchange import Copies, Exchange, ExchangeFit, Stage
from .gpu import Gpu, Placement, SharedMemory
from .machine import Link, Machine
from .rack import Collective, Fit, Rack


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One GPU, a rack of equal GPUs, or an imported machine.

    Build it with `of_gpu`, `of_rack`, `around` or `of_machine`.

    Attributes:
        each: What each GPU is, or None where an import does not say.
        rack: The rack whose figures hold, or None.
        machine: What was imported, or None.
        graph: The graph, frozen.
    """

    each: Gpu | None
    rack: Rack | None = None
    machine: Machine | None = None
    graph: nx.Graph[str] = field(compare=False, repr=False)

    @classmethod
    def of_gpu(cls, gpu: Gpu, *, fake_domains: int = 1) -> Topology:
        """Return the topology of a single GPU."""
        gpu = gpu.split(fake_domains)
        graph: nx.Graph[str] = nx.Graph()
        _add_gpu(graph, gpu, "gpu0")
        return cls(each=gpu, graph=nx.freeze(graph))

    @classmethod
    def of_rack(cls, rack: Rack, gpu: Gpu | None = None, *, fake_domains: int = 1) -> Topology:
        """Return the topology of a rack; `gpu` stands for the one it names (a live one, say)."""
        gpu = (gpu or load_gpu(rack.gpu)).split(fake_domains)
        return cls(each=gpu, rack=rack, graph=nx.freeze(_rack_graph(rack, gpu)))

    @classmethod
    def around(cls, gpu: Gpu, *, fake_domains: int = 1) -> Topology:
        """Return the rack that such GPUs come in, or the GPU alone where none is described."""
        home = _home(gpu)
        if home is None:
            return cls.of_gpu(gpu, fake_domains=fake_domains)
        return cls.of_rack(home, gpu, fake_domains=fake_domains)

    @classmethod
    def of_machine(cls, machine: Machine, gpu: Gpu | None = None) -> Topology:
        """Return the topology of an imported machine.

        Args:
            machine: What was read.
            gpu: What its GPUs are. The collectives of the rack such GPUs come in then hold, and
                NVLinks of unknown speed have that of its version.
        """
        if gpu is not None and (version := gpu.find("nvlink_version")) is not None:
            machine = machine.with_nvlink(int(version.number))
        return cls(
            each=gpu,
            rack=_home(gpu) if gpu else None,
            machine=machine,
            graph=nx.freeze(_machine_graph(machine, gpu)),
        )

    @property
    def gpu(self) -> Gpu:
        """What each GPU is.

        Raises:
            UnknownFact: an import does not say.
        """
        if self.each is None:
            raise UnknownFact(self._title, "gpu", "say which GPU it holds")
        return self.each

    @property
    def _title(self) -> str:
        if self.machine:
            return self.machine.title
        return self.rack.name if self.rack else self.gpu.name

    @property
    def max_ranks(self) -> int:
        """GPUs that NVLink joins."""
        if self.machine is None:
            return self.rack.gpus if self.rack else 1
        links: nx.Graph[str] = nx.Graph()
        for a, b, edge in self.graph.edges(data=True):
            if edge["kind"] == "nvlink":
                links.add_edge(a, b)
        groups = [sum(_is_gpu(self.graph, n) for n in g) for g in nx.connected_components(links)]
        return max(groups, default=1)

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

        The fastest fit; where none is published, the fastest of the all-gather's that copy nothing
        in the switch: by plain stores it moves as many bytes over the same links, though every peer
        gets the same ones.

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
        own = self.rack.fits_of(Collective.ALL_TO_ALL) if self.rack else ()
        fits = own or [f for f in self._fits(Collective.ALL_GATHER) if not f.multicast]
        return min(trips * f.latency_s(ranks) + f.transfer_s(bytes_per_rank, ranks) for f in fits)

    def all_gather(self, message_bytes: float, ranks: int) -> float:
        """Return the seconds in which every rank gets the parts of all.

        Args:
            message_bytes: Bytes of the gathered whole; a rank brings one n-th.
            ranks: GPUs that take part; 1 takes no time.

        Raises:
            InvalidInput: a negative size, no ranks, or more than there are.
            UnknownFact: no fits are known for these GPUs.
        """
        self._check(message_bytes, ranks)
        return 0.0 if ranks == 1 else self._fastest(Collective.ALL_GATHER, message_bytes, ranks)

    def reduce_scatter(self, message_bytes: float, ranks: int) -> float:
        """Return the seconds in which every rank gets its n-th of the sum of all messages.

        Args:
            message_bytes: Bytes of one rank's message.
            ranks: GPUs that take part; 1 takes no time.

        Raises:
            InvalidInput: a negative size, no ranks, or more than there are.
            UnknownFact: no fits are known for these GPUs.
        """
        self._check(message_bytes, ranks)
        return (
            0.0 if ranks == 1 else self._fastest(Collective.REDUCE_SCATTER, message_bytes, ranks)
        )

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

    def dispatch(
        self,
        exchange: Exchange,
        *,
        trips: int = 1,
        algorithm: str | None = None,
        blocks: int | None = None,
    ) -> float:
        """Return the seconds in which every token's row reaches the ranks of its experts.

        The fastest of the rack's measured exchanges whose range holds the token count (else the
        nearest range); where none was measured, an all-to-all of one row a remote route.

        Args:
            exchange: What is sent.
            trips: Round trips a token makes over the links; 1 is what was measured.
            algorithm: Name of one exchange, "deepep_ll" say.
            blocks: Thread blocks, where the user chooses how many SMs communicate.

        Raises:
            InvalidInput: more ranks than there are, no trips, or no such algorithm.
            UnknownFact: no fits are known for these GPUs.
        """
        return self._stage(Stage.DISPATCH, exchange, trips, algorithm, blocks)

    def combine(
        self,
        exchange: Exchange,
        *,
        trips: int = 1,
        algorithm: str | None = None,
        blocks: int | None = None,
    ) -> float:
        """Return the seconds in which every token gets its experts' results back (see `dispatch`)."""
        return self._stage(Stage.COMBINE, exchange, trips, algorithm, blocks)

    def round_trip(self, ranks: int = 2) -> float:
        """Return the seconds that one more round trip over the links costs.

        The GPU's measured figure; else the latency of the fastest collective stands for it, an
        upper bound, for it holds a launch too.

        Raises:
            UnknownFact: no fits are known for these GPUs.
        """
        measured = self.gpu.find("nvlink_round_trip_latency")
        if measured is not None:
            return measured.number
        known = self.rack.fits if self.rack else ()
        if not known:
            raise UnknownFact(self._title, "round trip", "no figure and no collective is known")
        return min(f.latency_s(ranks) for f in known)

    def _stage(
        self,
        stage: Stage,
        exchange: Exchange,
        trips: int,
        algorithm: str | None,
        blocks: int | None,
    ) -> float:
        self._check(exchange.sent_bytes(stage, Copies.ROUTES), exchange.ranks)
        if trips < 1:
            raise InvalidInput(f"trips is {trips}: must be at least 1")
        if exchange.ranks == 1:
            return 0.0
        fits = self._exchanges(stage, algorithm)
        if not fits:
            return self.all_to_all(
                exchange.remote_bytes(stage, Copies.ROUTES), exchange.ranks, trips
            )
        nearest = min(fit.distance(exchange.tokens_per_rank) for fit in fits)
        again = (trips - 1) * self.round_trip(exchange.ranks) if trips > 1 else 0.0
        return again + min(
            fit.seconds(exchange, self.gpu.sms, blocks)
            for fit in fits
            if fit.distance(exchange.tokens_per_rank) == nearest
        )

    def _exchanges(self, stage: Stage, algorithm: str | None) -> tuple[ExchangeFit, ...]:
        fits = self.rack.exchanges_of(stage) if self.rack else ()
        if algorithm is None:
            return fits
        named = tuple(fit for fit in fits if fit.algorithm == algorithm)
        if not named:
            raise UnknownName(stage.value, algorithm, {fit.algorithm for fit in fits})
        return named

    def _fastest(self, collective: Collective, message_bytes: float, ranks: int) -> float:
        return min(f.seconds(message_bytes, ranks) for f in self._fits(collective))

    def _fits(self, collective: Collective) -> tuple[Fit, ...]:
        fits = self.rack.fits_of(collective) if self.rack else ()
        if not fits:
            raise UnknownFact(
                self._title,
                f"{collective} time",
                "no rack of these GPUs with fitted collectives is described in topology/racks",
            )
        return fits

    def _check(self, size: float, ranks: int) -> None:
        if not 0 <= size < float("inf"):
            raise InvalidInput(f"message of {size!r} bytes: must be a number of at least 0")
        if ranks < 1:
            raise InvalidInput(f"ranks is {ranks}: must be at least 1")
        if (self.rack or self.machine) and ranks > self.max_ranks:
            raise InvalidInput(
                f"ranks is {ranks}: {self._title} joins {self.max_ranks} GPUs by NVLink"
            )


def _home(gpu: Gpu) -> Rack | None:
    """Return the rack that such GPUs come in; the first by name where there are several."""
    racks = (load_rack(name) for name in rack_names())
    return next((rack for rack in racks if rack.gpu == gpu.name), None)


def _is_gpu(graph: nx.Graph[str], node: str) -> bool:
    return bool(graph.nodes[node]["kind"] == "gpu")


def _machine_graph(machine: Machine, gpu: Gpu | None) -> nx.Graph[str]:
    """Put an import's devices in a graph; of several links of one pair the fastest kind stays."""
    graph: nx.Graph[str] = nx.Graph()
    for device in machine.devices:
        if gpu is not None and device.kind == "gpu":
            _add_gpu(graph, gpu, device.name)
        graph.add_node(device.name, kind=device.kind.value, **dict(device.notes))
    for device in machine.devices:
        if device.parent is not None:
            graph.add_edge(device.parent, device.name, kind="holds", bandwidth=None, latency=None)
    for link in sorted(machine.links, key=Link.slowness, reverse=True):
        graph.add_edge(
            link.a,
            link.b,
            kind=link.kind.value,
            lanes=link.lanes,
            bandwidth=link.bandwidth,
            latency=None,
        )
    return graph


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
