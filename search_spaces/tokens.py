"""Token counts that are tuned for."""

from __future__ import annotations

import re

from ..errors import InvalidInput

# Source: vLLM 0.33 benchmarks/kernels/benchmark_moe.py, its 18 batch sizes.
VLLM_LADDER = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
# Far above any step that an engine makes; keeps a slip of the finger from asking for terabytes.
MOST_TOKENS = 1 << 20


def parse_tokens(text: str) -> tuple[int, ...]:
    """Read "1,2,4" into ascending, distinct token counts.

    Raises:
        InvalidInput: an entry that is no integer from 1 to 1,048,576.
    """
    counts = set()
    for word in text.split(","):
        count = int(word) if re.fullmatch(r"\s*[0-9]{1,9}\s*", word) else 0
        if not 1 <= count <= MOST_TOKENS:
            raise InvalidInput(
                f"tokens is {word.strip()!r}: must be integers from 1 to {MOST_TOKENS}, "
                "separated by commas"
            )
        counts.add(count)
    return tuple(sorted(counts))
