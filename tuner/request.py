"""What a user asks of a sweep, and what it means: everything is checked here, before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..db.landscape import read_landscape
from ..errors import InvalidInput, UnknownName
from ..kernels._kernel import Kernel
from ..registry import load, names
from ..search_spaces import (
    VLLM_LADDER,
    Problem,
    default_layout,
    load_model,
    parse_layout,
    parse_routing,
    parse_tokens,
    with_formats,
)
from ..topology import Gpu, detect_gpu, fake_domains, is_present, resolve_target
from . import samplers
from .audit import DEFAULT_AUDIT
from .evaluation import Setting
from .toolchain import require_target

DEFAULT_MODEL = "deepseek-v4.1-flash"
DEFAULT_TARGET = "vr200"
# Real DeepSeek-V3 counts look lognormal with sigma 0.5 (facts/moe-kernels.md 5.6).
DEFAULT_ROUTING = "lognormal:0.5"
# Recorded landscapes and most published tables draw experts uniformly.
RECORDED_ROUTING = "uniform"
# Variants a GEMM. The model's are each compiled (about 1.5 s on one core); a GPU's are timed too.
DEFAULT_TRIALS = {"model": 64, "gpu": 200, "recorded": 96}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """The options of `rubin-tune sweep`, unresolved; None means the documented default.

    Attributes:
        kernel: A name of kernels/.
        model: A preset's name, or the path of a config.json or TOML.
        target: A GPU name, sm_NNN or a GPU's TOML.
        layout: auto, single, depN, epN or tpN.
        dtype: bf16, fp8 or mxfp4: the weights.
        activations: bf16, fp8 or mxfp8.
        tokens: Comma-separated token counts over all ranks.
        routing: balanced, uniform, lognormal:S, zipf:A or a file of counts.
        evaluator: auto, gpu, model or recorded:FILE.
        sampler: A name of tuner/samplers.
        trials: Variants a GEMM.
        budget_s: Seconds after which no new variant is started; None = no limit.
        until: Stop when the expected gain is under this share (tuner/budget.py); None = never.
        portfolio: Hold the winners to a smallest set of at most so many configs a GEMM; None = no.
        audit: Variants a GEMM that are timed though pruned or ranked low (tuner/audit.py).
        seed: Same seed, same proposals.
    """

    kernel: str = "megamoe"
    model: str = DEFAULT_MODEL
    target: str | None = None
    layout: str = "auto"
    dtype: str | None = None
    activations: str | None = None
    tokens: str | None = None
    routing: str | None = None
    evaluator: str = "auto"
    sampler: str = samplers.DEFAULT
    trials: int | None = None
    budget_s: float | None = None
    until: float | None = None
    portfolio: int | None = None
    audit: int = DEFAULT_AUDIT
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        if self.trials is not None and self.trials < 1:
            raise InvalidInput(f"trials is {self.trials}: must be at least 1")
        if self.budget_s is not None and not self.budget_s > 0:
            raise InvalidInput(f"budget is {self.budget_s} s: must be more than 0")
        if self.until is not None and not 0 < self.until < 1:
            raise InvalidInput(f"until is {self.until:.3%}: must be between 0 % and 100 %")
        if self.portfolio is not None and self.portfolio < 1:
            raise InvalidInput(f"portfolio is {self.portfolio}: must be at least 1")
        if self.audit < 0:
            raise InvalidInput(f"audit is {self.audit}: must be at least 0")
        if not 0 <= self.seed < 2**31:
            raise InvalidInput(f"seed is {self.seed}: must be between 0 and 2147483647")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request that makes sense."""

    request: SweepRequest
    setting: Setting
    evaluator: str
    argument: str
    trials: int

    def fingerprint(self, source_hash: str, silicon: str, toolchain: str, policy: str) -> str:
        """Hash of everything that would make another sweep come out otherwise."""
        parts = {
            "request": {k: v for k, v in asdict(self.request).items() if k != "model"},
            "problems": [p.key for p in self.setting.problems],
            "trials": self.trials,
            "evaluator": self.evaluator,
            "keys": [source_hash, silicon, toolchain, policy],
            "recording": _content(self.argument),
        }
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def resolve_gpu(target: str | None) -> tuple[Gpu, bool]:
    """Return the GPU meant and whether it is the one in this machine.

    A one-domain GPU is split as RUBIN_TUNE_FAKE_DOMAINS says.
    """
    domains = fake_domains(os.environ)
    live = detect_gpu() if is_present() else None
    if target is None:
        found = live or resolve_target(DEFAULT_TARGET)
        return found.split(domains), live is not None
    wanted = resolve_target(target)
    if live is not None and (live.arch, live.sms) == (wanted.arch, wanted.sms):
        return live.split(domains), True
    return wanted.split(domains), False


def resolve_problem(
    request: SweepRequest, gpu: Gpu, *, routing: str = DEFAULT_ROUTING, tokens: int = 1
) -> Problem:
    """Return the problem that model, layout, dtype and routing describe."""
    shape = with_formats(load_model(request.model), request.dtype, request.activations)
    layout = (
        default_layout(shape, gpu)
        if request.layout == "auto"
        else parse_layout(request.layout, shape, gpu)
    )
    return Problem(
        shape=shape,
        layout=layout,
        routing=parse_routing(request.routing or routing),
        tokens=tokens,
    )


def resolve(request: SweepRequest) -> Resolved:
    """Check every option and return what it means.

    Raises:
        RubinTuneError: some option cannot be meant; the sentence says which and what to do.
    """
    kernel = load_kernel(request.kernel)
    load("tuner.samplers", request.sampler)
    gpu, live = resolve_gpu(request.target)
    evaluator, argument = choose_evaluator(request.evaluator, gpu, live)
    kernel.require(evaluator)
    if evaluator != "recorded":
        require_target(gpu.arch)
    recorded = evaluator == "recorded"
    problem = resolve_problem(
        request, gpu, routing=RECORDED_ROUTING if recorded else DEFAULT_ROUTING
    )
    ladder = _ladder(request, argument if recorded else "")
    setting = Setting(
        kernel=kernel,
        gpu=gpu,
        problems=tuple(problem.at(tokens) for tokens in ladder),
        seed=request.seed,
    )
    trials = request.trials or DEFAULT_TRIALS.get(evaluator, 64)
    return Resolved(
        request=request, setting=setting, evaluator=evaluator, argument=argument, trials=trials
    )


def load_kernel(name: str) -> Kernel:
    """Return a kernel by name."""
    found: Any = load("kernels", name)
    kernel: Kernel = found
    return kernel


def _ladder(request: SweepRequest, recording: str) -> tuple[int, ...]:
    if request.tokens is not None:
        return parse_tokens(request.tokens)
    if recording:
        return read_landscape(Path(recording)).tokens
    return VLLM_LADDER


def choose_evaluator(text: str, gpu: Gpu, live: bool) -> tuple[str, str]:
    """Return the name and argument of the evaluator that an option means.

    Raises:
        UnknownName: no such evaluator.
        InvalidInput: it cannot time that GPU here, or names no file.
    """
    name, _, argument = text.partition(":")
    if name == "auto":
        name = "gpu" if live else "model"
    known = names("tuner.evaluators")
    if name not in known:
        raise UnknownName("evaluator", name, ["auto", *known])
    if name == "gpu" and not live:
        raise InvalidInput(
            f"evaluator 'gpu' cannot time {gpu.name}: it is not in this machine; "
            "use --evaluator model, or leave --target out"
        )
    if name == "recorded" and not argument:
        raise InvalidInput("evaluator 'recorded' names no file: write recorded:FILE")
    return name, argument


def _content(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
