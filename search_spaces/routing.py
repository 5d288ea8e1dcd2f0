"""How tokens fall on experts.

A routing gives each expert its expected share of the routes. A token takes top_k distinct experts,
so no expert can be in more than every token: shares above 1/top_k are cut, and the rest grows.
`sample` draws by systematic sampling in a fresh random order for each token, which has exactly the
inclusion probabilities q_e = top_k * share_e; the formulas below therefore hold without fitting
(Gumbel top-k on log shares would flatten the shares, and recorded counts would not come back).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptFile, InvalidInput

if TYPE_CHECKING:  # problem.py imports this module
    from .problem import Problem

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

KINDS = ("balanced", "uniform", "lognormal", "zipf", "recorded")
# lognormal 0.5 has Gini 0.28 and max/mean 3.65 over 256 experts; 4.9 M recorded DeepSeek-V3 routes
# have 0.288 and 3.18. Source: facts, moe-kernels 5.6.
DEFAULT = "lognormal:0.5"
MOST_SKEW = 8.0
MOST_FILE_BYTES = 16 << 20
MOST_COUNT = 1 << 53
# Experts are shuffled by a fixed seed, so that heavy and light ones are mixed over the ranks.
_SHUFFLE_SEED = 20261130
_CHUNK = 4096
_EXPECTED = (
    "a JSON list of counts (one an expert), an object {layer: [counts]}, or a CSV of one column"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """A distribution of routes over experts.

    Attributes:
        kind: "balanced" (round robin, no chance), "uniform", "lognormal", "zipf" or "recorded".
        skew: Sigma of the lognormal or exponent of the Zipf law.
        counts: Recorded routes of each expert, in expert order.
    """

    kind: str = "lognormal"
    skew: float = 0.0
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse kinds, skews and counts that describe no distribution."""
        if self.kind not in KINDS:
            raise InvalidInput(f"routing is {self.kind!r}: must be one of {', '.join(KINDS)}")
        if not (math.isfinite(self.skew) and 0 <= self.skew <= MOST_SKEW):
            raise InvalidInput(
                f"skew of routing {self.kind!r} is {self.skew!r}: must be 0 to {MOST_SKEW:g}"
            )
        if self.kind not in ("lognormal", "zipf") and self.skew:
            raise InvalidInput(f"routing {self.kind!r} has skew {self.skew!r}: must have none")
        if (self.kind == "recorded") != bool(self.counts):
            raise InvalidInput(
                f"routing {self.kind!r} has {len(self.counts)} counts: "
                f"must have {'some' if self.kind == 'recorded' else 'none'}"
            )
        why = _wrong_counts(self.counts) if self.counts else ""
        if why:
            raise InvalidInput(f"recorded counts: {why}")

    @property
    def name(self) -> str:
        """The spelling that users type ("lognormal:0.5"), or the counts' hash."""
        if self.kind == "recorded":
            text = ",".join(map(str, self.counts))
            return f"recorded:{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        return f"{self.kind}:{self.skew:g}" if self.kind in ("lognormal", "zipf") else self.kind

    def as_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return {"kind": self.kind, "skew": self.skew, "counts": list(self.counts)}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Routing:
        """Make one from what `as_dict` returned."""
        counts = values.get("counts", ())
        if not isinstance(counts, list | tuple):
            raise InvalidInput(f"routing counts are {counts!r}: must be a list")
        skew = values.get("skew", 0.0)
        if not isinstance(skew, int | float):
            raise InvalidInput(f"routing skew is {skew!r}: must be a number")
        return cls(kind=str(values.get("kind")), skew=float(skew), counts=tuple(counts))

    def check(self, experts: int, top_k: int) -> None:
        """Refuse a layer that the recorded counts are not of.

        Raises:
            InvalidInput: another number of experts, or fewer busy ones than a token takes.
        """
        if not self.counts:
            return
        if len(self.counts) != experts:
            raise InvalidInput(
                f"recorded counts are of {len(self.counts)} experts: must be {experts}"
            )
        busy = sum(1 for count in self.counts if count)
        if busy < top_k:
            raise InvalidInput(
                f"recorded counts have {busy} busy experts: must be at least top_k = {top_k}"
            )

    def probabilities(self, experts: int) -> Floats:
        """Return each expert's expected share of the routes [experts], summing to 1."""
        if self.kind == "recorded":
            self.check(experts, 1)
            weights = np.array(self.counts, dtype=np.float64)
        elif self.kind == "lognormal":
            normal = NormalDist(sigma=self.skew) if self.skew else None
            quantiles = [(e + 0.5) / experts for e in range(experts)]
            weights = np.exp([normal.inv_cdf(q) if normal else 0.0 for q in quantiles])
        elif self.kind == "zipf":
            weights = np.arange(1, experts + 1, dtype=np.float64) ** -self.skew
        else:
            weights = np.ones(experts)
        if self.kind in ("lognormal", "zipf"):
            weights = np.random.default_rng(_SHUFFLE_SEED).permutation(weights)
        shares: Floats = weights / weights.sum()
        return shares

    def inclusion(self, experts: int, top_k: int) -> Floats:
        """Return the probability q_e that a token takes expert e [experts], summing to top_k.

        Shares above 1/top_k are cut to q = 1 and the others scaled up, until all fit.
        """
        self.check(experts, top_k)
        shares = self.probabilities(experts)
        full = np.zeros(experts, dtype=bool)
        q = shares * top_k
        while np.any(q > 1.0):
            full |= q > 1.0
            rest = shares[~full].sum()
            free = top_k - int(full.sum())
            q = np.where(full, 1.0, shares * (free / rest if rest else 0.0))
        return np.minimum(q, 1.0)

    def sample(self, rng: np.random.Generator, tokens: int, experts: int, top_k: int) -> Integers:
        """Draw the experts of each token [tokens, top_k], distinct within a token."""
        if self.kind == "balanced":
            return _round_robin(tokens, experts, top_k)
        q = self.inclusion(experts, top_k)
        parts = [
            _systematic(rng, q, min(_CHUNK, tokens - start), top_k)
            for start in range(0, tokens, _CHUNK)
        ]
        return np.concatenate(parts)


