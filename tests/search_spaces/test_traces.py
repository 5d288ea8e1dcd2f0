"""Traces: what is read, what is refused with line and column, what is repaired and said."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rubin_tune.errors import CorruptFile, InvalidInput
from rubin_tune.search_spaces import Trace, read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = HEADER + "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
DATA = Path(__file__).resolve().parents[2] / "../shared/data/traces"

quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def azure(tmp_path: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def mooncake(tmp_path: Path, *rows: object) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def request(**changes: object) -> dict[str, object]:
    row: dict[str, object] = {"timestamp": 5, "input_length": 700, "output_length": 3}
    return {**row, "hash_ids": [1, 2], **changes}


def refusal(path: Path, format: str = "auto") -> str:
    with pytest.raises(CorruptFile) as caught:
        read_trace(path, format)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_azure_rows_become_requests(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, GOOD))
    assert trace.arrival_us.tolist() == [0, 52000]
    assert trace.prompt.tolist() == [4808, 3180]
    assert trace.output.tolist() == [10, 8]
    assert (trace.format, trace.repairs) == ("azure", ())


def test_mooncake_lines_become_requests(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, request(), request(timestamp=7.5, output_length=0)))
    assert trace.arrival_us.tolist() == [0, 2500]
    assert trace.output.tolist() == [3, 0]
    assert trace.format == "mooncake"


def test_plain_lengths_come_one_a_second_and_that_is_said(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, "100 7\n200,9\n300\n", "lengths.txt"))
    assert trace.prompt.tolist() == [100, 200, 300]
    assert trace.output.tolist() == [7, 9, 1]
    assert trace.arrival_us.tolist() == [0, 1_000_000, 2_000_000]
    assert "one a second" in trace.repairs[0]


@pytest.mark.parametrize("name", ["trace.csv.gz", "trace.gz", "trace.csv"])
def test_gzip_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    assert len(read_trace(azure(tmp_path, gzip.compress(GOOD.encode()), name))) == 2


@pytest.mark.parametrize(
    ("content", "format"),
    [(GOOD, "azure"), (json.dumps(request()), "mooncake"), ("12 3\n", "lengths")],
)
def test_the_form_is_guessed_from_the_first_line(
    tmp_path: Path, content: str, format: str
) -> None:
    assert read_trace(azure(tmp_path, content, "trace.log")).format == format


@pytest.mark.parametrize("zone", ["+00:00", "Z", ""])
def test_zones_are_understood(tmp_path: Path, zone: str) -> None:
    rows = f"2024-05-10 00:00:01.5{zone},1,1\n2024-05-10T02:00:02.5+02:00,1,1\n"
    assert read_trace(azure(tmp_path, HEADER + rows)).arrival_us.tolist() == [0, 1_000_000]


def test_a_reused_prefix_counts_whole_leading_blocks(tmp_path: Path) -> None:
    first = request(timestamp=0, input_length=1500, hash_ids=[1, 2, 3])
    again = request(timestamp=1, input_length=1500, hash_ids=[1, 2, 9])
    other = request(timestamp=2, input_length=1500, hash_ids=[8, 2, 3])
    same = request(timestamp=3, input_length=1024, hash_ids=[1, 2])
    trace = read_trace(mooncake(tmp_path, first, again, other, same))
    assert trace.reusable.tolist() == [0, 1024, 0, 1023]


def test_reuse_follows_the_order_of_time_not_of_lines(tmp_path: Path) -> None:
    trace = read_trace(
        mooncake(tmp_path, request(timestamp=9, hash_ids=[1, 2]), request(timestamp=1))
    )
    assert trace.reusable.tolist() == [0, 699]


# What cannot be meant: each says where.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it is empty"),
        ("\n\n", "it is empty"),
        (HEADER, "no request"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "line 1: column 'generatedtokens' is missing"),
        (HEADER.strip() + ",ContextTokens\n", "'contexttokens' is twice"),
        (HEADER + "1,2\n", "line 2 has 2 columns: must be 3"),
        (HEADER + "1,2,3\n\n1,2,3,4\n", "line 4 has 4 columns"),
        (HEADER + "1,-5,3\n", "line 2, column 2 (ContextTokens): '-5'"),
        (HEADER + "1,0,3\n", "line 2, column 2 (ContextTokens): '0'"),
        (HEADER + "1,5,-1\n", "line 2, column 3 (GeneratedTokens): '-1'"),
        (HEADER + "1,99999999999,3\n", "line 2, column 2 (ContextTokens)"),
        (HEADER + "1," + "9" * 100_000 + ",3\n", "line 2, column 2 (ContextTokens)"),
        (HEADER + "1,12.5,3\n", "'12.5' must be a whole number from 1"),
        (HEADER + "1,NaN,3\n", "line 2, column 2"),
        (HEADER + "1,,3\n", "line 2, column 2"),
        (HEADER + "1,٣,3\n", "line 2, column 2"),
        (HEADER + "NaN,5,3\n", "line 2, column 1 (TIMESTAMP): 'NaN' is no time"),
        (HEADER + "inf,5,3\n", "line 2, column 1"),
        (HEADER + "-4,5,3\n", "line 2, column 1"),
        (HEADER + "1e300,5,3\n", "line 2, column 1"),
        (HEADER + "yesterday,5,3\n", "line 2, column 1"),
        (HEADER + "2023-13-16 18:17:03,5,3\n", "line 2, column 1"),
        (HEADER + '1,"5,3\n', "line 2: "),
        (HEADER + "0,1,1\n1e9,1,1\n", "line 3: the trace spans 11574 days"),
        (GOOD.encode("utf-16"), "line 1, column 1: is UTF-16"),
        (GOOD.encode("utf-32"), "line 1, column 1: is UTF-32"),
        (GOOD.encode() + b"1,\xe9,3\n", "line 4, column 3: byte 0xe9 is no UTF-8"),
        (GOOD.encode() + b"1,\0,3\n", "line 4, column 3: a zero byte"),
        (GOOD.encode() + b"1" * (1 << 21), "line 4 is longer than 1 MiB"),
        (gzip.compress(GOOD.encode())[:-12], "EOFError"),
        (b"\x1f\x8b rubbish", "BadGzipFile"),
    ],
)
def test_a_malformed_csv_is_refused_in_one_sentence(
    tmp_path: Path, content: str | bytes, words: str
) -> None:
    assert words in refusal(azure(tmp_path, content))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "line 2, column 2: Expecting property name"),
        ("[1, 2]", "line 2, column 1: '[1, 2]' is no object"),
        ("[" * 100_000, "line 2: "),
        ({"timestamp": 1, "input_length": 3}, "line 2: key 'output_length' is missing"),
        (request(input_length=-1), "line 2, key 'input_length': -1"),
        (request(input_length=0), "line 2, key 'input_length': 0"),
        (request(input_length=True), "line 2, key 'input_length': True"),
        (request(input_length="5"), "line 2, key 'input_length': '5'"),
        (request(output_length=1 << 30), "line 2, key 'output_length'"),
        (request(timestamp=float("nan")), "line 2, key 'timestamp': nan is no time"),
        (request(timestamp=-1), "line 2, key 'timestamp'"),
        (request(timestamp=10**400), "line 2, key 'timestamp'"),
        (request(timestamp=None), "line 2, key 'timestamp'"),
        (request(hash_ids=5), "line 2, key 'hash_ids'"),
        (request(hash_ids=[1.5]), "line 2, key 'hash_ids'"),
        (request(hash_ids=[-1]), "line 2, key 'hash_ids'"),
        (request(hash_ids=[1, 2, 3]), "3 blocks of 512 tokens, but a prompt of 700 has 2"),
    ],
)
def test_a_malformed_json_line_is_refused_in_one_sentence(
    tmp_path: Path, row: object, words: str
) -> None:
    assert words in refusal(mooncake(tmp_path, request(), row))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it is empty"),
        ("1 2 3\n", "line 1 has 3 columns"),
        ("5\nmany\n", "line 2, column 1: 'many'"),
        ("5 -1\n", "line 1, column 2: '-1'"),
    ],
)
def test_malformed_lengths_are_refused_in_one_sentence(
    tmp_path: Path, content: str, words: str
) -> None:
    assert words in refusal(azure(tmp_path, content, "lengths.txt"))


def test_no_such_file_and_no_such_format_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such file"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InvalidInput, match="must be auto, azure, mooncake, lengths"):
        read_trace(azure(tmp_path, GOOD), "burst")
    assert "is empty" in refusal(azure(tmp_path, "", "trace"))


# What is repaired is said.


def test_requests_out_of_order_are_sorted_and_that_is_said(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, HEADER + "9,90,1\n3,30,1\n\n3,31,1\n12,120,1\n"))
    assert trace.prompt.tolist() == [30, 31, 90, 120]
    assert trace.arrival_us.tolist() == [0, 0, 6_000_000, 9_000_000]
    said = " ".join(trace.repairs)
    assert "1 blank line" in said
    assert "2 requests out of order were sorted by time (the first on line 3)" in said


def test_a_byte_order_mark_and_carriage_returns_are_taken(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    trace = read_trace(azure(tmp_path, content))
    assert len(trace) == 2
    assert trace.repairs == ("a UTF-8 byte-order mark was skipped",)


# Nothing but a sentence comes of any bytes.

BITS = st.sampled_from(
    [HEADER, "1,5,3\n", "2023-11-16 18:17:03.97,7,2\n", "\n", ",", '"', "nan", "-1", "{", "}",
     '{"timestamp": 1, "input_length": 2, "output_length": 3}\n', "é", "\0", "99 9\n", "1e999"]
)  # fmt: skip


@quick
@given(parts=st.lists(BITS | st.text(max_size=6), max_size=8), packed=st.booleans())
@pytest.mark.parametrize("format", ["auto", "azure", "mooncake", "lengths"])
def test_any_text_is_a_trace_or_one_sentence(
    tmp_path: Path, parts: list[str], packed: bool, format: str
) -> None:
    content = "".join(parts).encode("utf-8", "surrogatepass")
    path = azure(tmp_path, gzip.compress(content) if packed else content, "any")
    _is_trace_or_sentence(path, format)


@quick
@given(content=st.binary(max_size=64))
def test_any_bytes_are_a_trace_or_one_sentence(tmp_path: Path, content: bytes) -> None:
    _is_trace_or_sentence(azure(tmp_path, content, "any"), "auto")


def _is_trace_or_sentence(path: Path, format: str) -> None:
    try:
        trace = read_trace(path, format)
    except CorruptFile:
        refusal(path, format)
        return
    assert (np.diff(trace.arrival_us) >= 0).all()
    assert (trace.prompt >= 1).all()


@quick
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 1 << 24), st.integers(0, 1 << 24)),
        min_size=1,
        max_size=20,
    )
)
def test_both_forms_say_the_same(tmp_path: Path, rows: list[tuple[int, int, int]]) -> None:
    csv = HEADER + "".join(f"{t / 1000},{p},{o}\n" for t, p, o in rows)
    lines = [{"timestamp": t, "input_length": p, "output_length": o} for t, p, o in rows]
    one, other = read_trace(azure(tmp_path, csv)), read_trace(mooncake(tmp_path, *lines))
    assert one.arrival_us.tolist() == other.arrival_us.tolist()
    assert one.prompt.tolist() == other.prompt.tolist()
    assert one.output.tolist() == other.output.tolist()
    assert sorted(zip(one.prompt.tolist(), one.output.tolist(), strict=True)) == sorted(
        (p, o) for _, p, o in rows
    )


def test_a_million_lines_are_read_in_a_few_seconds(tmp_path: Path) -> None:
    rows = "".join(f"{i / 8},{100 + i % 900},{i % 50}\n" for i in range(1_000_000))
    path = azure(tmp_path, HEADER + rows)
    begin = time.process_time()
    trace = read_trace(path)
    assert len(trace) == 1_000_000
    assert time.process_time() - begin < 30


# Rate and part.


def test_a_rate_quickens_arrivals(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, HEADER + "0,1,1\n10,1,1\n"))
    assert trace.at_rate(4).arrival_us.tolist() == [0, 2_500_000]
    assert trace.at_rate(4).requests_per_s == pytest.approx(4 * trace.requests_per_s)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_rate_that_cannot_be_meant_is_refused(tmp_path: Path, rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate is"):
        read_trace(azure(tmp_path, GOOD)).at_rate(rate)


def test_the_first_requests_are_taken(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, GOOD))
    assert trace.first(1).prompt.tolist() == [4808]
    with pytest.raises(InvalidInput, match="at least 1"):
        trace.first(0)


def test_columns_of_different_lengths_are_refused() -> None:
    one, two = np.ones(1, dtype=np.int64), np.ones(2, dtype=np.int64)
    with pytest.raises(InvalidInput, match="columns of"):
        Trace(name="x", arrival_us=one, prompt=two, output=two, reusable=two)


@pytest.mark.parametrize(
    ("name", "requests", "prompt_mean"),
    [
        ("azure-2023-code.csv.gz", 8819, 2048),
        ("azure-2023-conversation.csv.gz", 19366, 1155),
        ("mooncake-conversation.jsonl.gz", 12031, 12035),
    ],
)
def test_the_public_traces_read_as_their_authors_describe_them(
    name: str, requests: int, prompt_mean: int
) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip("no ../shared/data/traces beside the repository")
    trace = read_trace(path)
    assert len(trace) == requests
    assert round(float(trace.prompt.mean())) == prompt_mean
    assert trace.repairs == ()
    assert re.fullmatch("[0-9a-f]{64}", trace.sha256)
