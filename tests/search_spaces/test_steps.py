"""Steps: what is counted, what a file keeps, what a broken file is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.search_spaces import (
    Origin,
    Serving,
    Step,
    Workload,
    load_steps,
    save_steps,
    summarise,
    token_histogram,
    workloads_of,
)
from rubin_tune.search_spaces.steps import SCHEMA, is_steps_file

ORIGIN = Origin(
    trace="t.csv",
    format="azure",
    sha256="0" * 64,
    requests=9,
    rate=2.0,
    reused_tokens=0,
    prompt_tokens=900,
    last_arrival_us=1_500,
    repairs=("3 blank lines were skipped",),
)
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# (start, duration, repeats, prefill, decode)
Row = tuple[int, int, int, tuple[int, ...], tuple[int, ...]]
ROWS: list[Row] = [
    (0, 100, 1, (60, 0), (0, 0)),  # prefill, rank 1 idle
    (100, 100, 3, (30, 30), (0, 10)),  # prefill, none idle
    (400, 50, 6, (0, 0), (1, 3)),  # decode, none idle
    (1_000, 50, 2, (0, 0), (0, 2)),  # decode, rank 0 idle
    (1_400, 150, 2, (0, 90), (5, 5)),  # prefill, none idle, rank 0 without prompt
]


def workload(rows: list[Row] = ROWS, **settings: Any) -> Workload:
    start, duration, repeats, prefill, decode = zip(*rows, strict=True)
    return Workload(
        origin=ORIGIN,
        serving=Serving(ranks=len(prefill[0]), **settings),
        start_us=np.array(start, dtype=np.int64),
        duration_us=np.array(duration, dtype=np.int64),
        repeats=np.array(repeats, dtype=np.int64),
        prefill=np.array(prefill, dtype=np.int32),
        decode=np.array(decode, dtype=np.int32),
    )


def test_a_step_counts_its_tokens_and_idle_ranks() -> None:
    step = Step(start_us=0, duration_us=1, repeats=1, prefill=(5, 0, 0), decode=(1, 2, 0))
    assert (step.tokens_per_rank, step.tokens, step.idle_ranks) == ((6, 2, 0), 8, 1)


def test_a_workload_counts_steps_not_runs() -> None:
    assert len(workload()) == 14
    assert workload().tokens.tolist() == [60, 70, 4, 2, 100]
    assert workload().of_kind("prefill").tolist() == [True, True, False, False, True]
    assert workload().of_kind("decode").tolist() == [False, False, True, True, False]


def test_shares_of_prefill_steps_are_by_steps() -> None:
    found = summarise(workload()).kind("prefill")
    assert found is not None
    assert found.steps == 6
    assert found.idle_share == pytest.approx(1 / 6)
    assert found.idle_ranks == pytest.approx(1 / 6)
    assert found.no_prefill_share == pytest.approx(3 / 6)
    # max/mean: 60/30 once, 40/35 three times, 95/50 twice
    assert found.imbalance == pytest.approx((2 + 3 * 40 / 35 + 2 * 95 / 50) / 6)
    assert found.imbalance_active == pytest.approx((1 + 3 * 40 / 35 + 2 * 95 / 50) / 6)
    assert (found.tokens_p50, found.tokens_p90, found.tokens_p99) == (70, 100, 100)
    assert found.tokens_mean == pytest.approx((60 + 3 * 70 + 2 * 100) / 6)
    assert found.time_share == pytest.approx(700 / 1_100)


def test_decode_steps_are_summed_up_apart() -> None:
    found = summarise(workload()).kind("decode")
    assert found is not None
    assert (found.steps, found.idle_share) == (8, 2 / 8)
    assert found.no_prefill_share == 1


def test_a_kind_that_does_not_occur_has_no_summary() -> None:
    assert summarise(workload(ROWS[:2])).kind("decode") is None


def test_busy_time_and_backlog_follow_the_clock() -> None:
    found = summarise(workload())
    assert found.steps == 14
    assert found.busy_share == pytest.approx(1_100 / 1_700)
    assert found.backlog_s == pytest.approx((1_700 - 1_500) / 1e6)
    assert found.hours == pytest.approx(1_700 / 3600e6)


def test_the_histogram_is_by_powers_of_two_and_holds_every_step() -> None:
    bars = {b.least: b for b in token_histogram(workload())}
    assert {least: (b.prefill_steps, b.decode_steps) for least, b in bars.items()} == {
        2: (0, 2), 4: (0, 6), 8: (0, 0), 16: (0, 0), 32: (1, 0), 64: (5, 0),
    }  # fmt: skip
    assert bars[64].most == 127
    assert sum(b.time_share for b in bars.values()) == pytest.approx(1)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 1023, 1024, 1 << 30])
def test_each_token_count_lies_within_its_bar(tokens: int) -> None:
    (bar,) = token_histogram(workload([(0, 1, 1, (tokens,), (0,))]))
    assert bar.least <= tokens <= bar.most


def test_a_sample_spreads_over_steps_and_other_offsets_take_others() -> None:
    whole = workload()
    assert whole.sample(14).tokens.tolist() == np.repeat(whole.tokens, whole.repeats).tolist()
    assert whole.sample(2, "prefill").tokens.tolist() == [70, 100]
    taken = [set(whole.sample(3, "prefill", o).start_us.tolist()) for o in (0.0, 0.5)]
    assert not taken[0] & taken[1]
    assert taken[0] == {0, 200, 1_400}


def test_a_sample_has_no_clock() -> None:
    found = summarise(workload().sample(3))
    assert (found.busy_share, found.backlog_s) == (None, None)


@pytest.mark.parametrize(
    ("count", "kind", "offset", "words"),
    [
        (0, "all", 0.5, "steps is 0: must be 1 to 14"),
        (7, "prefill", 0.5, "must be 1 to 6, the prefill steps found"),
        (1, "all", 1.0, "offset is 1.0"),
        (1, "all", float("nan"), "offset is nan"),
        (1, "idle", 0.5, "kind of step is 'idle'"),
    ],
)
def test_samples_that_cannot_be_taken_are_refused(
    count: int, kind: str, offset: float, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        workload().sample(count, kind, offset)


def test_columns_of_other_shapes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="shape"):
        Workload(
            origin=ORIGIN,
            serving=Serving(ranks=2),
            start_us=np.zeros(1, dtype=np.int64),
            duration_us=np.ones(1, dtype=np.int64),
            repeats=np.ones(1, dtype=np.int64),
            prefill=np.ones((1, 3), dtype=np.int32),
            decode=np.ones((1, 3), dtype=np.int32),
        )


# Files.

ANY_ROWS = st.integers(1, 4).flatmap(
    lambda ranks: st.lists(
        st.tuples(
            st.integers(0, 1 << 40),
            st.integers(1, 1 << 30),
            st.integers(1, 1 << 30),
            st.tuples(*[st.integers(1, 1 << 20)] * ranks),
            st.tuples(*[st.integers(0, 1 << 20)] * ranks),
        ),
        min_size=1,
        max_size=6,
    ).map(sorted)
)


@quick
@given(rows=ANY_ROWS, name=st.sampled_from(("s.jsonl", "s.jsonl.gz")), sampled=st.booleans())
def test_a_file_gives_back_what_was_saved(
    tmp_path: Path, rows: list[Row], name: str, sampled: bool
) -> None:
    made = workload(rows, speculative=2, assign="round_robin")
    made = made.sample(1) if sampled else made
    read = load_steps(save_steps(made, tmp_path / name))
    assert list(read) == list(made)
    assert (read.origin, read.serving) == (made.origin, made.serving)
    assert read.sampled is sampled


def test_the_same_steps_give_the_same_bytes(tmp_path: Path) -> None:
    one, other = (save_steps(workload(), tmp_path / n) for n in ("a.gz", "b.gz"))
    assert one.read_bytes() == other.read_bytes()


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    lines = save_steps(workload(), tmp_path / "s.jsonl").read_text().splitlines()
    header = json.loads(lines[0])
    assert header["schema"] == SCHEMA == "rubin-tune.steps/1"
    assert (header["ranks"], header["records"], header["sampled"]) == (2, 5, False)
    assert json.loads(lines[2]) == {"t": 100, "us": 100, "n": 3, "p": [30, 30], "d": [0, 10]}


def test_saving_leaves_no_half_file_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(InvalidInput, match="cannot write"):
        save_steps(workload(), tmp_path / "taken")
    with pytest.raises(InvalidInput, match="cannot write"):
        save_steps(workload(), tmp_path / "none/s.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


GOOD = '{"t": 5000, "us": 1, "n": 1, "p": [1, 2], "d": [0, 0]}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 7: Expecting"),
        ("[]", "line 7 is no object"),
        ("", "line 7: Expecting"),
        (GOOD.replace('"us"', '"ms"'), "line 7: keys are"),
        (GOOD.replace("5000", "1"), "line 7: starts before the line above it"),
        (GOOD.replace("5000", "-5"), "line 7: 't' is -5"),
        (GOOD.replace('"n": 1', '"n": 0'), "line 7: 'n' is 0"),
        (GOOD.replace('"n": 1', '"n": true'), "line 7: 'n' is True"),
        (GOOD.replace("[1, 2]", "[1]"), "line 7: 'p' must be a list of 2 numbers"),
        (GOOD.replace("[1, 2]", "[1, NaN]"), "line 7: 'p' must hold whole numbers"),
        (GOOD.replace("[1, 2]", f"[1, {1 << 31}]"), "line 7: 'p' must hold whole numbers"),
        (GOOD.replace("[1, 2]", "[0, 0]"), "line 7: no rank has a token"),
        (GOOD, "it has 6 records, and its first line says 5"),
    ],
)
def test_a_broken_line_is_one_sentence(tmp_path: Path, line: str, words: str) -> None:
    path = save_steps(workload(), tmp_path / "s.jsonl")
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(CorruptFile) as caught:
        load_steps(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "rubin-tune.steps/2"}, "schema is 'rubin-tune.steps/2'"),
        ({"ranks": 3}, "ranks is 3, not 2"),
        ({"records": None}, "has no serving, origin or records"),
        ({"sampled": "no"}, "sampled is 'no'"),
        ({"serving": {"ranks": 0}}, "ranks is 0"),
        ({"serving": {"size": 2}}, "unknown serving setting 'size'"),
        ({"origin": {"trace": "t"}}, "line 1: "),
        ({"records": 0}, "first line says 0"),
    ],
)
def test_a_broken_first_line_is_one_sentence(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = save_steps(workload(), tmp_path / "s.jsonl")
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | change), *rest]) + "\n")
    with pytest.raises(CorruptFile) as caught:
        load_steps(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", ["rate", "requests", "repairs", "sha256"])
def test_an_origin_of_other_types_is_refused(tmp_path: Path, key: str) -> None:
    path = save_steps(workload(), tmp_path / "s.jsonl")
    first, *rest = path.read_text().splitlines()
    header = json.loads(first)
    header["origin"][key] = [1.5]
    path.write_text("\n".join([json.dumps(header), *rest]) + "\n")
    with pytest.raises(CorruptFile, match="line 1: "):
        load_steps(path)


def test_a_file_without_records_is_one_sentence(tmp_path: Path) -> None:
    path = save_steps(workload(), tmp_path / "s.jsonl")
    header = json.loads(path.read_text().splitlines()[0]) | {"records": 0}
    path.write_text(json.dumps(header) + "\n")
    with pytest.raises(InvalidInput, match="at least one step"):
        load_steps(path)


def test_a_cut_off_file_is_one_sentence(tmp_path: Path) -> None:
    path = save_steps(workload(), tmp_path / "s.jsonl.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptFile, match="EOFError"):
        load_steps(path)


def test_steps_files_are_known_by_their_first_line(tmp_path: Path) -> None:
    assert is_steps_file(save_steps(workload(), tmp_path / "s.jsonl.gz"))
    other = tmp_path / "trace.jsonl"
    other.write_bytes(b"\xff\xfe")
    assert not is_steps_file(other)
    assert not is_steps_file(tmp_path / "none")


# From a file to workloads.


def test_every_layout_is_batched_at_every_rate(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("100 5\n" * 8)
    found = workloads_of(path, layouts=["dep2", "dep4"], rates=[1, 8], settings={"chunk": 512})
    assert [(w.serving.ranks, w.origin.rate) for w in found] == [(2, 1), (2, 8), (4, 1), (4, 8)]
    assert {w.serving.chunk for w in found} == {512}
    assert workloads_of(path, requests=3)[0].origin.requests == 3


def test_a_steps_file_keeps_its_own_settings(tmp_path: Path) -> None:
    path = save_steps(workload(), tmp_path / "s.jsonl")
    assert list(workloads_of(path)[0]) == list(workload())
    with pytest.raises(InvalidInput, match="batched already"):
        workloads_of(path, rates=[2])


def test_too_many_pairs_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at most 64"):
        workloads_of(tmp_path / "none", layouts=["dep2"] * 9, rates=[1.0] * 9)


def test_gzip_of_a_trace_and_of_steps_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_bytes(gzip.compress(b"100 5\n"))
    assert len(workloads_of(path, layouts=["single"])[0]) == 5
