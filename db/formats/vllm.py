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
from typing import TYPE_CHECKING, Any

from ...errors import CorruptFile, ExportRefused, InvalidInput
from ...registry import load as load_named
from ...search_spaces import VLLM_LADDER, LaunchConfig, Problem, Unit
from ...search_spaces.fused_moe import ENGINE_NAMES, from_engine, to_engine
from ...topology import gpu_names, resolve_target
from ..records import Evidence, Winner
from ._format import Format, write_together

if TYPE_CHECKING:
    from ...kernels._kernel import Kernel

_ENGINE = "vllm"
_BLOCK = 128
# How many offending rows a message names.
_MOST_NAMED = 3
# Our weight format -> (dtype in the name, block_shape in the name).
_SPELLINGS = {
    "bf16": ("", ""),
    "fp8_block128": (",dtype=fp8_w8a8", f",block_shape=[{_BLOCK},{_BLOCK}]"),
}
_ELEMENT_BYTES = {"bf16": 2, "fp8_block128": 1}
_EXPECTED = "a vLLM fused-MoE table: token counts and their BLOCK_SIZE_M, BLOCK_SIZE_N, ... rows"


def file_name(problem: Problem, device: str) -> str:
    """Return the name under which vLLM 0.33 looks for a problem's table.

    Args:
        problem: Its local experts are the name's E, its width on one rank N.
        device: The GPU's name as the driver says it.

    Raises:
        ExportRefused: vLLM looks for no table of that weight format.
    """
    weights = problem.shape.weights
    if weights not in _SPELLINGS:
        raise ExportRefused(
            f"weights of {problem.shape.model!r} are {weights}: vLLM reads tables of "
            f"{' and '.join(_SPELLINGS)} only"
        )
    dtype, block = _SPELLINGS[weights]
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
        _check_kernels(winners)
        rows = [winner for winner in winners if winner.unit is Unit.LAYER]
        if not rows:
            raise ExportRefused(
                "there are no winners of unit 'layer' to export: vLLM takes one config for both "
                "GEMMs; run rubin-tune sweep fused_moe first"
            )
        _check_rows(rows, allow_predicted)
        files: dict[str, list[Winner]] = {}
        for row in rows:
            name = file_name(row.problem, device_name or _device(row))
            files.setdefault(name, []).append(row)
        for name, held in files.items():
            _check_one_problem(name, held)
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


def _check_kernels(winners: Sequence[Winner]) -> None:
    for name in sorted({winner.kernel for winner in winners}):
        if _kernel(name).serves_engine != _ENGINE:
            raise ExportRefused(
                f"winners of kernel {name!r} cannot enter vLLM's table: it is read for vLLM's own "
                "kernel, about which times on another kernel say nothing; sweep fused_moe instead"
            )


def _kernel(name: str) -> Kernel:
    found: Any = load_named("kernels", name)
    kernel: Kernel = found
    return kernel


def _device(winner: Winner) -> str:
    name = winner.silicon.name
    if not name or name in gpu_names():
        raise ExportRefused(
            f"winner of {_place(winner)} names its GPU {name!r}, which is our word, not the "
            "driver's: say what nvidia-smi says with --device-name (such as 'NVIDIA H200')"
        )
    return name


def _place(winner: Winner) -> str:
    return f"{winner.problem.shape.model} at {winner.problem.tokens} tokens"


def _check_rows(rows: Sequence[Winner], allow_predicted: bool) -> None:
    least = Evidence.PREDICTED if allow_predicted else Evidence.RECORDED
    weak = [row for row in rows if row.evidence < least]
    if weak:
        words = " and ".join(sorted({row.evidence.word for row in weak}))
        raise ExportRefused(
            f"rows are {words}, not measured: {_named(weak)}; measure them on the GPU, or say "
            "--allow-predicted to export predicted rows all the same"
        )
    for row in rows:
        why = _illegal(row)
        if why:
            raise ExportRefused(
                f"winner of {_place(row)} is not legal for vLLM's kernel ({row.config}): {why}"
            )


def _named(rows: Sequence[Winner]) -> str:
    more = len(rows) - _MOST_NAMED
    named = ", ".join(_place(row) for row in rows[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named


def _illegal(row: Winner) -> str:
    """Say why vLLM's kernel would not run a row's config, or would run another in its place."""
    config = row.config
    unknown = [name for name in config if name not in ENGINE_NAMES]
    if unknown:
        return f"its kernel takes no {unknown[0]!r}"
    missing = [name for name in ENGINE_NAMES if name not in list(config)]
    if missing:
        return f"it has no {missing[0]!r}"
    if any(part != config for _, part in row.parts):
        return "its two GEMMs have different configs, and one must serve both"
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = config.integer(name)
        if value < 1 or value & (value - 1):
            return f"{name} is {value}: must be a power of two"
    if row.problem.shape.weights == "fp8_block128" and _BLOCK % config.integer("block_k"):
        return f"block_k is {config.integer('block_k')}: must divide the scale block of {_BLOCK}"
    needs, limit = _shared_bytes(row), row.silicon.shared_limit_bytes
    if needs > limit:
        return f"it needs {needs} bytes of shared memory: must be at most {limit}"
    return ""


def _shared_bytes(row: Winner) -> int:
    """Return what the compiler said, else the least that num_stages - 1 buffers take."""
    if row.compile is not None:
        return row.compile.shared_bytes
    config = row.config
    stage = (config.integer("block_m") + config.integer("block_n")) * config.integer("block_k")
    element = _ELEMENT_BYTES.get(row.problem.shape.weights, 2)
    return (config.integer("num_stages") - 1) * stage * element


def _check_one_problem(name: str, rows: Sequence[Winner]) -> None:
    """Refuse rows that the file's name cannot tell apart."""
    first, seen = rows[0], dict[int, Winner]()
    for row in rows:
        if row.problem.at(1).key != first.problem.at(1).key:
            raise ExportRefused(
                f"two problems have one file name {name!r}: {_whole(first.problem)} and "
                f"{_whole(row.problem)}; export one at a time, into folders of their own"
            )
        if row.silicon.key != first.silicon.key:
            raise ExportRefused(
                f"two GPUs have one file name {name!r}: {first.silicon.key} and "
                f"{row.silicon.key}; export one at a time, into folders of their own"
            )
        held = seen.setdefault(row.problem.tokens, row)
        if held.config != row.config:
            raise ExportRefused(
                f"two winners of {_place(row)} have one file name {name!r}: {held.config} and "
                f"{row.config}; export one sweep with --sweep"
            )


def _whole(problem: Problem) -> str:
    shape = problem.shape
    return (
        f"{shape.model} ({problem.layout.name}, hidden {shape.hidden}, top_k {shape.top_k}, "
        f"{shape.experts} experts, routing {problem.routing.name})"
    )


def _text(rows: Sequence[Winner]) -> str:
    """Return the file: winners, and the engine's own config at its other batch sizes."""
    first = rows[0]
    kernel, gpu = _kernel(first.kernel), resolve_target(f"sm_{first.silicon.arch}")
    configs = {
        tokens: kernel.default(first.problem.at(tokens), Unit.GATE_UP, gpu)
        for tokens in VLLM_LADDER
    }
    configs.update({row.problem.tokens: row.config for row in rows})
    table: dict[str, Any] = {str(tokens): to_engine(configs[tokens]) for tokens in sorted(configs)}
    # The engine drops it; people do not.
    version = ", ".join(sorted({row.toolchain.triton for row in rows}))
    return json.dumps({"triton_version": version, **table}, indent=4) + "\n"


PROVIDES: Format = VllmFormat()
