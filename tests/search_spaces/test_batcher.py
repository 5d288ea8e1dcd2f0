"""The batcher: what each rule of the model does, and what holds for every trace and setting."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import Serving, Step, Trace, Workload, parse_ranks, simulate_steps
from rubin_tune.search_spaces.serving import ASSIGNMENTS, ROLES

Request = tuple[int, int, int]  # arrival_us, prompt, output


def trace(*requests: Request, reusable: tuple[int, ...] = ()) -> Trace:
    arrival, prompt, output = np.array(requests, dtype=np.int64).T
    reused = np.array(reusable or (0,) * len(requests), dtype=np.int64)
    return Trace(name="test", arrival_us=arrival, prompt=prompt, output=output, reusable=reused)


def serving(**values: Any) -> Serving:
    """100 us a step and nothing a token, so that times are read off at a glance."""
    plain: dict[str, Any] = {"fixed_us": 100, "prefill_us": 0, "decode_us": 0, "max_batch": 8}
    return Serving(**{**plain, "chunk": 100, **values})


def steps(requests: Trace, **values: Any) -> list[tuple[Any, ...]]:
    """Each run as (start, repeats, prefill, decode)."""
    found = simulate_steps(requests, serving(**values))
    return [(s.start_us, s.repeats, s.prefill, s.decode) for s in found]


def test_a_request_is_prefilled_then_decoded_to_its_last_token() -> None:
    assert steps(trace((0, 50, 4))) == [(0, 1, (50,), (0,)), (100, 3, (0,), (1,))]


def test_an_answer_of_one_or_no_token_needs_no_decode_step() -> None:
    assert steps(trace((0, 50, 1), (0, 30, 0))) == [(0, 1, (80,), (0,))]


def test_a_long_prompt_is_cut_into_chunks_and_equal_steps_are_one_run() -> None:
    assert steps(trace((0, 250, 1))) == [(0, 2, (100,), (0,)), (200, 1, (50,), (0,))]


def test_a_chunk_is_filled_in_order_of_arrival_and_the_last_prompt_is_cut() -> None:
    found = steps(trace((0, 60, 1), (0, 60, 1), (0, 60, 1)))
    assert found == [(0, 1, (100,), (0,)), (100, 1, (80,), (0,))]


def test_decoding_sequences_take_their_tokens_before_prompts() -> None:
    found = steps(trace((0, 10, 3), (50, 150, 1)))
    assert found == [
        (0, 1, (10,), (0,)),
        (100, 1, (99,), (1,)),
        (200, 1, (51,), (1,)),
    ]


def test_at_most_max_batch_sequences_are_worked_on() -> None:
    found = steps(trace((0, 10, 3), (0, 10, 3), (0, 10, 1)), max_batch=2)
    assert found == [
        (0, 1, (20,), (0,)),
        (100, 2, (0,), (2,)),
        (300, 1, (10,), (0,)),
    ]


def test_drafts_bring_tokens_and_shorten_answers() -> None:
    # 10 more tokens at 1 + 3 * 0.5 = 2.5 a step are 4 steps of 4 tokens.
    found = steps(trace((0, 50, 11)), speculative=3, acceptance=0.5)
    assert found[1] == (100, 4, (0,), (4,))


def test_ranks_step_together_and_a_rank_without_work_is_idle() -> None:
    found = steps(trace((0, 50, 2), (0, 20, 3)), ranks=3)
    assert found == [
        (0, 1, (50, 20, 0), (0, 0, 0)),
        (100, 1, (0, 0, 0), (1, 1, 0)),
        (200, 1, (0, 0, 0), (0, 1, 0)),
    ]


def test_requests_that_come_during_a_step_wait_for_the_next() -> None:
    found = steps(trace((0, 50, 1), (1, 50, 1), (99, 40, 1)))
    assert found == [(0, 1, (50,), (0,)), (100, 1, (90,), (0,))]


def test_time_without_work_is_no_step() -> None:
    found = steps(trace((0, 50, 1), (10_000, 50, 1)))
    assert found == [(0, 1, (50,), (0,)), (10_000, 1, (50,), (0,))]


def test_an_arrival_ends_a_stretch_of_decode_steps() -> None:
    found = steps(trace((0, 50, 101), (1_050, 30, 1)))
    assert found == [
        (0, 1, (50,), (0,)),
        (100, 10, (0,), (1,)),
        (1_100, 1, (30,), (1,)),
        (1_200, 89, (0,), (1,)),
    ]


def test_a_step_takes_as_long_as_the_fullest_rank() -> None:
    found = simulate_steps(
        trace((0, 50, 2), (0, 20, 2)),
        serving(ranks=2, fixed_us=1000, prefill_us=2.5, decode_us=7, speculative=1),
    )
    assert found.duration_us.tolist() == [1000 + 125, 1000 + 14]


def test_a_prefill_instance_hands_on_and_a_decode_instance_takes_over() -> None:
    requests = trace((0, 50, 4), (0, 20, 1))
    assert steps(requests, role="prefill") == [(0, 1, (70,), (0,))]
    assert steps(requests, role="decode") == [(0, 3, (0,), (1,))]


def test_a_decode_instance_keeps_to_max_batch() -> None:
    found = steps(trace((0, 9, 3), (0, 9, 3), (0, 9, 2)), role="decode", max_batch=2)
    assert found == [(0, 2, (0,), (2,)), (200, 1, (0,), (1,))]


def test_a_trace_without_answers_gives_a_decode_instance_nothing() -> None:
    with pytest.raises(InvalidInput, match="nothing to do"):
        simulate_steps(trace((0, 50, 1)), serving(role="decode"))


def test_the_prefix_cache_leaves_out_what_earlier_requests_had() -> None:
    requests = trace((0, 50, 1), (0, 50, 1), reusable=(0, 49))
    assert steps(requests, prefix_cache=True) == [(0, 1, (51,), (0,))]
    assert steps(requests) == [(0, 1, (100,), (0,))]
    found = simulate_steps(requests, serving(prefix_cache=True))
    assert (found.origin.reused_tokens, found.origin.prompt_tokens) == (49, 100)


def test_least_requests_weighs_waiting_four_times_running() -> None:
    # Three requests still run on rank 0, none on rank 1. Of two that come together the first goes
    # to rank 1, and the second to rank 0: three that run count 3, one that waits counts 4.
    first = [(0, 5, 100), (0, 5, 1)] * 3
    found = steps(trace(*first, (1_000, 7, 1), (1_000, 9, 1)), ranks=2)
    assert (1_000, 1, (9, 7), (3, 0)) in found


def test_least_tokens_sends_to_the_rank_with_the_least_prompt_left() -> None:
    requests = trace((0, 500, 1), (0, 10, 1), (0, 10, 1), (0, 10, 1))
    assert steps(requests, ranks=2, assign="least_tokens")[0][2] == (100, 30)
    assert steps(requests, ranks=2, assign="least_requests")[0][2] == (100, 20)


def test_round_robin_takes_turns_whatever_the_load() -> None:
    requests = trace((0, 5, 1), (1_000, 6, 1), (2_000, 7, 1))
    found = [s[2] for s in steps(requests, ranks=2, assign="round_robin")]
    assert found == [(5, 0), (0, 6), (7, 0)]


def test_a_rate_quickens_arrivals_and_is_kept_in_the_origin() -> None:
    found = simulate_steps(trace((0, 5, 1), (10_000, 5, 1)), serving(), rate=100)
    assert found.start_us.tolist() == [0]
    assert found.repeats.tolist() == [2]
    assert (found.origin.rate, found.origin.last_arrival_us) == (100.0, 100)


def test_chunks_that_would_never_end_are_refused() -> None:
    huge = trace(*[(0, 1 << 24, 1)] * 2)
    with pytest.raises(InvalidInput, match=r"prefill steps.*raise chunk"):
        simulate_steps(huge, Serving(chunk=1, max_batch=1))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": True}, "ranks is True"),
        ({"ranks": 4096}, "ranks is 4096"),
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": 512, "max_batch": 256, "speculative": 3}, "must be at least .* = 1024"),
        ({"speculative": -1}, "speculative is -1"),
        ({"acceptance": 1.5}, "acceptance is 1.5"),
        ({"fixed_us": float("nan")}, "fixed_us is nan"),
        ({"decode_us": -1}, "decode_us is -1"),
        ({"assign": "hash"}, "assign is 'hash'"),
        ({"role": "both"}, "role is 'both'"),
        ({"prefix_cache": 1}, "prefix_cache is 1"),
    ],
)
def test_settings_that_no_engine_has_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Serving(**values)


def test_settings_survive_json_and_unknown_ones_are_refused() -> None:
    made = serving(ranks=4, assign="round_robin")
    assert Serving.from_dict(made.as_dict()) == made
    with pytest.raises(InvalidInput, match="unknown serving setting 'batch'"):
        Serving.from_dict({"batch": 3})


@pytest.mark.parametrize(("text", "ranks"), [("single", 1), ("DEP8", 8), (" dep2 ", 2)])
def test_layouts_with_attention_ranks_are_read(text: str, ranks: int) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "tp4", "ep8", "dep", "dep0", "dep9999", "auto"])
def test_layouts_that_do_not_say_how_attention_is_sharded_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be single or depN"):
        parse_ranks(text)


# What holds for every trace and every setting.

REQUESTS = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(1, 400), st.integers(0, 30)),
    min_size=1,
    max_size=25,
).map(sorted)
SERVINGS = st.builds(
    serving,
    ranks=st.integers(1, 5),
    chunk=st.integers(24, 200),
    max_batch=st.integers(1, 6),
    speculative=st.integers(0, 3),
    acceptance=st.sampled_from((0.0, 0.5, 1.0)),
    assign=st.sampled_from(ASSIGNMENTS),
    role=st.sampled_from(ROLES),
    fixed_us=st.sampled_from((0, 40, 1000)),
    prefill_us=st.sampled_from((0, 3.5)),
)
property_test = settings(max_examples=200, deadline=None)


def one_by_one(requests: Trace, how: Serving) -> list[tuple[int, list[int], list[int]]]:
    """The model of batcher.py's docstring step by step, nothing skipped: (start, p, d)."""
    waiting = list(zip(requests.arrival_us.tolist(), requests.prompt.tolist(),
                       requests.output.tolist(), strict=True))  # fmt: skip
    queues: list[list[list[Any]]] = [[] for _ in range(how.ranks)]  # [prompt left, steps, begun]
    decoding: list[list[int]] = [[] for _ in range(how.ranks)]  # steps left
    now, turn, found = 0, 0, []
    per_step = 1 + how.speculative * how.acceptance
    if how.role == "decode":
        waiting = [w for w in waiting if w[2] > 1]
    while waiting or any(queues) or any(decoding):
        while waiting and waiting[0][0] <= now:
            _, prompt, output = waiting.pop(0)
            count = 0 if how.role == "prefill" else math.ceil((max(output, 1) - 1) / per_step)
            if how.assign == "round_robin":
                rank, turn = turn, (turn + 1) % how.ranks
            else:
                scores = []
                for r in range(how.ranks):
                    begun = sum(q[2] for q in queues[r]) + len(decoding[r])
                    idle = sum(not q[2] for q in queues[r])
                    left = sum(q[0] for q in queues[r])
                    pair = (0, 4 * idle + begun) if how.assign == "least_requests" else (
                        left, idle + begun)  # fmt: skip
                    scores.append(pair)
                rank = scores.index(min(scores))
            queues[rank].append([0 if how.role == "decode" else prompt, count, False])
        if not any(queues) and not any(decoding):
            now = waiting[0][0]
            continue
        prefill, decode, done = [0] * how.ranks, [0] * how.ranks, []
        for r in range(how.ranks):
            queue = queues[r]
            while how.role == "decode" and queue and len(decoding[r]) < how.max_batch:
                decoding[r].append(queue.pop(0)[1])
            decode[r] = len(decoding[r]) * (1 + how.speculative)
            spare = how.chunk - decode[r]
            ended = 0
            while how.role != "decode" and queue and spare:
                if not queue[0][2] and len(decoding[r]) + ended >= how.max_batch:
                    break
                queue[0][2] = True
                taken = min(spare, queue[0][0])
                queue[0][0] -= taken
                spare -= taken
                prefill[r] += taken
                if not queue[0][0]:
                    done.append((r, queue.pop(0)[1]))
                    ended += 1
            decoding[r] = [left - 1 for left in decoding[r] if left > 1]
        for r, count in done:
            decoding[r] += [count] if count else []
        found.append((now, prefill, decode))
        now += how.step_us(max(prefill), max(decode))
    return found


