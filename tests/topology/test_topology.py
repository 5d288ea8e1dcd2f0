"""The graph of a machine, and collective times against the published fits."""

from __future__ import annotations

import pickle

import networkx as nx
import pytest

from rubin_tune.errors import InvalidInput, UnknownFact
from rubin_tune.topology import Collective, Topology, describe, load_gpu, load_rack

RUBIN = Topology.of_rack(load_rack("vr_nvl72"))
GB300 = Topology.of_rack(load_rack("gb300_nvl72"))
MIB = 1 << 20


def _us(base: float, per_rank: float, moved: float, gb_per_s: float, ranks: int) -> float:
    """Compute a fit in microseconds as facts/hardware.md 2 writes it."""
    return base + (ranks - 1) * per_rank + moved / (gb_per_s * 1e9) * 1e6


def test_a_large_all_to_all_is_the_tma_store_fit() -> None:
    expected = _us(22.60, 0.30, 256 * MIB, 1170, 8)
    assert RUBIN.all_to_all(256 * MIB, 8) * 1e6 == pytest.approx(expected)
    expected = _us(10.06, 0.068, 256 * MIB, 672, 8)
    assert GB300.all_to_all(256 * MIB, 8) * 1e6 == pytest.approx(expected)


def test_a_small_all_to_all_is_the_low_latency_fit_without_multicast() -> None:
    assert RUBIN.all_to_all(1024, 8) * 1e6 == pytest.approx(_us(7.90, 0.29, 1024, 380, 8))
    assert GB300.all_to_all(1024, 8) * 1e6 == pytest.approx(_us(7.11, 0.107, 1024, 250, 8))


def test_each_trip_pays_the_latency_and_not_the_bytes_again() -> None:
    one, two = RUBIN.all_to_all(1024, 8), RUBIN.all_to_all(1024, 8, trips=2)
    assert (two - one) * 1e6 == pytest.approx(7.90 + 7 * 0.29)


def test_a_small_all_reduce_is_the_low_latency_fit() -> None:
    # LL moves the message to each of 7 peers; the multicast form divides by a peak scaled by 7/8.
    plain = _us(3.07, 0.076, 7 * 1024, 346, 8)
    multicast = _us(3.17, 0.065, 7 * 1024 / (7 / 8), 520, 8)
    assert RUBIN.all_reduce(1024, 8) * 1e6 == pytest.approx(min(plain, multicast))


def test_a_large_all_reduce_is_the_switch_adding() -> None:
    # Two phases of 7/8 of the message each, at 7/8 of the peak.
    expected = _us(12.02, 0, 2 * 256 * MIB, 1631, 8)
    assert RUBIN.all_reduce(256 * MIB, 8) * 1e6 == pytest.approx(expected)


def test_an_all_reduce_without_a_fit_is_a_reduce_scatter_and_an_all_gather() -> None:
    assert not load_rack("gb300_nvl72").fits_of(Collective.ALL_REDUCE)
    # The switch adds at 7/8 of 750 GB/s; plain stores spread 7/8 of the message.
    scatter = _us(10.91, 0.074, 256 * MIB, 750, 8)
    gather = _us(10.06, 0.068, 7 / 8 * 256 * MIB, 672, 8)
    assert GB300.all_reduce(256 * MIB, 8) * 1e6 == pytest.approx(scatter + gather)


@pytest.mark.parametrize("topology", [RUBIN, GB300], ids=["vr", "gb300"])
def test_times_rise_with_bytes_and_ranks_and_one_rank_takes_none(topology: Topology) -> None:
    for time in (topology.all_to_all, topology.all_reduce):
        assert time(MIB, 1) == 0.0
        assert 0 < time(0, 2) < time(MIB, 2) < time(64 * MIB, 2)
        assert time(1024, 2) < time(1024, 8) < time(1024, 72)


def test_what_no_rack_can_do_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ranks is 73: vr_nvl72 joins 72 GPUs"):
        RUBIN.all_to_all(1, 73)
    with pytest.raises(InvalidInput, match="ranks is 0"):
        RUBIN.all_reduce(1, 0)
    with pytest.raises(InvalidInput, match="trips is 0"):
        RUBIN.all_to_all(1, 2, trips=0)
    for size in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="bytes: must be"):
            RUBIN.all_to_all(size, 2)