def _round_robin(tokens: int, experts: int, top_k: int) -> Integers:
    """Deal experts in turn, a token's experts spread over the ranks."""
    step = -(-experts // top_k)
    while math.gcd(step, experts) > 1:
        step += 1
    turns = np.arange(tokens * top_k, dtype=np.int64) % experts
    return (turns * step % experts).reshape(tokens, top_k)


def _systematic(rng: np.random.Generator, q: Floats, tokens: int, top_k: int) -> Integers:
    """Lay the q_e end to end in random order and take one expert every 1, from a random start."""
    order = np.argsort(rng.random((tokens, len(q))), axis=1)
    ends = np.cumsum(q[order], axis=1)
    # Exactly top_k steps must fit, whatever the rounding of the sum.
    ends *= top_k / ends[:, -1:]
    ends[:, -1] = top_k
    steps = np.ceil(ends - rng.random((tokens, 1)))
    taken = np.diff(steps, axis=1, prepend=0.0) > 0
    short = taken.sum(axis=1) < top_k
    if short.any():  # rounding put two steps into one expert with q = 1: take its neighbour too
        for row in np.flatnonzero(short):
            spare = np.flatnonzero(~taken[row] & (q[order[row]] > 0))
            taken[row, spare[: top_k - int(taken[row].sum())]] = True
    return order[taken].reshape(tokens, top_k)


def expected_rows(problem: Problem) -> float:
    """Return the expected routes that land on the first rank's experts."""
    shape = problem.shape
    if problem.routing.kind == "balanced":
        return float(_balanced_counts(problem).sum())
    q = problem.routing.inclusion(shape.experts, shape.top_k)
    return float(problem.tokens * q[: problem.local_experts].sum())


def expected_active_experts(problem: Problem) -> float:
    """Return how many of the first rank's experts get at least one row, expected.

    A = sum_e 1 - (1 - q_e)^T: tokens choose independently, q_e is exact for `sample`.
    Source: facts, moe-kernels 5.2.
    """
    shape = problem.shape
    if problem.routing.kind == "balanced":
        return float(np.count_nonzero(_balanced_counts(problem)))
    q = problem.routing.inclusion(shape.experts, shape.top_k)[: problem.local_experts]
    return float(np.sum(1.0 - (1.0 - q) ** problem.tokens))


def rows_per_expert(problem: Problem, seed: int) -> Integers:
    """Draw one step's rows of each of the first rank's experts [local_experts]."""
    shape = problem.shape
    if problem.routing.kind == "balanced":
        return _balanced_counts(problem)
    rng = np.random.default_rng(seed)
    chosen = problem.routing.sample(rng, problem.tokens, shape.experts, shape.top_k)
    return np.bincount(chosen.ravel(), minlength=shape.experts)[: problem.local_experts]


def _balanced_counts(problem: Problem) -> Integers:
    shape = problem.shape
    rounds, rest = divmod(problem.tokens * shape.top_k, shape.experts)
    # The experts after the last whole round, wherever in the order they stand.
    turns = _round_robin(shape.experts, shape.experts, shape.top_k).ravel()[:rest]
    counts = rounds + np.bincount(turns, minlength=shape.experts)
    return counts[: problem.local_experts]


def parse_routing(text: str) -> Routing:
    """Read balanced, uniform, lognormal:S, zipf:A, or a file of recorded counts.

    A file holds JSON or CSV counts, or is an engine's dump (recorded_routing.py says which).
    FILE#LAYER takes one layer of a {layer: [counts]} file or of a dump. Without #LAYER the layers are
    sorted, added rank by rank (which keeps their skew) and shuffled.

    Raises:
        InvalidInput: neither a routing nor a file.
        CorruptFile: a file that holds no counts.
    """
    word = text.strip()
    found = re.fullmatch(r"(balanced|uniform|lognormal|zipf)(?::(.*))?", word.lower())
    if found is None:
        return _from_file(word)
    kind, skew = found[1], found[2]
    if kind in ("balanced", "uniform"):
        if skew is not None:
            raise InvalidInput(f"routing is {text!r}: {kind} takes no number")
        return Routing(kind=kind)
    if skew is None:
        raise InvalidInput(f"routing is {text!r}: must name its skew, as {kind}:0.5")
    try:
        return Routing(kind=kind, skew=float(skew))
    except ValueError as error:
        raise InvalidInput(f"routing is {text!r}: {skew!r} is not a number") from error


def _from_file(text: str) -> Routing:
    path, layer = Path(text), ""
    if not path.exists() and "#" in text:
        before, _, layer = text.rpartition("#")
        path = Path(before)
    if not path.is_file():
        raise InvalidInput(
            f"routing is {text!r}: must be balanced, uniform, lognormal:S, zipf:A "
            f"or a file of counts, and there is no such file"
        )
    return Routing(kind="recorded", counts=_read_counts(path, layer))


def _read_counts(path: Path, layer: str) -> tuple[int, ...]:
    if path.suffix.lower() in (".npz", ".npy", ".pt", ".pth"):
        return _read_dump(path, layer)
    content = _read_text(path).strip()
    try:
        found: object = json.loads(content) if content[:1] in ("[", "{") else _column(content)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, f"{error}", _EXPECTED) from error
    layers: dict[str, object] = found if isinstance(found, dict) else {"": found}
    if isinstance(found, dict) and layers and not any(map(_is_count_list, layers.values())):
        return _read_dump(path, layer)
    if layer:
        if layer not in layers:
            known = ", ".join(list(layers)[:8]) if isinstance(found, dict) else "none"
            raise CorruptFile(path, f"no layer {layer!r} (layers: {known})", _EXPECTED)
        layers = {layer: layers[layer]}
    good = []
    for name, counts in layers.items():
        why = _wrong_counts(counts)
        if why or not isinstance(counts, list):
            raise CorruptFile(path, f"layer {name!r:.40}: {why}" if name else why, _EXPECTED)
        good.append(counts)
    return _joined(path, good)


