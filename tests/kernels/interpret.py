"""Runs megamoe in Triton's interpreter: a JSON case a line in, a JSON answer a line out.

`interpret.py cuda` compiles and runs on the GPU instead, for the commands that can.

A process of its own, because TRITON_INTERPRET must be set before triton is imported and changes
every kernel of the process. Started by conftest.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "0" if "cuda" in sys.argv else "1"

import torch

from rubin_tune.kernels import _megamoe_plan as planning
from rubin_tune.kernels import _megamoe_verify as verifying
from rubin_tune.kernels._megamoe_formats import dequantise_rows, quantise_rows
from rubin_tune.kernels._megamoe_inputs import draw, x_group
from rubin_tune.kernels._megamoe_plan import plan_glue, plan_layer, plan_unit
from rubin_tune.kernels.megamoe import PROVIDES
from rubin_tune.search_spaces import (
    GEMMS,
    Activation,
    LaunchConfig,
    Layout,
    MoEShape,
    Problem,
    Routing,
    Unit,
)

DEVICE = "cuda" if "cuda" in sys.argv else "cpu"


def problem_of(case: dict[str, Any]) -> Problem:
    """Read the problem of a case."""
    shape = dict(case["shape"])
    shape["activation"] = Activation(**shape.get("activation", {}))
    return Problem(
        shape=MoEShape(model="test", **shape),
        layout=Layout(**case.get("layout", {})),
        routing=Routing(kind="uniform"),
        tokens=case["tokens"],
        capacity=case.get("capacity", 0),
    )


def verify(case: dict[str, Any]) -> dict[str, Any]:
    """Return error and tolerance of one unit."""
    problem, unit = problem_of(case), Unit(case["unit"])
    config = LaunchConfig.of(case["config"])
    error = PROVIDES.verify(problem, unit, config, device=DEVICE, seed=case.get("seed", 0))
    why = getattr(error, "why", "")
    return {"error": error, "tolerance": PROVIDES.tolerance(problem, unit), "why": why}


def wrong(case: dict[str, Any]) -> dict[str, Any]:
    """Verify with one source file of the kernels changed in one place."""
    with _changed(case["file"], case["old"], case["new"]):
        return verify(case)


@contextmanager
def _changed(name: str, old: str, new: str) -> Iterator[None]:
    """Let plans use a private copy of a source file in which `old`, found once, is `new`."""
    source = Path(planning.__file__).with_name(name).read_text()
    if source.count(old) != 1 or old == new:
        raise ValueError(f"{name} holds {old!r} {source.count(old)} times: must be once")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(source.replace(old, new))
        private = f"rubin_tune.kernels._wrong_{path.stem}"
        spec = importlib.util.spec_from_file_location(private, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[private] = module
        try:
            spec.loader.exec_module(module)
            # A plan takes its kernels from its own namespace, verification its plans from its own.
            user = verifying if name == "_megamoe_plan.py" else planning
            names = [
                n for n in vars(user) if vars(module).get(n) is not None and _is_of(module, n)
            ]
            kept = {n: getattr(user, n) for n in names}
            vars(user).update({n: getattr(module, n) for n in names})
            try:
                yield
            finally:
                vars(user).update(kept)
        finally:
            del sys.modules[private]


def _is_of(module: Any, name: str) -> bool:
    """Say whether a module defines a function or kernel itself."""
    value = getattr(module, name)
    value = getattr(value, "fn", value)
    return getattr(value, "__module__", "") == module.__name__ and not isinstance(value, type)


class Spoilt:
    """The GEMM, spoilt afterwards in one way."""

    __name__ = "grouped_gemm"

    def __init__(self, fn: Any, how: str) -> None:
        self.fn, self.how = fn, how
        self.arg_names = fn.arg_names

    def __getitem__(self, grid: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> None:
            if self.how != "does nothing":
                self.fn[grid](*args, **kwargs)
            out, rows = args[6], int(args[9][-1])
            if self.how == "writes a dead row":
                out[rows] = 0.0
            if self.how == "skips a row":
                out.view(torch.uint8)[rows - 1] = 0xFF
            if self.how == "swaps two columns":
                out[:, [0, 1]] = out[:, [1, 0]]

        return run


def sabotage(case: dict[str, Any]) -> dict[str, Any]:
    """Return the error that verification finds in a GEMM that was spoilt in one way."""
    honest = verifying.plan_unit

    def spoilt(*args: Any) -> Any:
        planned = honest(*args)
        launch = planned.launch
        return replace(planned, launch=replace(launch, fn=Spoilt(launch.fn, case["how"])))

    verifying.plan_unit = spoilt
    try:
        return verify(case)
    finally:
        verifying.plan_unit = honest


def glue(case: dict[str, Any]) -> dict[str, Any]:
    """Run route and quantise; say what differs from the same made with torch."""
    problem = problem_of(case)
    config = LaunchConfig.of(case["config"])
    ids = case.get("ids")
    inputs = PROVIDES.make_inputs(problem, device="cpu", seed=0)
    if ids is not None:
        inputs = draw(
            problem, inputs.weights, device="cpu", seed=0, topk_ids=torch.tensor(ids).numpy()
        )
    planning.FEW_ROUTES = 0 if case.get("counted") else 2048
    *routing, quantise, _ = plan_glue(problem, dict.fromkeys(GEMMS, config), inputs)
    for tensor in (*_routing_buffers(routing), *quantise.args[1:3]):
        if tensor is not None:
            tensor.view(torch.uint8).fill_(0xFF)
    for launch in (*routing, quantise):
        launch.run()
    made = _routing_buffers(routing)
    return {"differences": list(_glue_differences(problem, config, inputs, made, quantise))}


def _routing_buffers(routing: Any) -> tuple[Any, ...]:
    """Return routes, inverse, offsets and the two schedules, whichever launches write them."""
    if len(routing) == 1:
        return tuple(routing[0].args[2:11])
    _, experts, places = routing
    return (*places.args[3:5], *experts.args[2:9])


def _glue_differences(problem: Problem, config: Any, inputs: Any, made: Any, quantise: Any) -> Any:
    routes, inverse, offsets, expert, row, tiles = made[:6]
    expected = inputs.routed
    rows = int(expected.offsets[-1])
    live = int(inputs.live_tokens[0])
    schedule = inputs.schedule(config.integer("block_m"))
    count = int(schedule.live_tiles[0])
    pairs = {
        "offsets": (offsets, expected.offsets),
        "routes": (routes[:rows], expected.routes[:rows]),
        "inverse": (inverse[:live], expected.inverse[:live]),
        "tiles": (tiles, schedule.live_tiles),
        "tile experts": (expert[:count], schedule.tile_expert[:count]),
        "tile rows": (row[:count], schedule.tile_row[:count]),
        "dead routes": (routes[rows:], torch.full_like(routes[rows:], -1)),
        "dead tiles": (expert[count:], torch.full_like(expert[count:], -1)),
    }
    yield from (name for name, (got, want) in pairs.items() if not torch.equal(got, want))
    permuted = config["load"] == "tma"
    wrote = rows if permuted else live
    data, scale = quantise.args[1:3]
    want = inputs.rows(permuted)
    group = x_group(problem)
    got_rows = dequantise_rows(data[:wrote], None if scale is None else scale[:wrote], group)
    want_scale = None if want.scale is None else want.scale[:wrote]
    gap = (got_rows - dequantise_rows(want.data[:wrote], want_scale, group)).abs()
    if wrote and float(gap.max()) > 0.07 * float(got_rows.abs().max()):
        yield "quantised rows"
    if not bool((data[wrote:].view(torch.uint8) == 0xFF).all()):
        yield "dead rows"


def tickets(case: dict[str, Any]) -> dict[str, Any]:
    """Launch a split GEMM twice; return its counters and whether both launches wrote the same."""
    problem = problem_of(case)
    inputs = PROVIDES.make_inputs(problem, device="cpu", seed=0)
    planned = plan_unit(problem, Unit(case["unit"]), LaunchConfig.of(case["config"]), inputs)
    rows = int(inputs.routed.offsets[-1])
    planned.launch.run()
    first = planned.out.data[:rows].clone()
    planned.out.data.zero_()
    planned.launch.run()
    return {
        "counters": planned.launch.args[14].tolist(),
        "same": torch.equal(first, planned.out.data[:rows]),
    }


def far(case: dict[str, Any]) -> dict[str, Any]:
    """Multiply with the last of so many experts that its weights start past 2^31 elements.

    Memory of the other experts is never touched, so it takes no room.
    """
    problem = problem_of(case)
    unit = Unit.GATE_UP
    n, k = problem.gemm(unit)
    small = PROVIDES.make_inputs(
        replace(problem, shape=replace(problem.shape, experts=1)), device="cpu", seed=0
    )
    weights = small.weights[unit]
    wide = torch.empty((problem.local_experts, n, k), dtype=torch.bfloat16)
    wide[-1] = weights.data[0]
    tensors = {unit: replace(weights, data=wide)}
    ids = torch.full((problem.tokens, 1), problem.local_experts - 1).numpy()
    inputs = draw(problem, tensors, device="cpu", seed=0, topk_ids=ids)
    config = LaunchConfig.of(case["config"])
    planned = plan_unit(problem, unit, config, inputs)
    planned.launch.run()
    near = draw(
        replace(problem, shape=replace(problem.shape, experts=1)),
        {unit: weights}, device="cpu", seed=0, topk_ids=ids * 0,
    )  # fmt: skip
    expected = plan_unit(near.problem, unit, config, near)
    expected.launch.run()
    return {"same": torch.equal(planned.out.data, expected.out.data), "elements": wide.numel()}


def rounding(case: dict[str, Any]) -> dict[str, Any]:
    """Quantise x with the kernel; return the share of bytes that differ from torch's."""
    problem = problem_of(case)
    inputs = PROVIDES.make_inputs(problem, device="cpu", seed=3)
    config = LaunchConfig.of(case["config"])
    launch = plan_glue(problem, dict.fromkeys(GEMMS, config), inputs)[-2]
    launch.run()
    want = quantise_rows(inputs.x, problem.activations, x_group(problem))
    got = launch.args[1].view(torch.uint8)
    return {"differ": float((got != want.data.view(torch.uint8)).float().mean())}


