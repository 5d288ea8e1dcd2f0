"""Kernel Tuner's strategies on the same tables, through its own simulation mode.

Source: kernel_tuner 1.5, `interface.tune_kernel(simulation_mode=True, cache=...)`. Values of parameters go as
their places on the axis, which any strategy understands; its budget counts distinct points, failures
included, as ours does.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from rubin_tune.errors import InvalidInput, UnknownName
from rubin_tune.search_spaces import LaunchConfig

from ._search_tables import Table


def kernel_tuner_order(table: Table, strategy: str, seed: int, count: int) -> list[LaunchConfig]:
    """Return the points that a strategy evaluates, in order.

    Raises:
        InvalidInput: kernel_tuner is not installed.
        UnknownName: it has no such strategy.
    """
    try:
        from constraint import FunctionConstraint
        from kernel_tuner import tune_kernel
        from kernel_tuner.interface import strategy_map
    except ImportError:
        raise InvalidInput("kt: samplers need Kernel Tuner: pip install kernel-tuner") from None
    if strategy not in strategy_map:
        raise UnknownName("Kernel Tuner strategy", strategy, sorted(strategy_map))
    axes = {p.name: list(range(len(p.values))) for p in table.space.parameters}
    places = {_places(table, config): config for config in table.times}
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        path = Path(folder) / "cache.json"
        path.write_text(json.dumps(_cache(table, axes)))
        with warnings.catch_warnings():
            # it warns of each point that the recording does not hold
            warnings.simplefilter("ignore")
            results, _ = tune_kernel(
                "recorded", "", 1, [], axes,
                restrictions=[FunctionConstraint(lambda *point: point in places)],
                strategy=strategy, strategy_options={"max_fevals": count}, seed=seed,
                cache=str(path), simulation_mode=True, quiet=True, lang="CUDA",
            )  # fmt: skip
    found = [places[tuple(int(result[name]) for name in axes)] for result in results]
    return list(dict.fromkeys(found))[:count]


def _places(table: Table, config: LaunchConfig) -> tuple[int, ...]:
    return tuple(p.values.index(config[p.name]) for p in table.space.parameters)


def _cache(table: Table, axes: Mapping[str, list[int]]) -> dict[str, object]:
    rows = {}
    for config, time in table.times.items():
        places = _places(table, config)
        row: dict[str, object] = dict(zip(axes, places, strict=True))
        row["time"] = "RuntimeFailedConfig" if time is None else time / 1e3
        row |= {"compile_time": 0, "verification_time": 0, "benchmark_time": 0}
        rows[",".join(map(str, places))] = row
    return {
        "device_name": "recorded", "kernel_name": "recorded", "problem_size": 1,
        "tune_params_keys": list(axes), "tune_params": dict(axes), "objective": "time",
        "cache": rows,
    }  # fmt: skip
