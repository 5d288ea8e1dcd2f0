"""What the tables of vLLM's and SGLang's fused-MoE kernels share: which rows may enter, and a closed ladder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ExportRefused
from ...registry import load as load_named
from ...search_spaces import VLLM_LADDER, LaunchConfig, Problem, Unit
from ...search_spaces.fused_moe import ENGINE_NAMES
from ...topology import gpu_names, load_gpu, resolve_target
from ..records import Evidence, Winner

if TYPE_CHECKING:
    from ...kernels._kernel import Kernel

BLOCK = 128
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
# The kernel that is each engine's own.
_OWN = {"vllm": "fused_moe", "sglang": "sglang_fused_moe"}
# How many offending rows a message names.
_MOST_NAMED = 3
_ELEMENT_BYTES = {"bf16": 2, "fp8_block128": 1}


def layer_rows(winners: Sequence[Winner], engine: str) -> list[Winner]:
    """Return the winners of whole layers: their configs were timed together.

    Raises:
        ExportRefused: a winner of another kernel, or no layer.
    """
    for name in sorted({winner.kernel for winner in winners}):
        if kernel_of(name).serves_engine != engine:
            raise ExportRefused(
                f"winners of kernel {name!r} cannot enter {TITLES[engine]}'s table: it is read for "
                f"{TITLES[engine]}'s own kernel, about which times on another kernel say nothing; sweep "
                f"{_OWN[engine]} instead"
            )
    rows = [winner for winner in winners if winner.unit is Unit.LAYER]
    if not rows:
        raise ExportRefused(
            "there are no winners of unit 'layer' to export: the engine's table speaks of both "
            f"GEMMs; run rubin-tune sweep {_OWN[engine]} first"
        )
    return rows


def kernel_of(name: str) -> Kernel:
    """Return a kernel by its name."""
    found: Any = load_named("kernels", name)
    kernel: Kernel = found
    return kernel


def device_of(winner: Winner) -> str:
    """Return the GPU's name as the driver says it.

    Raises:
        ExportRefused: the winner knows only our name of it.
    """
    name = winner.silicon.name
    # A row that no driver was asked for has our name or our title: engines would never find its file.
    ours = {text for known in gpu_names() for text in (known, load_gpu(known).title)}
    if not name or name in ours:
        raise ExportRefused(
            f"winner of {place(winner)} names its GPU {name!r}, which is our word, not the "
            "driver's: say what nvidia-smi says with --device-name (such as 'NVIDIA H200')"
        )
    return name


def place(winner: Winner) -> str:
    """Name a winner in a message."""
    return f"{winner.problem.shape.model} at {winner.problem.tokens} tokens"


def spelling(
    problem: Problem, engine: str, spellings: Mapping[str, tuple[str, str]]
) -> tuple[str, str]:
    """Return what a file name says of the weights.

    Raises:
        ExportRefused: the engine looks for no table of that format.
    """
    weights = problem.shape.weights
    if weights not in spellings:
        raise ExportRefused(
            f"weights of {problem.shape.model!r} are {weights}: {TITLES[engine]} reads tables of "
            f"{' and '.join(spellings)} only"
        )
    return spellings[weights]


def check_rows(
    rows: Sequence[Winner], engine: str, *, allow_predicted: bool, extra: Callable[[Winner], str]
) -> None:
    """Refuse rows that are too weak, or that the engine's kernel would not run as they are.

    Args:
        rows: Layer winners.
        engine: Whose kernel.
        allow_predicted: Let predicted rows in.
        extra: Says what else is wrong with a row, "" where nothing is.

    Raises:
        ExportRefused: naming the rows.
    """
    least = Evidence.PREDICTED if allow_predicted else Evidence.RECORDED
    weak = [row for row in rows if row.evidence < least]
    if weak:
        words = " and ".join(sorted({row.evidence.word for row in weak}))
        raise ExportRefused(
            f"rows are {words}, not measured: {_named(weak)}; measure them on the GPU, or say "
            "--allow-predicted to export predicted rows all the same"
        )
    for row in rows:
        why = extra(row) or next(filter(None, (_illegal(row, c) for c in configs_of(row))), "")
        if why:
            raise ExportRefused(
                f"winner of {place(row)} is not legal for {TITLES[engine]}'s kernel ({row.config}): {why}"
            )


def configs_of(row: Winner) -> list[LaunchConfig]:
    """Return the configs of the two GEMMs, in order; the layer's own for both where it says no parts."""
    parts = dict(row.parts)
    return [parts.get(unit.value, row.config) for unit in (Unit.GATE_UP, Unit.DOWN)]


def check_one_problem(name: str, rows: Sequence[Winner]) -> None:
    """Refuse rows that a file's name cannot tell apart.

    Raises:
        ExportRefused: naming two of them.
    """
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
        if configs_of(held) != configs_of(row):
            raise ExportRefused(
                f"two winners of {place(row)} have one file name {name!r}: {held.config} and "
                f"{row.config}; export one sweep with --sweep"
            )


def closed_ladder(rows: Sequence[Winner]) -> dict[int, list[LaunchConfig]]:
    """Return the configs of both GEMMs by token count: winners, and elsewhere what the engine has itself.

    The engine takes the nearest row however far it is, so each of its 18 batch sizes has one.
    """
    first = rows[0]
    kernel, gpu = kernel_of(first.kernel), resolve_target(f"sm_{first.silicon.arch}")
    configs = {
        tokens: [
            kernel.default(first.problem.at(tokens), unit, gpu)
            for unit in (Unit.GATE_UP, Unit.DOWN)
        ]
        for tokens in VLLM_LADDER
    }
    configs.update({row.problem.tokens: configs_of(row) for row in rows})
    return {tokens: configs[tokens] for tokens in sorted(configs)}


def _named(rows: Sequence[Winner]) -> str:
    more = len(rows) - _MOST_NAMED
    named = ", ".join(place(row) for row in rows[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named


def _illegal(row: Winner, config: LaunchConfig) -> str:
    """Say why the kernel would not run one config, or would run another in its place."""
    unknown = [name for name in config if name not in ENGINE_NAMES]
    if unknown:
        return f"its kernel takes no {unknown[0]!r}"
    missing = [name for name in ENGINE_NAMES if name not in list(config)]
    if missing:
        return f"it has no {missing[0]!r}"
    for name in ("block_m", "block_n", "block_k", "num_warps"):
        value = config.integer(name)
        if value < 1 or value & (value - 1):
            return f"{name} is {value}: must be a power of two"
    if row.problem.shape.weights == "fp8_block128" and BLOCK % config.integer("block_k"):
        return f"block_k is {config.integer('block_k')}: must divide the scale block of {BLOCK}"
    needs, limit = _shared_bytes(row, config), row.silicon.shared_limit_bytes
    if needs > limit:
        return f"it needs {needs} bytes of shared memory: must be at most {limit}"
    return ""


def _shared_bytes(row: Winner, config: LaunchConfig) -> int:
    """Return what the compiler said, else the least that num_stages - 1 buffers take."""
    if row.compile is not None and config == row.config:
        return row.compile.shared_bytes
    stage = (config.integer("block_m") + config.integer("block_n")) * config.integer("block_k")
    element = _ELEMENT_BYTES.get(row.problem.shape.weights, 2)
    return (config.integer("num_stages") - 1) * stage * element


def _whole(problem: Problem) -> str:
    shape = problem.shape
    return (
        f"{shape.model} ({problem.layout.name}, hidden {shape.hidden}, top_k {shape.top_k}, "
        f"{shape.experts} experts, routing {problem.routing.name})"
    )
