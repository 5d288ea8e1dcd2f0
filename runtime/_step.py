"""One planned step of one layer: what runs when the module is called."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..kernels._kernel import Launch
from ..kernels._megamoe_inputs import Matrix
from ..kernels._megamoe_serve import ServedPlan
from ..search_spaces import Unit


class Step:
    """Launches of a layer over shared buffers, with a CUDA graph of them where that is faster.

    Args:
        plan: The buffers, and the launches without weights.
        weights: The layer's.
        first_expert: Subtracted from expert numbers.
        graph: Capture the launches (on a GPU).
        padded: Steps may have fewer tokens than the plan.
    """

    def __init__(
        self,
        plan: ServedPlan,
        weights: Mapping[Unit, Matrix],
        *,
        first_expert: int,
        graph: bool,
        padded: bool,
    ) -> None:
        # Not the plan itself: the module finds this step by it for as long as the workspace keeps it.
        self.x, self.ids, self.gates, self.out = plan.x, plan.topk_ids, plan.topk_weights, plan.out
        self.live, self.padded = plan.live_tokens, padded
        self.first_expert = first_expert
        self.launches = plan.bind(weights)
        self.device = plan.x.device
        self.graph: torch.cuda.CUDAGraph | None = None
        with _on(self.device):
            # Compiles and loads: neither is possible during a capture.
            _run(self.launches)
            if graph and self.device.type == "cuda":
                self.graph = _capture(self.launches)

    def run(self, hidden: Tensor, ids: Tensor, gates: Tensor, out: Tensor | None) -> Tensor:
        """Run the step; return `out`, or the plan's own buffer where it is None."""
        tokens = hidden.shape[0]
        with _on(self.device):
            if self.padded:
                # Always: other layers, and graphs of the caller's, set it too.
                self.live.fill_(tokens)
            own_ids = self.ids[:tokens] if self.padded else self.ids
            if self.first_expert:
                torch.sub(ids, self.first_expert, out=own_ids)
            else:
                own_ids.copy_(ids)
            (self.gates[:tokens] if self.padded else self.gates).copy_(gates)
            if self.graph is None or torch.cuda.is_current_stream_capturing():
                return self._launch(hidden, out)
            (self.x[:tokens] if self.padded else self.x).copy_(hidden)
            self.graph.replay()
        own = self.out[:tokens] if self.padded else self.out
        return own if out is None else out.copy_(own)

    def _launch(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        """Launch each kernel, reading and writing the caller's tensors where they are dense."""
        tokens = hidden.shape[0]
        found: dict[int, Tensor] = {}
        # Rows past the live ones are read before they are known to be dead.
        if hidden.is_contiguous() and not self.padded:
            found[id(self.x)] = hidden
        else:
            self.x[:tokens].copy_(hidden)
        direct = out is not None and out.is_contiguous()
        if out is not None and direct:
            found[id(self.out)] = out
        _run(_swap(self.launches, found) if found else self.launches)
        if out is None:
            return self.out[:tokens]
        return out if direct else out.copy_(self.out[:tokens])


def _run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch.run()


def _swap(launches: Sequence[Launch], found: Mapping[int, Tensor]) -> list[Launch]:
    """Return launches with some tensors, known by their identity, replaced by others."""
    swapped = []
    for launch in launches:
        if any(id(arg) in found for arg in launch.args):
            args = tuple(found.get(id(arg), arg) for arg in launch.args)
            launch = replace(launch, args=args)
        swapped.append(launch)
    return swapped


def _capture(launches: Sequence[Launch]) -> torch.cuda.CUDAGraph:
    """Return a graph of the launches.

    Not by `torch.cuda.graph`, which also collects garbage and empties the allocator's cache: nothing is
    allocated here.
    """
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        _run(launches)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def _on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one, where it is not: triton launches on the current one."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)
