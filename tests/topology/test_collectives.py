"""Dispatch and combine: bytes, distinct ranks, and the recorded times within 15 %."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import collectives
from rubin_tune.errors import CorruptFile, InvalidInput, UnknownFact, UnknownName
from rubin_tune.topology import (
    Copies,
    Exchange,
    Stage,
    Topology,
    bf16_row_bytes,
    fp8_row_bytes,
    load_gpu,
    load_rack,
)

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT.parent / "shared/data/measured/aic_deepep_ll.csv.gz"
H200 = Topology.of_rack(load_rack("h200_dgx"))
RUBIN = Topology.of_rack(load_rack("vr_nvl72"))
NODE = (ROOT / "topology/racks/h200_dgx.toml").read_text(encoding="utf-8")


def exchange(
    tokens: int = 128, *, top_k: int = 8, experts: int = 256, ranks: int = 8, hidden: int = 7168
) -> Exchange:
    return Exchange(
        tokens_per_rank=tokens,
        top_k=top_k,
        experts=experts,
        ranks=ranks,
        dispatch_row_bytes=fp8_row_bytes(hidden),
        combine_row_bytes=bf16_row_bytes(hidden),
    )


@pytest.mark.parametrize("figure", collectives.figures(), ids=lambda f: f.what)
def test_each_recorded_figure_is_reproduced_within_15_percent(figure: collectives.Figure) -> None:
    assert abs(figure.error) <= 0.15, f"{figure.ours:.3g} for {figure.recorded} {figure.unit}"


@pytest.mark.skipif(not TABLE.is_file(), reason="DeepEP's table is not beside the repository")
def test_all_of_deepeps_table_is_near_and_the_held_out_shape_within_15_percent() -> None:
    for spread in collectives.spreads(collectives.read_table(TABLE)):
        assert spread.rows == 176
        assert spread.median <= 0.05
        assert spread.p90 <= 0.12
        assert spread.held_out_worst <= 0.15


@pytest.mark.skipif(not TABLE.is_file(), reason="DeepEP's table is not beside the repository")
@pytest.mark.parametrize("system", ["h200_sxm", "b200_sxm", "gb200"])
@pytest.mark.parametrize("stage", Stage)
def test_the_described_constants_are_those_of_the_fit(system: str, stage: Stage) -> None:
    rack = {"h200_sxm": "h200_dgx", "b200_sxm": "b200_dgx", "gb200": "gb200_nvl72"}[system]
    (kept,) = (f for f in load_rack(rack).exchanges_of(stage) if f.algorithm == "deepep_ll")
    again = collectives.fit(collectives.read_table(TABLE), system, stage)
    assert kept.base_us == pytest.approx(again.base_us, abs=0.02)
    assert kept.per_expert_us == pytest.approx(again.per_expert_us, abs=1e-4)
    for name in ("bytes_per_s", "block_token_us", "block_bytes_per_s"):
        assert getattr(kept, name) == pytest.approx(getattr(again, name), rel=0.01), name


@pytest.mark.parametrize(
    ("top_k", "ranks", "distinct", "remote"),
    [
        (8, 4, 3.61, 2.71),
        (8, 8, 5.28, 4.62),
        (8, 16, 6.50, 6.09),
        (8, 32, 7.24, 7.01),
        (8, 72, 7.69, 7.59),
        (6, 4, 3.30, None),
        (6, 8, 4.43, None),
        (6, 72, 5.83, None),
    ],
)
def test_distinct_ranks_are_those_of_the_formula(
    top_k: int, ranks: int, distinct: float, remote: float | None
) -> None:
    # facts/moe-kernels.md 5.4, whose figures are those of 384 experts; 72 ranks hold 5 or 6.
    found = exchange(top_k=top_k, ranks=ranks, experts=384)
    assert found.distinct_ranks == pytest.approx(distinct, abs=0.006)
    if remote is not None:
        assert found.remote_ranks == pytest.approx(remote, abs=0.012)


def test_distinct_ranks_agree_with_sampling_when_experts_do_not_divide() -> None:
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(3), [4, 3, 3])
    seen = [len(set(owner[rng.permutation(10)[:4]])) for _ in range(20_000)]
    found = exchange(top_k=4, experts=10, ranks=3).distinct_ranks
    assert found == pytest.approx(float(np.mean(seen)), rel=0.01)


def test_one_rank_and_all_experts_have_the_distinct_ranks_one_expects() -> None:
    assert exchange(ranks=1).distinct_ranks == 1
    assert exchange(top_k=256).distinct_ranks == 8


def test_low_latency_bytes_are_counted_per_route_the_local_ones_too() -> None:
    # facts/moe-kernels.md 5.4: 128 x 8 x (7168 + 224) B in 35.1 us are 216 GB/s.
    sent = exchange().sent_bytes(Stage.DISPATCH, Copies.ROUTES)
    assert sent == 128 * 8 * (7168 + 224)
    assert sent / 35.119e-6 / 1e9 == pytest.approx(216, abs=1)
    back = exchange().sent_bytes(Stage.COMBINE, Copies.ROUTES)
    assert back / 67.745e-6 / 1e9 == pytest.approx(217, abs=1)


def test_a_copy_for_each_rank_is_less_than_one_for_each_route() -> None:
    found = exchange()
    fewer = found.sent_bytes(Stage.DISPATCH, Copies.RANKS)
    assert fewer == pytest.approx(128 * found.distinct_ranks * 7392)
    assert fewer < found.sent_bytes(Stage.DISPATCH, Copies.ROUTES)
    assert found.remote_bytes(Stage.DISPATCH, Copies.RANKS) == pytest.approx(fewer * 7 / 8)


def test_each_further_trip_pays_the_measured_round_trip() -> None:
    one, two = H200.dispatch(exchange()), H200.dispatch(exchange(), trips=2)
    assert two - one == pytest.approx(2.51e-6)
    with pytest.raises(InvalidInput, match="trips is 0"):
        H200.combine(exchange(), trips=0)


def test_without_a_measured_round_trip_the_fastest_latency_stands_for_it() -> None:
    # VR: the all-reduce by low-latency stores, 3.07 us and 0.076 us a peer, or multicast 3.17, .065.
    assert RUBIN.round_trip(8) == pytest.approx(min(3.07 + 7 * 0.076, 3.17 + 7 * 0.065) * 1e-6)
    with pytest.raises(UnknownFact, match="round trip"):
        Topology.around(load_gpu("h100")).round_trip()


def test_a_rack_without_measured_exchanges_uses_its_all_to_all_of_remote_routes() -> None:
    found = exchange(tokens=1024)
    remote = found.remote_bytes(Stage.DISPATCH, Copies.ROUTES)
    assert RUBIN.dispatch(found) == RUBIN.all_to_all(remote, 8)
    assert RUBIN.dispatch(found, trips=2) > RUBIN.dispatch(found)


def test_more_tokens_than_low_latency_was_measured_on_go_the_normal_way() -> None:
    many = exchange(tokens=4096)
    assert H200.dispatch(many) == H200.dispatch(many, algorithm="deepep_normal")
    few = exchange(tokens=64)
    assert H200.dispatch(few) == H200.dispatch(few, algorithm="deepep_ll")


def test_few_sms_carry_less() -> None:
    many = exchange(tokens=4096)
    times = [
        H200.combine(many, algorithm="deepep_normal", blocks=blocks) for blocks in (4, 8, 16, 24)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[1] == pytest.approx(2, rel=0.01)


def test_few_experts_use_few_blocks_and_are_slow() -> None:
    few = exchange(tokens=1024, top_k=2, experts=8, hidden=4096)
    more = exchange(tokens=1024, top_k=2, experts=128, hidden=4096)
    assert H200.dispatch(few) > 4 * H200.dispatch(more)


def test_one_rank_sends_nothing_and_no_tokens_pay_the_latency() -> None:
    assert H200.dispatch(exchange(ranks=1)) == 0
    assert H200.dispatch(exchange(tokens=0)) == pytest.approx((6.38 + 256 * 0.0122) * 1e-6)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"top_k": 0}, "top_k is 0"),
        ({"top_k": 257}, "top_k is 257: must be at most 256"),
        ({"ranks": 300}, "ranks is 300: must be at most 256"),
        ({"tokens": -1}, "tokens_per_rank is -1"),
    ],
)
def test_what_cannot_be_routed_is_refused(changes: dict[str, int], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        exchange(**changes)


def test_more_ranks_than_the_node_has_and_unknown_algorithms_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ranks is 16: h200_dgx joins 8 GPUs"):
        H200.dispatch(exchange(ranks=16))
    with pytest.raises(UnknownName, match=r"unknown dispatch 'deepep'.*deepep_ll"):
        H200.dispatch(exchange(), algorithm="deepep")


def test_gathering_and_scattering_are_the_fastest_fits() -> None:
    # Gathered by plain stores of 7/8 of the message; added by the switch at 7/8 of its peak.
    size = 256 << 20
    assert RUBIN.all_gather(size, 8) == pytest.approx(
        (22.60 + 7 * 0.30) * 1e-6 + 7 / 8 * size / 1170e9, rel=1e-6
    )
    assert RUBIN.reduce_scatter(size, 8) == pytest.approx(
        (11.75 + 7 * 0.226) * 1e-6 + size / 1134e9, rel=1e-6
    )
    assert RUBIN.all_gather(size, 1) == RUBIN.reduce_scatter(size, 1) == 0
    with pytest.raises(UnknownFact, match="h200_dgx has no published 'all_gather time'"):
        H200.all_gather(size, 8)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("tokens = [1, 1024]", "tokens = [0, 1024]", "tokens is .0, 1024.: must be"),
        ("tokens = [1, 1024]", "tokens = [9, 3]", "tokens is .9, 3.: must be"),
        ("tokens = [1, 1024]\n", "", "tokens is None"),
        ("bandwidth_gb_per_s = 279", "bandwidth_gb_per_s = 0", "bandwidth_gb_per_s is 0"),
        ("bandwidth_gb_per_s = 279", "bandwidth_gb_per_s = -1", "must be at least 0"),
        ('copies = "every_route"', 'copies = "twice"', "copies is 'twice'"),
        ("[exchanges.dispatch.deepep_ll]", "[exchanges.send.deepep_ll]", "unknown 'send'"),
        ("block_token_us", "block_us", "unknown 'block_us'"),
    ],
)
def test_a_broken_exchange_is_one_sentence(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert old in NODE
    path = tmp_path / "own.toml"
    path.write_text(NODE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(CorruptFile, match=why) as caught:
        load_rack(str(path))
    assert "\n" not in str(caught.value)
