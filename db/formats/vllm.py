"""vLLM's table of its fused-MoE Triton kernel, one file a (experts, width, GPU, format).

Name, keys and reading rule are those of vLLM 0.33,
vllm/model_executor/layers/fused_moe/fused_moe.py
(`get_config_file_name`, `get_moe_configs`, `try_get_optimal_moe_config`; facts, engines 1.1). The
engine takes the row whose token count is nearest by difference, however far, and one config for
both GEMMs. So:

- Only winners of unit `layer` are written: their config served both GEMMs when it was timed.
- The ladder is closed: each of vLLM's 18 batch sizes has a row. Where there is a winner the row
  is the winner's, elsewhere it pins what the engine would launch without a table, so that no step
  snaps across a gap to a config that was tuned for another size. Winners at other token counts
  are rows too. Above the last row the engine keeps using it, as with the tables that it ships.
- What the name cannot tell apart (hidden size, top-k, routing, toolchain) may not meet in one
  file.

Nothing is written unless every row is legal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import CorruptFile, InvalidInput
from ...search_spaces import LaunchConfig, Problem
from ...search_spaces.fused_moe import from_engine, to_engine
from ..records import Winner
from ._engine import (
    BLOCK,
    check_one_problem,
    check_rows,
    closed_ladder,
    configs_of,
    device_of,
    layer_rows,
    spelling,
)
from ._format import Format, write_together

_ENGINE = "vllm"
# Our weight format -> (dtype in the name, block_shape in the name).
_SPELLINGS = {
    "bf16": ("", ""),
    "fp8_block128": (",dtype=fp8_w8a8", f",block_shape=[{BLOCK},{BLOCK}]"),
}
_EXPECTED = "a vLLM fused-MoE table: token counts and their BLOCK_SIZE_M, BLOCK_SIZE_N, ... rows"


def file_name(problem: Problem, device: str) -> str:
    """Return the name under which vLLM 0.33 looks for a problem's table.

    Args:
        problem: Its local experts are the name's E, its width on one rank N.
        device: The GPU's name as the driver says it.

    Raises:
        ExportRefused: vLLM looks for no table of that weight format.
    """
    dtype, block = spelling(problem, _ENGINE, _SPELLINGS)
    experts, width = problem.local_experts, problem.local_intermediate
    return f"E={experts},N={width},device_name={device_as_file_name(device)}{dtype}{block}.json"


def device_as_file_name(device: str) -> str:
    """Return a GPU's name as vLLM spells it in file names; all of the H200 family are one."""
    spelled = re.sub(r"[\s/]+", "_", device)
    return "NVIDIA_H200" if "H200" in spelled.split("_") else spelled


class VllmFormat:
    """vLLM's table."""

    def export(
        self,
        winners: Sequence[Winner],
        out_dir: Path,
        *,
        allow_predicted: bool = False,
        device_name: str | None = None,
    ) -> list[Path]:
        """Write one file a name; vLLM reads the folder that VLLM_TUNED_CONFIG_FOLDER names."""
        rows = layer_rows(winners, _ENGINE)
        check_rows(rows, _ENGINE, allow_predicted=allow_predicted, extra=_split)
        files: dict[str, list[Winner]] = {}
        for row in rows:
            name = file_name(row.problem, device_name or device_of(row))
            files.setdefault(name, []).append(row)
        for name, held in files.items():
            check_one_problem(name, held)
        texts = {out_dir / name: _text(held) for name, held in files.items()}
        return write_together(texts)

    def load(self, path: Path) -> dict[int, LaunchConfig]:
        """Return the configs of a table that vLLM or `export` wrote, by token count.

        Raises:
            CorruptFile: it is no such table.
        """
        try:
            found = json.loads(path.read_bytes())
            rows = {int(k): v for k, v in found.items() if k != "triton_version"}
            return {tokens: from_engine(values) for tokens, values in rows.items()}
        except OSError as error:
            raise CorruptFile(path, error.strerror or str(error), _EXPECTED) from error
        except (ValueError, AttributeError, RecursionError, InvalidInput) as error:
            raise CorruptFile(path, f"it is not as vLLM reads it ({error})", _EXPECTED) from error


def _split(row: Winner) -> str:
    """Say so where the GEMMs have configs of their own."""
    if any(part != row.config for part in configs_of(row)):
        return "its two GEMMs have different configs, and one must serve both"
    return ""


def _text(rows: Sequence[Winner]) -> str:
    """Return the file: winners, and the engine's own config at its other batch sizes."""
    ladder = closed_ladder(rows)
    table: dict[str, Any] = {str(tokens): to_engine(both[0]) for tokens, both in ladder.items()}
    # The engine drops it; people do not.
    version = ", ".join(sorted({row.toolchain.triton for row in rows}))
    return json.dumps({"triton_version": version, **table}, indent=4) + "\n"


PROVIDES: Format = VllmFormat()