def _is_count_list(value: object) -> bool:
    return isinstance(value, list) and (not value or not isinstance(value[0], list | dict))


def _read_dump(path: Path, layer: str) -> tuple[int, ...]:
    """Read what an engine's recorder wrote."""
    from .recorded_routing import read_recorded_routing  # it imports this module

    found = read_recorded_routing(path)
    return (found.layer(layer) if layer else found).as_routing().counts


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise CorruptFile(path, f"more than {MOST_FILE_BYTES >> 20} MiB", _EXPECTED)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFile(path, str(error), _EXPECTED) from error


def _column(content: str) -> list[int]:
    lines = [line.strip() for line in content.splitlines() if line.strip()]
    if lines and not re.fullmatch(r"-?[0-9.]+", lines[0]) and len(lines) > 1:
        lines = lines[1:]  # a heading
    return [int(line) for line in lines]


def _wrong_counts(counts: object) -> str:
    """Say what is wrong with a list of counts, or nothing."""
    if not isinstance(counts, list | tuple):
        return f"counts are {type(counts).__name__}, not a list"
    for place, count in enumerate(counts):
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < MOST_COUNT:
            return f"count {place} is {count!r:.40}, not a whole number from 0 to 2^53"
    return "" if any(counts) else "no expert has a route"


def _joined(path: Path, layers: list[list[int]]) -> tuple[int, ...]:
    if not layers:
        raise CorruptFile(path, "no layer in it", _EXPECTED)
    if len({len(layer) for layer in layers}) > 1:
        raise CorruptFile(path, "its layers have different numbers of experts", _EXPECTED)
    if len(layers) == 1:
        return tuple(layers[0])
    ranked = [sorted(layer, reverse=True) for layer in layers]
    totals = [sum(column) for column in zip(*ranked, strict=True)]
    shuffled = np.random.default_rng(_SHUFFLE_SEED).permutation(len(totals))
    return tuple(totals[place] for place in shuffled)
