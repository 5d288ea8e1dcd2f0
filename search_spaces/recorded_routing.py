"""Routing that an engine recorded: counts per layer and expert, read from its dumps.

    .pt         SGLang's recorder. Modes stat and stat_approx: `logical_count` [passes, layers,
                experts]. Modes per_pass and per_token: `records`, each with
                `global_physical_count` [layers, physical experts], and
                `last_physical_to_logical_map`.
    .npz, .npy  An array of one of the names below. A .npy file holds counts where it has one or
                two axes, routed_experts where it has three.
    .json       The same names as nested lists; {layer: [counts]}; [counts]; or the answer of
                vLLM's --enable-return-routed-experts, with `prompt_routed_experts` and
                `choices[].routed_experts`.

Names: `logical_count` or `counts` ([..., layers, experts] or [experts]); `topk_ids_of_layer`
[layers, tokens, top_k]; `routed_experts` and `prompt_routed_experts` [tokens, layers, top_k];
`topk_ids` [tokens, top_k]. -1 stands for no expert.

Nothing read here can run code: arrays are loaded without pickles, .pt files only as far as
torch.load(weights_only=True) allows.

Source: sgl-project/sglang python/sglang/srt/eplb/expert_distribution.py at 02295fe;
docs.vllm.ai v0.21.0 training/routed_experts_replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ._routing_dumps import SUFFIXES, read_dump
from .routing import MOST_COUNT, MOST_SKEW, Routing

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# As parse_routing joins layers: experts are mixed over the ranks by a fixed shuffle.
_SHUFFLE_SEED = 20261130
_FITTED = ("lognormal", "zipf")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewFit:
    """A distribution fitted to recorded counts.

    Attributes:
        routing: The fitted routing, without the order of the experts.
        distance: Total-variation distance between the recorded and the fitted shares, both sorted
            (0 = equal, 1 = disjoint).
        sampling_distance: The distance that chance alone leaves with so few routes, expected.
    """

    routing: Routing
    distance: float
    sampling_distance: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRouting:
    """Routes per layer and expert.

    Attributes:
        source: The file.
        layers: Names of the layers.
        counts: Routes [layers, experts].
        top_k: Experts a token where top-k ids were recorded, else 0.
    """

    source: str
    layers: tuple[str, ...]
    counts: Integers
    top_k: int = 0

    def __post_init__(self) -> None:
        """Refuse counts that describe no routing."""
        if self.counts.ndim != 2 or self.counts.shape[0] != len(self.layers):
            raise InvalidInput(
                f"recorded counts have shape {self.counts.shape}: must be [layers, experts]"
            )
        if (self.counts < 0).any() or not self.counts.any():
            raise InvalidInput(f"recorded counts of {self.source!r} are negative or all zero")

    @property
    def experts(self) -> int:
        """Experts of a layer."""
        return int(self.counts.shape[1])

    def layer(self, name: str) -> RecordedRouting:
        """Return one layer alone.

        Raises:
            InvalidInput: no such layer.
        """
        if name not in self.layers:
            known = ", ".join(self.layers[:8])
            raise InvalidInput(f"no layer {name!r} in {self.source!r} (layers: {known})")
        at = self.layers.index(name)
        return RecordedRouting(
            source=self.source, layers=(name,), counts=self.counts[at : at + 1], top_k=self.top_k
        )

    def joined(self) -> Integers:
        """Return counts [experts] that keep the skew of the layers.

        Hot experts stand at other places in each layer, so adding expert by expert would level
        them: layers are sorted, added rank by rank, and shuffled by a fixed seed.
        """
        if len(self.layers) == 1:
            only: Integers = self.counts[0]
            return only
        totals = np.sort(self.counts, axis=1)[:, ::-1].sum(axis=0)
        shuffled: Integers = np.random.default_rng(_SHUFFLE_SEED).permutation(totals)
        return shuffled

    def as_routing(self) -> Routing:
        """Return the counts as a routing: part of a problem, and so of its key."""
        return Routing(kind="recorded", counts=tuple(self.joined().tolist()))

    def resampled(self, routes: int, seed: int) -> Routing:
        """Return a routing of newly drawn counts with the recorded shares.

        Args:
            routes: Routes to draw.
            seed: The same seed gives the same counts.

        Raises:
            InvalidInput: no routes, or too many.
        """
        if not 1 <= routes < MOST_COUNT:
            raise InvalidInput(f"routes is {routes!r}: must be from 1 to 2^53")
        counts = self.joined().astype(np.float64)
        drawn = np.random.default_rng(seed).multinomial(routes, counts / counts.sum())
        return Routing(kind="recorded", counts=tuple(drawn.tolist()))

    def fit(self, kind: str | None = None) -> SkewFit:
        """Return the lognormal or Zipf routing nearest to the recorded shares.

        The skew is the one whose shares vary as much between experts as the recorded ones do beyond
        chance: the squared coefficient of variation less its sampling part. (Few routes look skewed
        even when they are not: 15 an expert give a Gini of 0.15 by chance.)

        Args:
            kind: "lognormal", "zipf", or None for the nearer.

        Raises:
            InvalidInput: another kind.
        """
        if kind is not None and kind not in _FITTED:
            raise InvalidInput(f"fitted routing is {kind!r}: must be one of {', '.join(_FITTED)}")
        kinds = _FITTED if kind is None else (kind,)
        return min((self._fit(k) for k in kinds), key=lambda found: found.distance)

    def _fit(self, kind: str) -> SkewFit:
        shares = self._mean_sorted_shares()
        wanted = self._variation()
        low, high = 0.0, MOST_SKEW
        for _ in range(60):
            middle = (low + high) / 2
            if _squared_variation(self._expected_shares(kind, middle)) < wanted:
                low = middle
            else:
                high = middle
        skew = round(low, 4)
        model = self._expected_shares(kind, skew)
        drawn = [
            np.random.default_rng(seed).multinomial(int(self.counts.sum(axis=1).mean()), model)
            for seed in range(8)
        ]
        return SkewFit(
            routing=Routing(kind=kind, skew=skew),
            distance=_distance(shares, model),
            sampling_distance=float(np.mean([_distance(d / d.sum(), model) for d in drawn])),
        )

    def _expected_shares(self, kind: str, skew: float) -> Floats:
        routing = Routing(kind=kind, skew=skew)
        if self.top_k:
            return routing.inclusion(self.experts, self.top_k) / self.top_k
        return routing.probabilities(self.experts)

    def _mean_sorted_shares(self) -> Floats:
        busy = self.counts[self.counts.any(axis=1)]
        shares = np.sort(busy, axis=1) / busy.sum(axis=1, keepdims=True)
        mean: Floats = shares.mean(axis=0)
        return mean

    def _variation(self) -> float:
        """Return the squared coefficient of variation beyond chance, mean of the busy layers."""
        busy = self.counts[self.counts.any(axis=1)].astype(np.float64)
        mean = busy.mean(axis=1)
        # A count is binomial over the tokens (an expert is in a token once) where top_k is known,
        # else nearly Poisson: its sampling variance is c (1 - c / tokens).
        tokens = busy.sum(axis=1) / self.top_k if self.top_k else np.full(len(busy), np.inf)
        chance = (busy * (1 - busy / tokens[:, None])).mean(axis=1)
        beyond = (busy.var(axis=1) - chance) / mean**2
        return max(0.0, float(beyond.mean()))


def _squared_variation(shares: Floats) -> float:
    return float(shares.var() / shares.mean() ** 2)


def _distance(one: Floats, other: Floats) -> float:
    return float(np.abs(np.sort(one) - np.sort(other)).sum() / 2)


def read_recorded_routing(path: str | Path, experts: int = 0) -> RecordedRouting:
    """Read an engine's dump (see the module's docstring).

    Args:
        path: A .npz, .npy, .json or .pt file.
        experts: Experts of a layer, where ids alone would leave the last idle ones out (0 = the
            highest id that occurs, plus one).

    Raises:
        InvalidInput: no such file, or one of another kind.
        CorruptFile: no recorded routing in it, or a .pt file that could run code.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"recorded routing is {str(path)!r}: there is no such file")
    if file.suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"recorded routing is {str(path)!r}: must end in {', '.join(SUFFIXES)}")
    layers, counts, top_k = read_dump(file, experts)
    return RecordedRouting(source=file.name, layers=layers, counts=counts, top_k=top_k)
