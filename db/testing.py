"""What every store must do: inherit `StoreContract`, and write its one fixture `target`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from ..errors import DatabaseBusy, InvalidInput
from ..search_spaces import LaunchConfig, Layout, MoEShape, Problem, Routing, Unit
from .records import (
    Assumption,
    CompileReport,
    Evidence,
    Measurement,
    Prediction,
    Rejected,
    Silicon,
    Spent,
    Toolchain,
    Trial,
    Why,
    Winner,
)
from .seeds import Seed
from .store import Store, open_store

SHAPE = MoEShape(model="little", experts=8, top_k=2, hidden=256, intermediate=128)
PROBLEM = Problem(shape=SHAPE, layout=Layout(), routing=Routing(kind="uniform"), tokens=4)
SILICON = Silicon(
    name="NVIDIA H200",
    arch=90,
    sms=132,
    memory_bytes=150_754_820_096,
    shared_limit_bytes=232_448,
    power_limit_w=700,
)
TOOLCHAIN = Toolchain(triton="3.9.0", ptxas="13.4", torch="2.13.0", driver="580.1")
CONFIG = LaunchConfig.of(block_m=64, block_n=128, block_k=64, num_warps=4, swap_ab=False)
REPORT = CompileReport(
    target=90,
    registers=128,
    spill_bytes=0,
    shared_bytes=98_304,
    buffers=3,
    stage_bytes=24_576,
    weight_stage_bytes=16_384,
    tmem_columns=0,
    mma_kind="hgmma",
    mma_k=16,
    mma_count=4,
    loop_instructions=96,
    loop_local_ops=0,
    threads=128,
    cubin_sha256="ab" * 32,
    compile_s=1.5,
)
PREDICTION = Prediction(
    time_us=12.5,
    breakdown=(("bytes", 10.0), ("launch", 2.5)),
    assumptions=(
        Assumption(name="l2", value=1.0, low=0.5, high=2.0, unit="TB/s", reason="nobody says"),
    ),
    facts=("h200.dram",),
)
TRIAL = Trial(
    sweep_id="s1",
    kernel="megamoe",
    source_hash="f00d",
    problem=PROBLEM,
    unit=Unit.GATE_UP,
    config=CONFIG,
    silicon=SILICON,
    toolchain=TOOLCHAIN,
    policy="graph8/1",
    evidence=Evidence.MEASURED,
    time_us=10.25,
    interval_us=(10.0, 10.5),
    compile=REPORT,
    prediction=PREDICTION,
    measurement=Measurement(samples_us=(10.0, 10.25, 10.5), policy="graph8/1", clock_mhz=1980),
    error=0.001,
    spent=Spent(at_s=3.5, verify_s=0.25, time_s=0.125),
)
WINNER = Winner(
    sweep_id="s1",
    kernel="megamoe",
    source_hash="f00d",
    problem=PROBLEM,
    unit=Unit.LAYER,
    config=CONFIG,
    time_us=10.25,
    interval_us=(10.0, 10.5),
    default_config=CONFIG.replace(block_m=16),
    default_time_us=20.5,
    evidence=Evidence.MEASURED,
    silicon=SILICON,
    toolchain=TOOLCHAIN,
    policy="graph8/1",
    compile=REPORT,
    parts=(("gate_up", CONFIG), ("down", CONFIG.replace(block_n=64))),
)
Opens = Callable[[], Store]


def known(store: Store, **changes: object) -> list[Trial]:
    """Return the trials that share TRIAL's keys, but for `changes`."""
    keys: dict[str, object] = {
        "kernel": TRIAL.kernel,
        "source_hash": TRIAL.source_hash,
        "silicon": SILICON,
        "toolchain": TOOLCHAIN,
        "policy": TRIAL.policy,
    }
    return store.trials_for(**{**keys, **changes})  # type: ignore[arg-type]


SEED = Seed(
    kernel="fused_moe",
    config=LaunchConfig.of(block_m=16, num_warps=4),
    tokens=4,
    experts=8,
    intermediate=128,
    weights="bf16",
    source="vllm",
    file="E=8,N=128,device_name=NVIDIA_H200.json",
    device="NVIDIA_H200",
    triton="3.6.0",
)