def unrolled(found: Workload) -> list[tuple[int, list[int], list[int]]]:
    def single(step: Step) -> list[tuple[int, list[int], list[int]]]:
        return [
            (step.start_us + i * step.duration_us, list(step.prefill), list(step.decode))
            for i in range(step.repeats)
        ]

    return [one for step in found for one in single(step)]


@property_test
@given(requests=REQUESTS, how=SERVINGS)
def test_skipping_ahead_changes_nothing(requests: list[Request], how: Serving) -> None:
    made = trace(*requests)
    expected = one_by_one(made, how)
    if not expected:
        with pytest.raises(InvalidInput, match="nothing to do"):
            simulate_steps(made, how)
        return
    assert unrolled(simulate_steps(made, how)) == expected


@property_test
@given(requests=REQUESTS, how=SERVINGS)
def test_every_token_is_computed_once_and_limits_hold(
    requests: list[Request], how: Serving
) -> None:
    made = trace(*requests)
    per_step = 1 + how.speculative * how.acceptance
    counts = [math.ceil((max(o, 1) - 1) / per_step) for _, _, o in requests]
    if how.role == "decode" and not any(counts):
        return
    found = simulate_steps(made, how)
    prompts = 0 if how.role == "decode" else sum(p for _, p, _ in requests)
    decodes = 0 if how.role == "prefill" else sum(counts) * (1 + how.speculative)
    assert int((found.prefill.sum(axis=1) * found.repeats).sum()) == prompts
    assert int((found.decode.sum(axis=1) * found.repeats).sum()) == decodes
    assert (found.tokens_per_rank <= how.chunk).all()
    assert (found.decode <= how.max_batch * (1 + how.speculative)).all()
    assert (found.tokens > 0).all()
    ends = found.start_us + found.duration_us * found.repeats
    assert (found.start_us[1:] >= ends[:-1]).all()


@property_test
@given(requests=REQUESTS, how=SERVINGS)
def test_the_same_trace_gives_the_same_steps(requests: list[Request], how: Serving) -> None:
    made = trace(*requests)
    if how.role == "decode" and all(o <= 1 for _, _, o in requests):
        return
    assert list(simulate_steps(made, how)) == list(simulate_steps(made, how))


def test_a_million_requests_take_under_a_minute_on_one_core() -> None:
    rng = np.random.default_rng(1)
    count = 1_000_000
    made = Trace(
        name="many",
        arrival_us=np.cumsum(rng.integers(0, 400_000, count)),
        prompt=rng.integers(1, 4_000, count),
        output=rng.integers(1, 500, count),
        reusable=np.zeros(count, dtype=np.int64),
    )
    begin = time.process_time()
    found = simulate_steps(made, Serving(ranks=8))
    assert time.process_time() - begin < 60
    assert len(found) > count
