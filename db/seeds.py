"""Seeds: configs that others found good, with where they come from. They start a search and are
what a winner is compared with; they are never winners.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from ..search_spaces import LaunchConfig, Problem, Space, Unit, Value
from ..search_spaces.space import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One row of an engine's table: a token count, and keys and values as the file has them."""

    tokens: int
    values: tuple[tuple[str, Value], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTable:
    """A table that an engine ships or its users tuned.

    Attributes:
        engine: "vllm" or "sglang".
        file: Its name, with SGLang's folder.
        triton: Version it was tuned with, "" where unsaid.
        rows: In the file's order, which settles ties between token counts.
        experts: Experts of one rank; 0 where its name does not say.
        intermediate: Width of one rank.
        device: The GPU as the engine spells it.
        weights: Our name of the weight format.
        unit: "" for both GEMMs, or the one it is of.
    """

    engine: str
    file: str
    triton: str
    rows: tuple[EngineRow, ...]
    experts: int = 0
    intermediate: int = 0
    device: str = ""
    weights: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A config that somebody found good for a kernel, and for what.

    Attributes:
        kernel: A name of kernels/.
        config: The launch, in our spelling; as given, or fitted to a space.
        tokens: Tokens over all ranks that it was found for.
        experts: Experts of one rank.
        intermediate: Width of one rank.
        weights: Weight format.
        unit: "" for both GEMMs.
        source: "vllm", "sglang", "kernel_tuner" or "ktt".
        file: Name of the file it came from.
        device: The GPU as the file spells it, "" where unsaid.
        triton: Version it was found with, "" where unsaid.
        time_us: The file's own time, None where it has none. Not comparable with ours.
        changed: Parameters that were moved to the nearest value of a space.
    """

    kernel: str
    config: LaunchConfig
    tokens: int
    experts: int
    intermediate: int
    weights: str
    source: str
    file: str
    unit: str = ""
    device: str = ""
    triton: str = ""
    time_us: float | None = None
    changed: tuple[str, ...] = ()

    def is_of(self, problem: Problem) -> bool:
        """Whether the file's name means the problem's layer, token count aside."""
        own = self.experts, self.intermediate, self.weights
        other = problem.local_experts, problem.local_intermediate, problem.shape.weights
        return own == other

    def is_for(self, unit: Unit) -> bool:
        """Whether it was found for that GEMM."""
        return self.unit in ("", unit.value)

    def distance(self, problem: Problem) -> float:
        """Octaves between what it was found for and a problem: width, experts and tokens."""
        pairs = (
            (self.experts, problem.local_experts),
            (self.intermediate, problem.local_intermediate),
            (self.tokens, problem.tokens),
        )
        return sum(abs(log2(own / other)) for own, other in pairs)

    def moved_to(self, config: LaunchConfig) -> Seed:
        """Return the seed with another config, the parameters that differ named in `changed`."""
        moved = [name for name, value in config.items if self.config.get(name, "") != value]
        changed = tuple(dict.fromkeys([*self.changed, *moved]))
        return replace(self, config=config, changed=changed)

    def __str__(self) -> str:
        """Say where it comes from."""
        moved = f", {' and '.join(self.changed)} moved to a value we tune" if self.changed else ""
        return f"{self.source} table {self.file}, {self.tokens} tokens{moved}"


def fitted(seed: Seed, space: Space) -> Seed | None:
    """Return the seed as a legal, canonical point of a space, or None where there is none near.

    A number that is no value of its axis is moved to the nearest by ratio; other values are not.
    """
    values: dict[str, Value] = {}
    changed = []
    for parameter in space.parameters:
        if parameter.name not in list(seed.config):
            return None
        given = seed.config[parameter.name]
        value = _nearest(parameter, given)
        if value is None:
            return None
        values[parameter.name] = value
        if value != given:
            changed.append(parameter.name)
    config = LaunchConfig.of(values)
    if space.why_not(config) is not None:
        return None
    return replace(seed, config=space.canonical(config), changed=tuple(changed))


def _nearest(parameter: Parameter, given: Value) -> Value | None:
    if any(type(given) is type(value) and given == value for value in parameter.values):
        return given
    if not parameter.ordered or not isinstance(given, int) or isinstance(given, bool) or given < 1:
        return None
    counts = [int(value) for value in parameter.values if int(value) > 0]
    return min(counts, key=lambda value: (abs(log2(value / given)), value), default=None)
