"""The cost model: physics it may not break, the grounds it names, how it ranks recordings."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cost_model as benchmark
from rubin_tune.db.landscape import read_landscape
from rubin_tune.errors import InvalidConfig, InvalidInput
from rubin_tune.search_spaces import (
    GEMMS,
    LaunchConfig,
    Layout,
    Problem,
    Routing,
    Unit,
    fused_moe,
    load_model,
    megamoe,
    rows_per_expert,
    with_formats,
)
from rubin_tune.topology import Confidence, Fact, load_gpu
from rubin_tune.tuner import cost_model
from rubin_tune.tuner._cost_work import expected_tiles

LANDSCAPES = Path(__file__).parents[2] / "../shared/data/landscapes"
LADDER = (1, 2, 3, 8, 16, 17, 64, 96, 128, 129, 512, 1024, 1025, 3072, 8192)
NAMES = {
    *("weights_us", "activations_us", "output_us", "dram_us", "l2_us", "mma_us", "issue_us"),
    *("latency_us", "epilogue_us", "tail_us", "launch_us", "waves", "padding"),
}

VR200 = load_gpu("vr200")
H200 = load_gpu("h200")
GB300 = load_gpu("gb300")


def flash(tokens: int = 64) -> Problem:
    """DeepSeek-V4.1-Flash (mxfp4 x mxfp8) on 2 ranks."""
    return Problem(
        shape=load_model("deepseek-v4.1-flash"),
        layout=Layout(kind="dep", ranks=2),
        routing=Routing(kind="lognormal", skew=0.5),
        tokens=tokens,
    )


def qwen(tokens: int = 64, weights: str = "fp8_block128") -> Problem:
    """Qwen3-30B-A3B on one GPU, uniform routing: what the landscapes recorded."""
    return Problem(
        shape=with_formats(load_model("qwen3-30b-a3b"), weights, None),
        layout=Layout(),
        routing=Routing(kind="uniform"),
        tokens=tokens,
    )


def swapped(**changes: int | str | bool) -> LaunchConfig:
    """A decode tile of megamoe with weights on the M side."""
    base = LaunchConfig.of(
        block_m=16,
        block_n=128,
        block_k=128,
        num_warps=4,
        num_stages=4,
        group_m=1,
        swap_ab=True,
        load="pointers",
        split="none",
        act_group=32,
    )
    return base.replace(**changes)


def predict(problem, unit, config, gpu, **changes):
    """Predict from a guessed report with some facts replaced."""
    report = replace(cost_model.guess_report(problem, unit, config, gpu), **changes)
    return cost_model.predict(problem, unit, config, report, gpu)


def part(prediction, name):
    """One entry of the breakdown."""
    return dict(prediction.breakdown)[name]


def sampled(space, count=60):
    """Legal configs spread over a space."""
    legal = space.legal()
    return legal[:: max(1, len(legal) // count)]


CASES = [
    pytest.param(flash, megamoe, VR200, id="mxfp4-vr200"),
    pytest.param(flash, megamoe, GB300, id="mxfp4-gb300"),
    pytest.param(qwen, megamoe, H200, id="fp8-h200"),
    pytest.param(lambda t=64: qwen(t, "bf16"), megamoe, H200, id="bf16-h200"),
    pytest.param(qwen, fused_moe, H200, id="engine-fp8-h200"),
]


@pytest.mark.parametrize(("make", "room", "gpu"), CASES)
@pytest.mark.parametrize("unit", GEMMS)
def test_rank_equals_predict_with_guessed_reports(make, room, gpu, unit):
    problem = make(200)
    configs = sampled(room.space(problem, unit, gpu))
    times = cost_model.rank(problem, unit, configs, gpu)
    assert np.isfinite(times).sum() > len(configs) / 2
    for config, time_us in zip(configs, times, strict=True):
        if np.isfinite(time_us):
            assert predict(problem, unit, config, gpu).time_us == pytest.approx(time_us, rel=1e-6)


def test_rank_equals_predict_for_given_counts():
    problem = flash(300)
    counts = rows_per_expert(problem, seed=3)
    configs = sampled(megamoe.space(problem, Unit.DOWN, VR200), 20)
    times = cost_model.rank(problem, Unit.DOWN, configs, VR200, counts)
    for config, time_us in zip(configs, times, strict=True):
        report = cost_model.guess_report(problem, Unit.DOWN, config, VR200)
        one = cost_model.predict(problem, Unit.DOWN, config, report, VR200, counts)
        assert one.time_us == pytest.approx(time_us, rel=1e-6)


@pytest.mark.parametrize(("make", "room", "gpu"), CASES)
@pytest.mark.parametrize("unit", GEMMS)
def test_more_tokens_are_never_faster(make, room, gpu, unit):
    configs = sampled(room.space(make(), unit, gpu), 200)
    times = [cost_model.rank(make(tokens), unit, configs, gpu) for tokens in LADDER]
    for fewer, more in pairwise(times):
        runs = np.isfinite(fewer)
        assert (more[runs] >= fewer[runs] * (1 - 1e-9)).all()


def test_more_memory_bandwidth_is_never_slower_and_helps_decode():
    fact = Fact(value=4.7e12, unit="B/s", source="a test", confidence=Confidence.MEASURED)
    faster = H200.overlaid({"memory_read_bandwidth": fact})
    configs = sampled(fused_moe.space(qwen(), Unit.GATE_UP, H200), 200)
    before = cost_model.rank(qwen(), Unit.GATE_UP, configs, H200)
    after = cost_model.rank(qwen(), Unit.GATE_UP, configs, faster)
    runs = np.isfinite(before)
    assert (after[runs] <= before[runs]).all()
    assert after.min() < before.min() * 0.99


@pytest.mark.parametrize(("make", "room", "gpu"), CASES)
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_no_prediction_beats_physics(make, room, gpu, tokens):
    problem = make(tokens)
    counts = rows_per_expert(problem, seed=1)
    kind = "bf16" if problem.activations.bits == 16 else "fp8"
    for unit in GEMMS:
        n, k = problem.gemm(unit)
        moved = np.count_nonzero(counts) * problem.weights.bytes_of(n, k)
        bytes_us = moved / gpu.fact("memory_peak_bandwidth").number * 1e6
        flops_us = 2.0 * counts.sum() * n * k / gpu.peak_flops(kind) * 1e6
        configs = sampled(room.space(problem, unit, gpu), 200)
        times = cost_model.rank(problem, unit, configs, gpu, counts)
        assert times.min() >= max(bytes_us, flops_us)


def test_breakdown_names_its_parts_and_the_bandwidth_part_is_the_physical_one():
    found = predict(flash(), Unit.GATE_UP, swapped(), VR200)
    assert {name for name, _ in found.breakdown} >= NAMES
    n, k = flash().gemm(Unit.GATE_UP)
    q = flash().routing.inclusion(flash().shape.experts, flash().shape.top_k)[:256]
    active = np.sum(1 - (1 - q[: flash().local_experts]) ** 64)
    bandwidth = VR200.read_bandwidth("interleaved")
    expected = active * flash().weights.bytes_of(n, k) / bandwidth * 1e6
    assert part(found, "weights_us") == pytest.approx(expected, rel=1e-6)
    assert part(found, "dram_us") <= found.time_us


def test_assumptions_stand_for_unknown_facts_only():
    rubin = predict(flash(), Unit.GATE_UP, swapped(), VR200)
    hopper = predict(qwen(), Unit.GATE_UP, megamoe.default(qwen(), Unit.GATE_UP, H200), H200)
    assert {"l2_bytes", "sm_clock"} <= {a.name for a in rubin.assumptions}
    assert not {"l2_bytes", "sm_clock"} & {a.name for a in hopper.assumptions}
    assert "sms=212 (published)" in rubin.facts
    assert any(fact.startswith("l2_bytes=") for fact in hopper.facts)
    assert not any(fact.startswith("l2_bytes=") for fact in rubin.facts)
    for assumption in (*rubin.assumptions, *hopper.assumptions):
        assert assumption.low <= assumption.value <= assumption.high
        assert assumption.reason


def test_a_split_kernel_declares_the_remote_bandwidth_and_others_do_not():
    split = predict(flash(), Unit.GATE_UP, swapped(split="domains"), VR200)
    plain = predict(flash(), Unit.GATE_UP, swapped(), VR200)
    assert "remote_bandwidth" in {a.name for a in split.assumptions}
    assert "remote_bandwidth" not in {a.name for a in plain.assumptions}


def test_splitting_by_domain_helps_decode_and_not_a_fraction_of_a_wave():
    space = megamoe.space(flash(), Unit.GATE_UP, VR200)
    plain = [c for c in space.legal() if c["split"] == "none"]
    split = [c for c in space.legal() if c["split"] == "domains"]

    def best(tokens, configs):
        return cost_model.rank(flash(tokens), Unit.GATE_UP, configs, VR200).min()

    assert best(64, split) < 0.98 * best(64, plain)
    assert best(1, split) >= best(1, plain)


def test_a_persistent_schedule_hides_starts_and_launches_no_empty_blocks():
    config = LaunchConfig.of(
        block_m=128, block_n=128, block_k=64, num_warps=8, num_stages=4, group_m=8, swap_ab=False,
        load="tma", split="none", schedule="tiles", act_group=0,
    )  # fmt: skip
    problem = qwen(4096, "bf16")
    report = cost_model.guess_report(problem, Unit.GATE_UP, config, H200)
    plain, walking = (
        cost_model.predict(problem, Unit.GATE_UP, one, report, H200)
        for one in (config, config.replace(schedule="persistent"))
    )
    assert part(plain, "idle_blocks_us") > part(walking, "idle_blocks_us") == 0
    assert part(walking, "latency_us") < part(plain, "latency_us")
    assert walking.time_us < plain.time_us


def test_a_persistent_loops_count_is_not_taken_for_a_k_tiles():
    config = swapped(schedule="persistent")
    told = predict(flash(), Unit.GATE_UP, config, VR200, loop_instructions=9999)
    assert told.time_us == predict(flash(), Unit.GATE_UP, config, VR200).time_us


def test_k64_halves_the_matrix_time_of_k32_on_rubin():
    config = swapped(block_m=128, num_warps=8)
    fast = predict(flash(4096), Unit.GATE_UP, config, VR200, mma_k=64)
    slow = predict(flash(4096), Unit.GATE_UP, config, VR200, mma_k=32)
    assert part(slow, "mma_us") == pytest.approx(2 * part(fast, "mma_us"), rel=0.01)
    assert slow.time_us > fast.time_us


def test_swapping_takes_the_padding_to_the_other_side():
    problem = flash(16)
    straight = swapped(block_m=128, swap_ab=False)
    tall = predict(problem, Unit.GATE_UP, straight, VR200)
    flat = predict(problem, Unit.GATE_UP, swapped(), VR200)
    assert part(tall, "padding") == pytest.approx(8 * part(flat, "padding"), rel=0.1)
    assert part(tall, "mma_us") > 2 * part(flat, "mma_us")


def test_spills_cost_time():
    config = fused_moe.default(qwen(8192), Unit.GATE_UP, H200)
    report = cost_model.guess_report(qwen(8192), Unit.GATE_UP, config, H200)
    spilling = replace(report, spill_bytes=1024, loop_instructions=0, loop_local_ops=0)
    clean = cost_model.predict(qwen(8192), Unit.GATE_UP, config, report, H200)
    spilled = cost_model.predict(qwen(8192), Unit.GATE_UP, config, spilling, H200)
    assert spilled.time_us > 1.5 * clean.time_us
    assert part(spilled, "spill_us") > 0 == part(clean, "spill_us")


def test_instructions_of_the_report_are_used():
    config = swapped()
    few = predict(flash(), Unit.GATE_UP, config, VR200, loop_instructions=50)
    many = predict(flash(), Unit.GATE_UP, config, VR200, loop_instructions=500)
    assert part(many, "issue_us") > 5 * part(few, "issue_us")


def test_one_buffer_waits_longer_than_three():
    deep = predict(flash(), Unit.GATE_UP, swapped(), VR200)
    flat = predict(flash(), Unit.GATE_UP, swapped(), VR200, buffers=1)
    assert part(flat, "latency_us") > 1.5 * part(deep, "latency_us")


@pytest.mark.parametrize(
    ("gpu", "block_m", "block_k", "shared", "count", "columns"),
    [
        pytest.param(H200, 16, 128, 34_816, None, 0, id="90-16"),
        pytest.param(H200, 64, 128, 65_536, None, 0, id="90-64"),
        pytest.param(GB300, 16, 128, 55_808, 4, 32, id="103-16"),
        pytest.param(GB300, 128, 256, 197_632, 8, 256, id="103-128"),
        pytest.param(VR200, 16, 256, 62_464, 4, 32, id="107-16"),
        pytest.param(VR200, 64, 128, 49_664, 2, 128, id="107-64"),
        pytest.param(VR200, 128, 256, 148_480, 4, 256, id="107-128"),
    ],
)
def test_guesses_match_compiled_swapped_tiles(gpu, block_m, block_k, shared, count, columns):
    """Compiled figures: facts, hardware 5.3b."""
    config = swapped(block_m=block_m, block_k=block_k)
    report = cost_model.guess_report(flash(), Unit.GATE_UP, config, gpu)
    assert report.shared_bytes == shared
    assert report.tmem_columns == columns
    assert count is None or report.mma_count == count
    assert report.cubin_sha256 == ""


def test_fp4_weight_stages_are_half_as_large_on_rubin():
    reports = [
        cost_model.guess_report(flash(), Unit.GATE_UP, swapped(), gpu) for gpu in (GB300, VR200)
    ]
    assert reports[0].weight_stage_bytes == 2 * reports[1].weight_stage_bytes == 128 * 128
    assert [r.mma_k for r in reports] == [32, 64]


def test_the_engines_kernel_swaps_and_clamps_by_its_own_rules():
    base = fused_moe.default(qwen(), Unit.GATE_UP, H200)

    def kind(**changes):
        config = base.replace(**changes)
        return cost_model.guess_report(qwen(), Unit.GATE_UP, config, H200).mma_kind

    assert kind(block_m=16, block_n=64) == "qgmma"
    assert kind(block_m=16, block_n=32) == "hmma"
    clamped = [base.replace(block_k=k) for k in (128, 256)]
    times = cost_model.rank(qwen(), Unit.GATE_UP, clamped, H200)
    assert times[0] == times[1]


def test_a_block_that_no_sm_holds_is_refused_and_ranks_last():
    config = swapped(block_n=256, block_m=256, block_k=256, num_stages=12)
    report = cost_model.guess_report(flash(), Unit.GATE_UP, config, VR200)
    with pytest.raises(InvalidConfig, match="no SM of vr200 can run it"):
        cost_model.predict(flash(), Unit.GATE_UP, config, report, VR200)
    times = cost_model.rank(flash(), Unit.GATE_UP, [config, swapped()], VR200)
    assert np.isinf(times[0])
    assert np.isfinite(times[1])


def test_counts_of_another_number_of_experts_are_refused():
    with pytest.raises(InvalidInput, match="rows per expert"):
        cost_model.rank(flash(), Unit.GATE_UP, [swapped()], VR200, [1, 2, 3])


def test_no_configs_rank_as_nothing():
    assert cost_model.rank(flash(), Unit.GATE_UP, [], VR200).shape == (0,)


@pytest.mark.parametrize("block_m", [16, 64, 256])
@pytest.mark.parametrize("tokens", [3, 200, 5000])
def test_expected_tiles_are_the_mean_over_draws(block_m, tokens):
    problem = replace(flash(tokens), routing=Routing(kind="zipf", skew=0.8))
    shape = problem.shape
    q = problem.routing.inclusion(shape.experts, shape.top_k)
    rng = np.random.default_rng(5)
    draws = rng.binomial(tokens, q, size=(400, len(q)))
    mean = np.ceil(draws / block_m).sum(axis=1)
    error = 4 * mean.std() / np.sqrt(len(mean)) + 1e-6 * mean.mean()
    assert expected_tiles(q, tokens, block_m) == pytest.approx(mean.mean(), abs=error)


@pytest.mark.parametrize("dtype", ["fp8", "bf16"])
def test_the_landscapes_it_was_developed_on_stay_well_ranked(dtype):
    """Guards against regressions; no held-out score (see the model's docstring)."""
    path = LANDSCAPES / f"h200-vllm-fused-moe-qwen3-30b-a3b-{dtype}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"no recorded landscape {path.name} beside the repository")
    scores = benchmark.judge(read_landscape(path), H200)
    assert len(scores) == 8
    assert np.median([s.spearman for s in scores]) >= 0.9
    assert min(s.spearman for s in scores) >= 0.88
    assert max(s.top10_regret for s in scores) <= 0.05


def test_the_benchmark_scores_known_orders():
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    good = benchmark.score(times, times * 2, tokens=1, gemm="down")
    bad = benchmark.score(times, -times, tokens=1, gemm="down")
    assert (good.spearman, good.optimum_rank_fraction, good.top10_regret) == (1.0, 0.0, 0.0)
    assert (bad.spearman, bad.optimum_rank_fraction) == (-1.0, 7 / 8)
