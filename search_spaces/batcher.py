"""Requests to steps: a small simulation of a continuous batcher with data-parallel attention.

The model, in the order in which it acts:

1. A request that has arrived gets a rank (`Serving.assign`) and waits there, first come first served.
2. All ranks step together. A rank first takes every sequence that it decodes, each with
   `1 + speculative` tokens; what is left of `chunk` goes to prompts in order, the last one cut
   (chunked prefill). It works on at most `max_batch` sequences.
3. The step that ends a prompt yields the first token. Then a sequence decodes until it has all its
   tokens, `1 + speculative * acceptance` a step, rounded up to whole steps.
4. The next step begins when the slowest rank is done (`Serving.step_us`); requests that came in the
   meantime are assigned then. A rank without a token is idle: it takes part, with nothing. When no
   rank has work, time goes on to the next arrival.

Left out: memory for the KV cache (no preemption), requests that are aborted, and the delay of the
engine's own bookkeeping. Nothing is random: the same trace and settings give the same steps.

Stretches in which no prompt is computed are taken in one go, up to the next arrival or the next
sequence that ends, so the cost is by requests and prefill steps, not by decode steps.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections import deque

import numpy as np

from ..errors import InvalidInput
from .serving import Serving
from .steps import Origin, Workload
from .traces import Trace

# Each takes a few microseconds; a chunk of 1 over prompts of 2^24 would never end.
MOST_PREFILL_STEPS = 20_000_000
# Places for a count of requests below the tokens in a rank's load (least_tokens).
_SHIFT = 24


def simulate_steps(trace: Trace, serving: Serving, rate: float = 1.0) -> Workload:
    """Return the steps that an engine with these settings makes of a trace.

    Args:
        trace: The requests.
        serving: Ranks, limits, policy, and the assumed times.
        rate: Factor by which the arrivals are quickened (2 = twice the load).

    Raises:
        InvalidInput: a rate that cannot be meant, more steps than can be simulated, or a trace that
            gives this role nothing to do.
    """
    quick = trace if rate == 1.0 else trace.at_rate(rate)
    steps = math.ceil(int(trace.prompt.sum()) / serving.chunk)
    if serving.role != "decode" and steps > MOST_PREFILL_STEPS:
        raise InvalidInput(
            f"chunk is {serving.chunk}: the trace would take {steps} prefill steps, must be at "
            f"most {MOST_PREFILL_STEPS}; raise chunk or take fewer requests"
        )
    run = _Run(quick, serving)
    run.all()
    origin = Origin(
        trace=trace.name,
        format=trace.format,
        sha256=trace.sha256,
        requests=len(trace),
        rate=float(rate),
        reused_tokens=int(trace.reusable.sum()) if serving.prefix_cache else 0,
        prompt_tokens=int(trace.prompt.sum()),
        last_arrival_us=int(quick.arrival_us[-1]),
        repairs=trace.repairs,
    )
    return run.workload(origin)


class _Run:
    """The state of one simulation; every count is by rank."""

    def __init__(self, trace: Trace, serving: Serving) -> None:
        ranks = serving.ranks
        self.serving = serving
        self.arrivals, self.work, self.decodes = _requests(trace, serving)
        self.next = 0  # the next request to arrive
        self.now = 0
        self.step = 0  # steps done, idle time not counted
        self.queues: list[deque[int]] = [deque() for _ in range(ranks)]
        self.queued: set[int] = set()  # ranks with a queue
        self.left = [0] * ranks  # prompt tokens left of the first in the queue, 0 = not begun
        self.running = [0] * ranks
        self.decode = [0] * ranks  # tokens of decoding sequences
        self.load = [0] * ranks  # what the assignment compares
        self.ends: list[int] = []  # heap of (step at which a sequence ends) * ranks + rank
        self.turn = 0
        self.columns = (array("q"), array("q"), array("q"))  # start, duration, repeats
        self.prefills, self.decoded = array("i"), array("i")
        self.last: tuple[list[int], list[int], int] = ([], [], -1)
        self.zeros = [0] * ranks

    def all(self) -> None:
        """Step until every request is done."""
        total = len(self.arrivals)
        arrivals = self.arrivals
        while True:
            while self.next < total and arrivals[self.next] <= self.now:
                self._assign(self.next)
                self.next += 1
            if self.queued and self.serving.role == "decode":
                self._admit()
            prefill = self._fill() if self.queued and self.serving.role != "decode" else None
            if prefill is not None:
                self._record(prefill[0], 1)
                self._start(prefill[1])
            elif self.ends:
                self._decode_on()
            elif self.next < total:
                self.now = arrivals[self.next]
            else:
                return
            self._end()

    def _assign(self, request: int) -> None:
        policy = self.serving.assign
        if policy == "round_robin":
            rank = self.turn
            self.turn = (rank + 1) % self.serving.ranks
        else:
            rank = self.load.index(min(self.load))
            # Waiting counts four times as much as running (vLLM's balancer), or by its tokens.
            waits = 4 if policy == "least_requests" else (self.work[request] << _SHIFT) + 1
            self.load[rank] += waits
        self.queues[rank].append(request)
        self.queued.add(rank)

    def _admit(self) -> None:
        """Begin to decode what waits, where the prompt was computed elsewhere."""
        for rank in sorted(self.queued):
            queue = self.queues[rank]
            begun: list[tuple[int, int]] = []
            while queue and self.running[rank] < self.serving.max_batch:
                self.running[rank] += 1
                begun.append((queue.popleft(), rank))
            if self.serving.assign == "least_requests":
                self.load[rank] -= 3 * len(begun)
            if not queue:
                self.queued.discard(rank)
            self._start(begun)

    def _fill(self) -> tuple[list[int], list[tuple[int, int]]] | None:
        """Give each rank's spare tokens to its queue; return tokens per rank and ended prompts."""
        prefill = self.zeros.copy()
        ended: list[tuple[int, int]] = []
        for rank in sorted(self.queued):
            prefill[rank] = self._fill_rank(rank, ended)
        return (prefill, ended) if any(prefill) else None

    def _fill_rank(self, rank: int, ended: list[tuple[int, int]]) -> int:
        queue = self.queues[rank]
        most = self.serving.max_batch
        begun = self.serving.assign == "least_requests"
        budget = spare = self.serving.chunk - self.decode[rank]
        while queue and spare:
            request = queue[0]
            left = self.left[rank]
            if not left:
                if self.running[rank] >= most:
                    break
                self.running[rank] += 1
                if begun:
                    self.load[rank] -= 3  # 4 for waiting becomes 1 for running
                left = self.work[request]
            if left <= spare:
                spare -= left
                self.left[rank] = 0
                queue.popleft()
                ended.append((request, rank))
            else:
                self.left[rank] = left - spare
                spare = 0
        if not queue:
            self.queued.discard(rank)
        if self.serving.assign == "least_tokens":
            self.load[rank] -= (budget - spare) << _SHIFT
        return budget - spare

    def _start(self, ended: list[tuple[int, int]]) -> None:
        """Begin to decode; a request with no decode step is let go by `_end` at once."""
        ranks = self.serving.ranks
        each = self.serving.tokens_per_sequence
        for request, rank in ended:
            self.decode[rank] += each
            heapq.heappush(self.ends, (self.step + self.decodes[request]) * ranks + rank)

    def _decode_on(self) -> None:
        """Step without prompts up to the next arrival or the next sequence that ends."""
        count = self.ends[0] // self.serving.ranks - self.step
        duration = self.serving.step_us(0, max(self.decode))
        if self.next < len(self.arrivals):
            until = self.arrivals[self.next] - self.now
            count = min(count, max(1, -(-until // duration)))
        self._record(self.zeros, count)

    def _end(self) -> None:
        """Let go of the sequences that have all their tokens."""
        ranks = self.serving.ranks
        least = (self.step + 1) * ranks
        ends = self.ends
        while ends and ends[0] < least:
            rank = heapq.heappop(ends) % ranks
            self.decode[rank] -= self.serving.tokens_per_sequence
            self.running[rank] -= 1
            if self.serving.assign != "round_robin":
                self.load[rank] -= 1

    def _record(self, prefill: list[int], count: int) -> None:
        starts, durations, repeats = self.columns
        duration = self.serving.step_us(max(prefill), max(self.decode))
        last_prefill, last_decode, last_end = self.last
        if last_end == self.now and last_prefill == prefill and last_decode == self.decode:
            repeats[-1] += count
        else:
            starts.append(self.now)
            durations.append(duration)
            repeats.append(count)
            self.prefills.extend(prefill)
            self.decoded.extend(self.decode)
        self.step += count
        self.now += duration * count
        self.last = (prefill, self.decode.copy(), self.now)

    def workload(self, origin: Origin) -> Workload:
        """Return what was recorded."""
        if not self.columns[0]:
            raise InvalidInput(
                f"trace {origin.trace!r} gives role {self.serving.role!r} nothing to do: no request "
                f"generates more than one token"
            )
        start, duration, repeats = (np.array(column, dtype=np.int64) for column in self.columns)
        shape = (-1, self.serving.ranks)
        return Workload(
            origin=origin,
            serving=self.serving,
            start_us=start,
            duration_us=duration,
            repeats=repeats,
            prefill=np.array(self.prefills, dtype=np.int32).reshape(shape),
            decode=np.array(self.decoded, dtype=np.int32).reshape(shape),
        )


def _requests(trace: Trace, serving: Serving) -> tuple[list[int], list[int], list[int]]:
    """Return arrival, prompt tokens to compute and decode steps of each request that matters."""
    work = trace.prompt - (trace.reusable if serving.prefix_cache else 0)
    steps = np.ceil((np.maximum(trace.output, 1) - 1) / serving.generated_per_step)
    arrival, steps = trace.arrival_us, steps.astype(np.int64)
    if serving.role == "prefill":
        steps = np.zeros_like(steps)
    elif serving.role == "decode":  # an answer of one token never gets here
        kept = steps > 0
        arrival, steps, work = arrival[kept], steps[kept], np.zeros_like(work[kept])
    return arrival.tolist(), work.tolist(), steps.tolist()
