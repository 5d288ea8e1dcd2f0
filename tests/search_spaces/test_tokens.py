"""Token ladders."""

from __future__ import annotations

import pytest

from rubin_tune.errors import InvalidInput
from rubin_tune.search_spaces import VLLM_LADDER, parse_tokens


def test_the_default_ladder_is_vllms() -> None:
    assert len(VLLM_LADDER) == 18
    assert tuple(sorted(set(VLLM_LADDER))) == VLLM_LADDER
    assert parse_tokens(",".join(map(str, VLLM_LADDER))) == VLLM_LADDER


def test_counts_are_sorted_and_distinct() -> None:
    assert parse_tokens("64, 1,64,8 ") == (1, 8, 64)


@pytest.mark.parametrize(
    "text", ["0", "-1", "", "a", "1,,2", "1.5", "1e3", "1_000", "٣", "1048577", "9" * 5000, "nan"]
)
def test_what_is_no_count_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be integers from 1") as caught:
        parse_tokens(text)
    assert "\n" not in str(caught.value)