def layer_twice(case: dict[str, Any]) -> dict[str, Any]:
    """Run a layer, then another routing through the same launches; compare with a fresh plan."""
    problem = problem_of(case)
    configs = dict.fromkeys(GEMMS, LaunchConfig.of(case["config"]))
    inputs = PROVIDES.make_inputs(problem, device="cpu", seed=0)
    planned = plan_layer(problem, configs, inputs)
    for launch in planned.launches:
        launch.run()
    other = PROVIDES.rotate(inputs, replace(problem, tokens=case["then"]), seed=9)
    for mine, new in (
        (inputs.x, other.x),
        (inputs.topk_ids, other.topk_ids),
        (inputs.topk_weights, other.topk_weights),
        (inputs.live_tokens, other.live_tokens),
    ):
        mine.copy_(new)
    for launch in planned.launches:
        launch.run()
    fresh = plan_layer(problem, configs, other)
    for launch in fresh.launches:
        launch.run()
    live = case["then"]
    return {"same": torch.equal(planned.out[:live], fresh.out[:live])}


def main() -> None:
    """Answer cases until stdin ends."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    commands = (verify, wrong, sabotage, glue, tickets, far, rounding, layer_twice)
    known = {command.__name__: command for command in commands}
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = known[case["command"]](case)
        except Exception:  # noqa: BLE001 the test that asked shows it
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