class StoreContract:
    """What every store must do."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        """Return the path or URL of an empty database: all that a store's test writes."""
        raise NotImplementedError

    @pytest.fixture
    def opens(self, target: str) -> Iterator[Opens]:
        """Return a function that opens the same database each time; all are closed at the end."""
        with ExitStack() as stack:
            yield lambda: stack.enter_context(open_store(target, wait_s=0.3))

    @pytest.fixture
    def store(self, opens: Opens) -> Store:
        """Return an open store with one sweep, s1, under way."""
        store = opens()
        store.begin_sweep("s1", "print", {"kernel": "megamoe"})
        return store

    def test_a_trial_comes_back_equal_after_reopening(self, store: Store, opens: Opens) -> None:
        assert store.add_trial(TRIAL)
        store.close()
        with opens() as again:
            assert known(again) == [TRIAL]

    def test_a_rejected_trial_comes_back_equal(self, store: Store) -> None:
        rejected = Rejected(config=CONFIG, why=Why.CRASH, detail="illegal address – 'x'\n")
        trial = replace(TRIAL, time_us=None, interval_us=None, measurement=None, rejected=rejected)
        with store:
            store.add_trial(replace(trial, error=float("inf")))
            assert known(store) == [replace(trial, error=float("inf"))]

    def test_words_that_no_database_takes_are_still_stored(self, store: Store) -> None:
        detail = "a\0b\ud800c"
        rejected = Rejected(config=CONFIG, why=Why.COMPILE_ERROR, detail=detail)
        with store:
            store.add_trial(replace(TRIAL, time_us=None, rejected=rejected))
            found = known(store)[0].rejected
        assert found is not None
        assert found.detail == "a\N{REPLACEMENT CHARACTER}b?c"

    def test_the_same_trial_twice_is_one_row(self, store: Store) -> None:
        with store:
            assert store.add_trial(TRIAL)
            assert not store.add_trial(replace(TRIAL, time_us=99.0))
            assert known(store) == [TRIAL]

    def test_fresh_replaces_a_row_of_equal_evidence(self, store: Store) -> None:
        newer = replace(TRIAL, time_us=9.0, sweep_id="s2")
        with store:
            store.begin_sweep("s2", "print", {})
            store.add_trial(TRIAL)
            assert store.add_trial(newer, fresh=True)
            assert known(store) == [newer]

    def test_weaker_evidence_never_displaces_stronger(self, store: Store) -> None:
        weaker = replace(TRIAL, evidence=Evidence.PREDICTED, time_us=1.0)
        with store:
            store.add_trial(TRIAL)
            assert not store.add_trial(weaker, fresh=True)
            assert known(store) == [TRIAL]

    def test_stronger_evidence_displaces_weaker(self, store: Store) -> None:
        with store:
            store.add_trial(replace(TRIAL, evidence=Evidence.PREDICTED))
            assert store.add_trial(TRIAL)
            assert known(store) == [TRIAL]

    @pytest.mark.parametrize(
        "change",
        [
            {"kernel": "fused_moe"},
            {"source_hash": "beef"},
            {"unit": Unit.DOWN},
            {"config": CONFIG.replace(block_m=128)},
            {"problem": PROBLEM.at(8)},
            {"silicon": replace(SILICON, power_limit_w=500)},
            {"toolchain": replace(TOOLCHAIN, ptxas="12.9")},
            {"policy": "graph8/2"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_each_part_of_the_key_makes_another_trial(
        self, store: Store, change: dict[str, object]
    ) -> None:
        with store:
            store.add_trial(TRIAL)
            assert store.add_trial(replace(TRIAL, **change))  # type: ignore[arg-type]
            assert store.counts()["trials"] == 2

    def test_another_name_of_the_gpu_or_model_makes_no_other_trial(self, store: Store) -> None:
        renamed = replace(
            TRIAL,
            silicon=replace(SILICON, name="h200"),
            problem=replace(PROBLEM, shape=replace(SHAPE, model="other")),
        )
        with store:
            store.add_trial(TRIAL)
            assert not store.add_trial(renamed)

    def test_a_problem_that_is_passed_comes_back_itself(self, store: Store) -> None:
        renamed = replace(PROBLEM, shape=replace(SHAPE, model="other"))
        with store:
            store.add_trial(TRIAL)
            assert known(store, problems=[renamed])[0].problem is renamed

    def test_trials_are_selected_by_problem_and_unit(self, store: Store) -> None:
        down, larger = replace(TRIAL, unit=Unit.DOWN), replace(TRIAL, problem=PROBLEM.at(8))
        with store:
            store.add_trials((TRIAL, down, larger))
            assert known(store, units=[Unit.DOWN]) == [down]
            assert known(store, problems=[PROBLEM.at(8)]) == [larger]

    def test_done_keys_name_what_exists(self, store: Store) -> None:
        with store:
            store.add_trial(TRIAL)
            found = store.done_keys(
                kernel="megamoe",
                source_hash="f00d",
                silicon=SILICON,
                toolchain=TOOLCHAIN,
                policy="graph8/1",
                problems=[PROBLEM],
            )
        assert found == {(PROBLEM.key, Unit.GATE_UP, CONFIG.key)}

    def test_several_trials_are_all_stored_or_none(self, store: Store) -> None:
        wrong = replace(TRIAL, problem=PROBLEM.at(8), sweep_id="nobody")
        with store:
            with pytest.raises(InvalidInput, match="unknown sweep 'nobody'"):
                store.add_trials((TRIAL, wrong))
            assert store.counts()["trials"] == 0
            # What was rolled back with the trial is stored again with the next one.
            assert store.add_trial(TRIAL)
            assert known(store) == [TRIAL]

    def test_a_trial_without_outcome_is_refused(self, store: Store) -> None:
        with store, pytest.raises(InvalidInput, match="must have one of time and rejection"):
            store.add_trial(replace(TRIAL, time_us=None))

    def test_a_winner_comes_back_equal_after_reopening(self, store: Store, opens: Opens) -> None:
        store.add_winners([WINNER])
        store.close()
        with opens() as again:
            assert again.winners() == [WINNER]

    def test_the_newest_winner_stands(self, store: Store) -> None:
        newer = replace(WINNER, sweep_id="s2", time_us=9.0)
        with store:
            store.begin_sweep("s2", "print", {})
            store.add_winners([WINNER])
            store.add_winners([newer])
            assert store.winners() == [newer]
            assert store.winners(sweep_id="s1") == [WINNER]

    def test_a_newer_but_weaker_winner_does_not_stand(self, store: Store) -> None:
        weaker = replace(WINNER, sweep_id="s2", evidence=Evidence.PREDICTED)
        with store:
            store.begin_sweep("s2", "print", {})
            store.add_winners([WINNER])
            store.add_winners([weaker])
            assert store.winners() == [WINNER]

    def test_winners_are_kept_apart_by_silicon_unless_alike_is_enough(self, store: Store) -> None:
        capped = replace(SILICON, power_limit_w=500)
        other = replace(SILICON, memory_bytes=80 << 30)
        second = replace(WINNER, sweep_id="s2", silicon=capped)
        with store:
            store.begin_sweep("s2", "print", {})
            store.add_winners([WINNER])
            store.add_winners([second])
            assert len(store.winners()) == 2
            assert store.winners(silicon=SILICON) == [WINNER]
            assert store.winners(like=SILICON) == [second]
            assert store.winners(like=other) == []

    def test_winners_are_selected_by_kernel_source_unit_problem_and_evidence(
        self, store: Store
    ) -> None:
        with store:
            store.add_winners([WINNER])
            assert store.winners(
                kernel="megamoe",
                source_hash="f00d",
                units=[Unit.LAYER],
                problems=[PROBLEM],
                at_least=Evidence.MEASURED,
            )
            assert not store.winners(kernel="fused_moe")
            assert not store.winners(source_hash="beef")
            assert not store.winners(units=[Unit.DOWN])
            assert not store.winners(problems=[PROBLEM.at(8)])
            store.add_winners(
                [replace(WINNER, unit=Unit.DOWN, evidence=Evidence.PREDICTED, parts=())]
            )
            assert len(store.winners()) == 2
            assert len(store.winners(at_least=Evidence.RECORDED)) == 1

    def test_a_finished_sweep_is_found_by_what_was_asked(self, store: Store) -> None:
        with store:
            assert store.finished_sweep("print") is None
            store.add_trial(TRIAL)
            store.finish_sweep("s1", {"evaluated": 1})
            assert store.finished_sweep("print") == "s1"
            assert store.finished_sweep("other") is None
            assert store.sweep_counts("s1") == {"evaluated": 1}
            assert store.sweep_request("s1") == {"kernel": "megamoe"}
            assert store.count_trials("s1") == 1

    def test_a_stopped_sweep_is_not_finished(self, store: Store) -> None:
        with store:
            assert store.sweep_state("s1") == "running"
            store.stop_sweep("s1")
            assert store.sweep_state("s1") == "stopped"
            assert store.finished_sweep("print") is None

    def test_a_sweep_that_nobody_began_is_refused(self, store: Store) -> None:
        with store:
            with pytest.raises(InvalidInput, match="unknown sweep 'nobody'"):
                store.finish_sweep("nobody", {})
            with pytest.raises(InvalidInput, match="unknown sweep 'nobody'"):
                store.sweep_counts("nobody")

    def test_two_stores_write_to_one_database(self, store: Store, opens: Opens) -> None:
        with store, closing(opens()) as second:
            store.add_trial(TRIAL)
            second.add_trial(replace(TRIAL, unit=Unit.DOWN))
            assert len(known(store)) == len(known(second)) == 2

    def test_a_lock_is_waited_for_and_then_told(self, store: Store, opens: Opens) -> None:
        with store, closing(opens()) as second, store._writing() as holder:
            store._put(holder, [TRIAL], fresh=False)
            with pytest.raises(DatabaseBusy, match=r"is locked .* waited 0\.3 s"):
                second.add_trial(TRIAL)

    # Seeds and portfolios

    def test_seeds_come_back_nearest_first(self, store: Store) -> None:
        """Distance is in octaves."""
        added = [replace(SEED, tokens=n, time_us=1.5) for n in (1, 4, 64)]
        store.put_seeds(added)
        assert store.seeds_for("fused_moe", PROBLEM) == [added[1], added[0], added[2]]

    def test_seeds_are_of_a_kernel_a_format_and_a_unit(self, store: Store) -> None:
        """Others are not offered."""
        others = [
            replace(SEED, file="a", weights="fp8_block128"),
            replace(SEED, file="b", kernel="another"),
            replace(SEED, file="c", unit="down"),
        ]
        store.put_seeds([SEED, *others])
        assert store.seeds_for("fused_moe", PROBLEM, unit=Unit.GATE_UP) == [SEED]
        assert store.seeds_for("fused_moe", PROBLEM, unit=Unit.DOWN) == [SEED, others[2]]

    def test_a_file_that_is_imported_again_replaces_its_seeds(self, store: Store) -> None:
        """Rows that are gone from the file are gone from the store."""
        other = replace(SEED, file="other.json")
        store.put_seeds([SEED, replace(SEED, tokens=8), other])
        store.put_seeds([replace(SEED, tokens=16)])
        found = {(seed.file, seed.tokens) for seed in store.seeds_for("fused_moe", PROBLEM)}
        assert found == {(SEED.file, 16), ("other.json", 4)}

    def test_a_portfolio_belongs_to_a_sweep(self, store: Store) -> None:
        """The second one replaces the first."""
        store.begin_sweep("s1", "f", {})
        assert store.portfolio("s1") is None
        store.put_portfolio("s1", {"cap": 6})
        store.put_portfolio("s1", {"cap": 4})
        assert store.portfolio("s1") == {"cap": 4}