def test_gpus_without_a_described_rack_have_no_collective_times() -> None:
    alone = Topology.around(load_gpu("h100"))
    assert alone.rack is None
    assert alone.all_to_all(MIB, 1) == 0.0
    for time in (alone.all_to_all, alone.all_reduce):
        with pytest.raises(UnknownFact, match="h100 has no published"):
            time(MIB, 2)


def test_around_a_gpu_is_the_rack_it_comes_in_with_that_very_gpu() -> None:
    gpu = load_gpu("vr200").overlaid({}, title="mine")
    home = Topology.around(gpu)
    assert home.rack == load_rack("vr_nvl72")
    assert home.gpu is gpu
    assert home.max_ranks == 72


def test_the_graph_goes_from_rack_to_memory() -> None:
    kinds = nx.get_node_attributes(RUBIN.graph, "kind")
    counts = {kind: list(kinds.values()).count(kind) for kind in set(kinds.values())}
    assert counts == {
        "rack": 1,
        "switch": 1,
        "tray": 18,
        "gpu": 72,
        "domain": 144,
        "memory": 144,
        "supplemental": 72,
    }
    tree = nx.Graph(
        [
            (a, b)
            for a, b, edge in RUBIN.graph.edges(data=True)
            if edge["kind"] == "holds" or edge.get("placement") == "local"
        ]
    )
    assert nx.is_tree(tree)
    path = nx.shortest_path(tree, "rack", "gpu5/domain1/memory")
    assert path == ["rack", "tray1", "gpu5", "gpu5/domain1", "gpu5/domain1/memory"]


def test_any_two_gpus_are_one_switch_apart() -> None:
    links = nx.Graph([e[:2] for e in RUBIN.graph.edges(data="kind") if e[2] == "nvlink"])
    assert nx.diameter(links) == 2
    edge = RUBIN.graph.edges["gpu71", "switch"]
    assert edge["bandwidth"] == 1.8e12
    assert edge["latency"] is None


def test_memory_edges_carry_the_placement_and_its_share_of_bandwidth() -> None:
    graph = Topology.of_gpu(load_gpu("vr200")).graph
    local = graph.edges["gpu0/domain0", "gpu0/domain0/memory"]
    remote = graph.edges["gpu0/domain0", "gpu0/domain1/memory"]
    assert (local["placement"], local["bandwidth"]) == ("local", 8.5e12)
    assert (remote["placement"], remote["bandwidth"]) == ("remote", None)
    assert graph.nodes["gpu0/domain1/memory"]["bytes"] == 144_000_000_000


def test_a_graph_cannot_be_changed() -> None:
    with pytest.raises(nx.NetworkXError):
        RUBIN.graph.add_edge("gpu0", "gpu1")


def test_fake_domains_split_a_one_domain_gpu_in_graph_and_answers() -> None:
    split = Topology.of_gpu(load_gpu("h200"), fake_domains=2)
    assert split.domains_of_sms() == (0,) * 66 + (1,) * 66
    assert "gpu0/domain1/memory" in split.graph
    assert Topology.of_gpu(load_gpu("vr200"), fake_domains=4).gpu.domains == 2


def test_a_topology_answers_for_its_gpu_and_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(RUBIN))
    assert again == RUBIN
    assert again.read_bandwidth("local") == 17e12
    assert again.shared_memory_limit("oversized") == 334_848
    assert again.occupancy(32, 0, 256) == 4


def test_describe_lists_every_figure_with_unit_confidence_and_source() -> None:
    rows = {row.fact: row for row in describe(load_gpu("vr200"))}
    assert rows["memory_peak_bandwidth"].value == "22 TB/s"
    assert rows["shared_memory_per_block"].value == "232,448 B (227 KiB)"
    assert rows["sms"].value == "212 SM"
    assert rows["remote_miss_latency_ratio_low"].value == "1.4"
    assert (rows["l2_bytes"].value, rows["l2_bytes"].confidence) == ("unknown", "unknown")
    assert all(row.source for row in rows.values())
    rack = {row.fact: row for row in describe(load_rack("vr_nvl72"))}
    assert rack["all_gather.tma_store"].value == "22.6 us + 0.3 us a peer, 1170 GB/s"
