"""SGLang's tables of its fused-MoE Triton kernel: a folder a Triton version, two files a problem.

Names, folders and reading rule are those of SGLang 0.5.23, fused_moe_triton_config.py
(`get_config_file_name`, `get_moe_configs`, `try_get_optimal_moe_config`; facts, engines 1.4):

    configs/triton_3_9_0/E=128,N=768,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json
    configs/triton_3_9_0/E=128,N=768,...,block_shape=[128, 128]_down.json

The first is the gate_up GEMM's, `_down` the other's; both have the same token counts, and at each the same
BLOCK_SIZE_M, else the engine would overwrite it. The engine takes the folder of its own Triton, else the newest
other, and the row whose token count is nearest; so the ladder is closed as in vLLM's table. Other than vLLM's,
a file may hold nothing but token counts. Which Triton a row belongs to is its toolchain's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import CorruptFile, ExportRefused, InvalidInput
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
    place,
    spelling,
)
from ._format import Format, write_together

_ENGINE = "sglang"
# Our weight format -> (dtype in the name, block_shape in the name, with the space that Python prints).
_SPELLINGS = {
    "bf16": ("", ""),
    "fp8_block128": (",dtype=fp8_w8a8", f",block_shape=[{BLOCK}, {BLOCK}]"),
}
_EXPECTED = "a SGLang fused-MoE table: token counts and their BLOCK_SIZE_M, BLOCK_SIZE_N, ... rows"
# The engine sorts these folders by their integers: one more character, and it fails at every look-up.
_VERSION = re.compile(r"\d{1,4}(\.\d{1,4}){1,3}")


def file_name(problem: Problem, device: str, *, down: bool = False) -> str:
    """Return the name under which SGLang 0.5.23 looks for a problem's table.

    Args:
        problem: Its local experts are the name's E, its width on one rank N.
        device: The GPU's name as the driver says it.
        down: The table of the second GEMM.

    Raises:
        ExportRefused: SGLang looks for no table of that weight format.
    """
    dtype, block = spelling(problem, _ENGINE, _SPELLINGS)
    experts, width = problem.local_experts, problem.local_intermediate
    name = f"E={experts},N={width},device_name={device.replace(' ', '_')}"
    return f"{name}{dtype}{block}{'_down' if down else ''}.json"


def folder_name(winner: Winner) -> str:
    """Return the folder in which SGLang looks with the Triton that a winner was found with.

    Raises:
        ExportRefused: that version is none that SGLang can read.
    """
    triton = winner.toolchain.triton
    if not _VERSION.fullmatch(triton):
        raise ExportRefused(
            f"winner of {place(winner)} was found with triton {triton!r}: SGLang reads folders of released "
            "versions only (3.9.0); measure with one"
        )
    return f"triton_{triton.replace('.', '_')}"


class SglangFormat:
    """SGLang's tables."""

    def export(
        self,
        winners: Sequence[Winner],
        out_dir: Path,
        *,
        allow_predicted: bool = False,
        device_name: str | None = None,
    ) -> list[Path]:
        """Write configs/triton_X_Y_Z/ under the folder that SGLANG_MOE_CONFIG_DIR shall name."""
        rows = layer_rows(winners, _ENGINE)
        check_rows(rows, _ENGINE, allow_predicted=allow_predicted, extra=_unaligned)
        files: dict[tuple[str, str], list[Winner]] = {}
        for row in rows:
            name = _checked(file_name(row.problem, device_name or device_of(row)))
            files.setdefault((folder_name(row), name), []).append(row)
        texts = {}
        for (folder, name), held in files.items():
            check_one_problem(f"{folder}/{name}", held)
            device = device_name or device_of(held[0])
            for number, down in enumerate((False, True)):
                own = file_name(held[0].problem, device, down=down)
                texts[out_dir / "configs" / folder / own] = _text(held, number)
        return write_together(texts)

    def load(self, path: Path) -> dict[int, LaunchConfig]:
        """Return the configs of a table that SGLang or `export` wrote, by token count.

        Raises:
            CorruptFile: it is no such table.
        """
        try:
            rows = {
                int(tokens): values for tokens, values in json.loads(path.read_bytes()).items()
            }
            return {tokens: from_engine(values) for tokens, values in rows.items()}
        except OSError as error:
            raise CorruptFile(path, error.strerror or str(error), _EXPECTED) from error
        except (ValueError, AttributeError, RecursionError, InvalidInput) as error:
            raise CorruptFile(
                path, f"it is not as SGLang reads it ({error})", _EXPECTED
            ) from error


def _checked(name: str) -> str:
    if "/" in name or "\0" in name:
        raise ExportRefused(f"file name {name!r} has a slash: name the GPU with --device-name")
    return name


def _unaligned(row: Winner) -> str:
    """Say so where the GEMMs do not share the rows of a tile."""
    blocks = {dict(config.items).get("block_m") for config in configs_of(row)}
    return (
        "" if len(blocks) == 1 else "its two GEMMs have different block_m, and one must serve both"
    )


def _text(rows: Sequence[Winner], number: int) -> str:
    ladder = closed_ladder(rows)
    table = {str(tokens): to_engine(both[number]) for tokens, both in ladder.items()}
    return json.dumps(table, indent=4) + "\n"


PROVIDES: Format = SglangFormat()
