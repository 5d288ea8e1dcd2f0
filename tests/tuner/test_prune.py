"""What is impossible is never offered; what compile reports speak against comes last, which is safe.

What only the compiler finds impossible (shared memory, TMEM, threads) is in test_compile.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rubin_tune.db import CompileReport, Rejected, Why
from rubin_tune.db.importers import read_results
from rubin_tune.db.recorded_spaces import CodeFacts, RecordedSpace
from rubin_tune.search_spaces import LaunchConfig, Problem, Unit
from rubin_tune.topology import resolve_target
from rubin_tune.tuner.prune import DELAY, doubt, doubtful_later
from rubin_tune.tuner.request import load_kernel

KTT = Path(__file__).parents[2] / "../shared/data/landscapes/kernel-tuner"
CONFIG = LaunchConfig.of(n=1)


@pytest.mark.parametrize("unit", [Unit.GATE_UP, Unit.DOWN])
def test_no_point_is_offered_whose_buffers_do_not_fit_or_that_launches_as_another(
    fp8: Problem, unit: Unit
) -> None:
    gpu = resolve_target("h200")
    space = load_kernel("fused_moe").space(fp8, unit, gpu)
    legal = space.legal()
    assert len({space.canonical(config) for config in legal}) == len(legal) < space.size
    for config in legal:
        m, n, k = (config.integer(name) for name in ("block_m", "block_n", "block_k"))
        assert (config.integer("num_stages") - 1) * (m + n) * k <= gpu.shared_memory_limit(
            "default"
        )
        assert k <= 128


def test_spills_and_starved_schedulers_raise_doubts() -> None:
    assert "spills 8" in doubt(spill_bytes=8, threads=256, blocks=4)
    assert "4 warps" in doubt(spill_bytes=0, threads=128, blocks=1)
    assert doubt(spill_bytes=0, threads=128, blocks=2) == ""


def test_one_warp_group_may_feed_an_asynchronous_tensor_core() -> None:
    for kind in ("hgmma", "qgmma", "utchmma", "utcqmma"):
        assert doubt(spill_bytes=0, threads=128, blocks=1, mma_kind=kind) == ""
    assert doubt(spill_bytes=0, threads=128, blocks=1, mma_kind="hmma")


def test_doubtful_variants_are_timed_later_and_none_is_lost(
    report: CompileReport,
) -> None:
    spilling = replace(report, spill_bytes=64)
    failed = Rejected(config=CONFIG, why=Why.COMPILE_ERROR)
    given = [(0, spilling), (1, report), (2, failed), (3, spilling), (4, report)]
    found = list(doubtful_later(iter(given), resolve_target("vr200")))
    assert [place for place, _ in found] == [1, 2, 4, 0, 3]


def test_a_doubtful_variant_waits_no_longer_than_its_delay(report: CompileReport) -> None:
    spilling = replace(report, spill_bytes=64)
    given = [(0, spilling), *((place, report) for place in range(1, 2 * DELAY))]
    found = [place for place, _ in doubtful_later(iter(given), resolve_target("vr200"))]
    assert found.index(0) == DELAY
    assert sorted(found) == list(range(2 * DELAY))


def blocks_on_sm86(code: CodeFacts) -> int:
    """Return how many blocks one SM of an RTX 3090 holds.

    Source: CUDA C++ Programming Guide, technical specifications of compute capability 8.6: 1,536
    threads, 16 blocks, 65,536 registers, 100 KiB of shared memory of which 1 KiB a block is the
    driver's; cuda_occupancy.h: registers are given to a warp in units of 256, to groups of 4 warps.
    """
    warps = -(-code.threads // 32)
    by_registers = 65536 // (-(-code.registers * 32 // 256) * 256) // 4 * 4 // warps
    by_shared = (100 << 10) // (-(-(code.shared_bytes + 1024) // 128) * 128)
    return min(16, 48 // warps, by_registers, by_shared)


@pytest.mark.skipif(not KTT.exists(), reason="the shared recordings are not here")
@pytest.mark.parametrize("name", sorted(p.name for p in KTT.glob("ktt-*.json.gz")))
def test_doubts_cut_a_tenth_of_a_recorded_space_and_never_its_best_band(name: str) -> None:
    space = read_results(KTT / name)
    assert isinstance(space, RecordedSpace)
    timed = space.timed
    best = timed[0].time_us or 0.0
    cut = []
    for point in timed:
        assert point.code is not None
        code = point.code
        blocks = blocks_on_sm86(code)
        if doubt(spill_bytes=code.spill_bytes, threads=code.threads, blocks=blocks):
            cut.append((point.time_us or 0.0) / best)
    assert len(cut) >= 0.10 * len(space.points)
    assert min(cut) > 1.02
