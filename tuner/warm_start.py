"""Where a search begins besides the cost model: imported tables, and winners of nearby problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..db import Evidence, Seed, Store, Winner
from ..db.seeds import fitted
from ..search_spaces import LaunchConfig, Problem, Space, Unit

# Starting points of a unit that come from elsewhere, over the whole ladder.
MOST = 12


def warm_starts(
    store: Store, kernel: str, problems: Sequence[Problem], unit: Unit, space: Space
) -> list[LaunchConfig]:
    """Return legal points that others found good, for each token count in turns the nearest first.

    They come from imported tables and from winners in the database, of any GPU and toolchain: what
    won there is worth a trial here, not more. Distance is in octaves of width, experts and tokens.

    Args:
        store: The database.
        kernel: A name of kernels/.
        problems: The ladder.
        unit: The GEMM.
        space: Its space on this GPU.
    """
    weights = problems[0].shape.weights
    known = [s for s in store.seeds_for(kernel, problems[0]) if s.is_for(unit)]
    # A sweep that was killed after it chose must not find its own winners when it goes on: it would
    # search otherwise than it would have.
    won = store.winners(kernel=kernel, units=(unit,), at_least=Evidence.RECORDED, ended=True)
    known += [_seed(winner) for winner in won if winner.problem.shape.weights == weights]
    legal = [seed for one in known if (seed := fitted(one, space)) is not None]
    lines = [sorted(legal, key=lambda s: (s.distance(p), s.config.key)) for p in problems]
    return list(dict.fromkeys(_in_turns(lines)))[:MOST]


def _in_turns(lines: Sequence[Sequence[Seed]]) -> Iterator[LaunchConfig]:
    for rank in zip(*lines, strict=True):
        yield from (seed.config for seed in rank)


def _seed(winner: Winner) -> Seed:
    problem = winner.problem
    return Seed(
        kernel=winner.kernel,
        config=winner.config,
        tokens=problem.tokens,
        experts=problem.local_experts,
        intermediate=problem.local_intermediate,
        weights=problem.shape.weights,
        unit=winner.unit.value,
        source="sweep",
        file=winner.sweep_id,
        device=winner.silicon.name,
        triton=winner.toolchain.triton,
        time_us=winner.time_us,
    )
