"""Misses that servers wrote down (runtime/misses.py), as sweeps that would answer them.

A miss says its problem by what look-ups are made by, not by a model's name: the model is looked for
among the presets, the models that misses name, and --model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..db.silicon import silicon_of
from ..db.table_file import problem_keys
from ..errors import CorruptFile, InvalidInput
from ..runtime.misses import MISS_SCHEMA
from ..search_spaces import (
    Problem,
    load_model,
    model_names,
    parse_layout,
    parse_routing,
    with_formats,
)
from ..search_spaces.tokens import MOST_TOKENS
from ..topology import Gpu, gpu_names
from .plan import Plan
from .request import SweepRequest, resolve_gpu

_EXPECTED = f"lines of {MISS_SCHEMA}, as rubin_tune.runtime.MissLog writes them"
_MOST_BYTES = 1 << 30
# Token counts of a problem that are tuned; more are thinned out evenly.
MOST_COUNTS = 24
# What the target says, and what a sweep leaves open.
_SILICON = ("arch", "sms", "memory_gib")
_OPEN = (*_SILICON, "capacity")
# Drivers round memory differently.
_MEMORY_SLACK = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """One problem that was asked for, and the token counts that no row answered."""

    op: str
    problem: Mapping[str, Any]
    tokens: tuple[int, ...]
    model: str = ""


def read_misses(path: Path) -> list[Missed]:
    """Read a file of misses, by problem, in the order in which problems were first missed.

    A line that was cut off (the disk was full, a process was killed) is passed over.

    Raises:
        CorruptFile: it cannot be read, holds no misses, or a line says what cannot be meant.
    """
    found: dict[str, tuple[dict[str, Any], set[int]]] = {}
    for line in _lines(path):
        place = {name: line[name] for name in ("op", "problem")} | {"model": line.get("model", "")}
        text = json.dumps(place, sort_keys=True)
        found.setdefault(text, (place, set()))[1].add(line["tokens"])
    if not found:
        raise CorruptFile(path, "it holds no misses", _EXPECTED)
    return [Missed(**place, tokens=tuple(sorted(counts))) for place, counts in found.values()]


def plan_of_misses(path: Path, base: SweepRequest, *, model: str | None = None) -> Plan:
    """Return the sweeps that would answer the misses of a kernel.

    Args:
        path: A file that `MissLog` wrote.
        base: The kernel, and how to sweep; its target and routing, where given, are meant instead
            of those of the misses.
        model: A model that is no preset: name or config.json.

    Raises:
        CorruptFile: the file holds no misses.
        InvalidInput: none are of the kernel, or no known model has such a layer.
    """
    missed = read_misses(path)
    own = [one for one in missed if one.op == base.kernel]
    if not own:
        others = ", ".join(sorted({one.op for one in missed}))
        raise InvalidInput(f"{str(path)!r} holds no misses of {base.kernel!r}: it has of {others}")
    requests = [_request(one, base, model) for one in own]
    merged: dict[SweepRequest, set[int]] = {}
    for request, one in zip(requests, own, strict=True):
        merged.setdefault(request, set()).update(one.tokens)
    return Plan(
        path=path,
        requests=tuple(
            replace(request, tokens=",".join(map(str, _thinned(sorted(counts)))))
            for request, counts in merged.items()
        ),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        if not path.is_file():
            why = "it is no regular file" if path.exists() else "there is no such file"
            raise CorruptFile(path, why, _EXPECTED)
        if path.stat().st_size > _MOST_BYTES:
            raise CorruptFile(path, f"it is over {_MOST_BYTES >> 20} MiB", _EXPECTED)
        with path.open("rb") as stream:
            for number, text in enumerate(stream, 1):
                found = _parsed(text)
                if found is None:
                    continue
                why = _wrong(found)
                if why:
                    raise CorruptFile(path, f"line {number}: {why}", _EXPECTED)
                yield found
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CorruptFile(path, why, _EXPECTED) from error


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _wrong(line: object) -> str:
    if not isinstance(line, dict) or line.get("schema") != MISS_SCHEMA:
        return f"it does not say {MISS_SCHEMA}"
    if not isinstance(line.get("op"), str) or not isinstance(line.get("model", ""), str):
        return "its op or model is no text"
    problem, tokens = line.get("problem"), line.get("tokens")
    if not isinstance(problem, dict) or any(
        not isinstance(value, int | float | str) for value in problem.values()
    ):
        return "its problem is no object of plain values"
    if type(tokens) is not int or not 1 <= tokens <= MOST_TOKENS:
        return f"tokens is {tokens!r:.40}: must be 1 to {MOST_TOKENS}"
    return ""


def _request(one: Missed, base: SweepRequest, model: str | None) -> SweepRequest:
    target, gpu = _target(one.problem, base.target)
    named = [model] if model else [*([one.model] if one.model else []), *model_names()]
    near: list[tuple[int, str]] = []
    for name in named:
        request = _as_asked(one, base, name, target)
        problem = _problem(request, gpu)
        if problem is None:
            continue
        keys = problem_keys(problem, silicon_of(gpu))
        differ = [k for k, v in one.problem.items() if k not in _OPEN and keys.get(k) != v]
        if base.routing:
            differ = [k for k in differ if k != "routing"]
        if not differ:
            return request
        near.append((len(differ), f"{name} differs in {', '.join(sorted(differ)[:4])}"))
    raise InvalidInput(
        f"no model has the layer that was missed ({_spelled(one.problem)}): "
        f"{min(near)[1] if near else 'none can be laid out so'}; give its config.json with --model"
    )


def _as_asked(one: Missed, base: SweepRequest, model: str, target: str) -> SweepRequest:
    said = one.problem
    return replace(
        base,
        model=model,
        target=target,
        layout=str(said.get("layout", base.layout)),
        dtype=_text(said.get("weights")) or base.dtype,
        activations=_text(said.get("activations")) or base.activations,
        routing=base.routing or _text(said.get("routing")),
    )


def _problem(request: SweepRequest, gpu: Gpu) -> Problem | None:
    """Return the problem of a request, None where the model has no such formats or layout."""
    routing = _routing(request.routing)
    try:
        shape = with_formats(load_model(request.model), request.dtype, request.activations)
        layout = parse_layout(request.layout, shape, gpu)
        return Problem(shape=shape, layout=layout, routing=routing, tokens=1)
    except CorruptFile:
        raise
    except InvalidInput:
        return None


def _routing(text: str | None) -> Any:
    try:
        return parse_routing(text or "uniform")
    except InvalidInput as error:
        raise InvalidInput(
            f"routing {text!r} of the misses cannot be had here: give one with --routing ({error})"
        ) from error


def _target(problem: Mapping[str, Any], asked: str | None) -> tuple[str, Gpu]:
    """Return the GPU that was served on: as asked, the one present, or one of the catalogue.

    Raises:
        InvalidInput: none of them is it.
    """
    wanted = {name: problem[name] for name in _SILICON if name in problem}
    names: Sequence[str | None] = [asked] if asked else [None, *gpu_names()]
    for name in names:
        gpu, live = resolve_gpu(name)
        if name is None and not live:
            continue
        if not wanted or _is(gpu, wanted):
            return name or gpu.name, gpu
    told = ", ".join(f"{name} {value}" for name, value in wanted.items())
    raise InvalidInput(
        f"the misses are of a GPU with {told}: {asked or 'no GPU that we know'} is not it; "
        "give another with --target, or sweep on that GPU"
    )


def _is(gpu: Gpu, wanted: Mapping[str, Any]) -> bool:
    own = silicon_of(gpu)
    memory = own.memory_bytes >> 30
    close = abs(wanted.get("memory_gib", memory) - memory) <= memory * _MEMORY_SLACK
    return close and (
        (wanted.get("arch", own.arch), wanted.get("sms", own.sms)) == (own.arch, own.sms)
    )


def _thinned(counts: Sequence[int]) -> list[int]:
    """Return at most MOST_COUNTS of ascending token counts: the ends, and evenly between."""
    if len(counts) <= MOST_COUNTS:
        return list(counts)
    last = len(counts) - 1
    return sorted({counts[round(i * last / (MOST_COUNTS - 1))] for i in range(MOST_COUNTS)})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _spelled(problem: Mapping[str, Any]) -> str:
    named = ("weights", "experts", "top_k", "hidden", "whole_intermediate", "layout")
    return ", ".join(f"{name} {problem[name]}" for name in named if name in problem)
