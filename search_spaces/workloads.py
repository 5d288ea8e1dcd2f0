"""From a file to workloads: what `rubin-tune workload` calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import InvalidInput
from .batcher import simulate_steps
from .serving import Serving, parse_ranks
from .steps import Workload, is_steps_file, load_steps
from .traces import read_trace

DEFAULT_LAYOUT = "dep4"
MOST_WORKLOADS = 64


def workloads_of(
    path: str | Path,
    *,
    layouts: Sequence[str] = (),
    rates: Sequence[float] = (),
    format: str = "auto",
    requests: int | None = None,
    settings: Mapping[str, object] | None = None,
) -> tuple[Workload, ...]:
    """Return the steps of a trace for every layout at every rate, or those of a steps file.

    Args:
        path: A trace, or what `save_steps` wrote.
        layouts: "single" or "depN"; none = dep4.
        rates: Factors by which arrivals are quickened; none = 1.
        format: The trace's format.
        requests: Take only the first ones.
        settings: Other settings of `Serving` by name.

    Raises:
        InvalidInput: a setting that cannot be meant, or settings for a steps file, which has its own.
        CorruptFile: a file that cannot be read.
    """
    if is_steps_file(path):
        if layouts or rates or settings or requests is not None:
            raise InvalidInput(
                f"{str(path)!r} holds steps that were batched already: leave out layout, rate, "
                f"requests and serving settings, or give a trace"
            )
        return (load_steps(path),)
    pairs = [(lay, rate) for lay in layouts or (DEFAULT_LAYOUT,) for rate in rates or (1.0,)]
    if len(pairs) > MOST_WORKLOADS:
        raise InvalidInput(
            f"{len(pairs)} pairs of layout and rate: must be at most {MOST_WORKLOADS}"
        )
    given = dict(settings or {})
    servings = [(Serving.from_dict({**given, "ranks": parse_ranks(lay)}), r) for lay, r in pairs]
    trace = read_trace(path, format)
    if requests is not None:
        trace = trace.first(requests)
    return tuple(simulate_steps(trace, serving, rate) for serving, rate in servings)
