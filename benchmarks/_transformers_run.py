"""The work of `benchmarks.transformers_moe`: build the model, compare logits, time."""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
import triton
from torch import Tensor

from rubin_tune.runtime.transformers import register, restore, why
from rubin_tune.search_spaces import load_model
from rubin_tune.topology import load_gpu

from ._layer_machine import read_clocks
from .transformers_moe import IMPLEMENTATIONS

SCHEMA = "rubin-tune.transformers-moe/1"
# Positions of the prefill whose logits are compared: all of them would be 2.5 GB of float32.
COMPARED = 256
PROMPT = 16


def run(asked: argparse.Namespace) -> int:
    """Compare, time, print and write; return the exit code."""
    prefill = asked.prefill or (24 if asked.tiny else 4096)
    steps = asked.generate or (3 if asked.tiny else 64)
    register(table=asked.table, gpu=load_gpu("h200") if asked.device == "cpu" else None)
    model = make_model(asked.layers, tiny=asked.tiny, seed=asked.seed, device=asked.device)
    bench = Bench(model, prefill=prefill, steps=steps, calls=asked.calls, seed=asked.seed)
    agreement = bench.agreement()
    times = bench.times(asked.rounds)
    result = {
        "schema": SCHEMA,
        "machine": machine(asked.device),
        "model": {
            "layers": asked.layers,
            "tiny": asked.tiny,
            "weights": "random",
            "seed": asked.seed,
        },
        "table": asked.table,
        "why": bench.configs(),
        "prefill_tokens": prefill,
        "generated_tokens": steps,
        "bound": bound(asked.layers),
        "agreement": agreement,
        "times": times,
    }
    for line in lines(result):
        print(line)
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any(row["error"] > result["bound"] for row in agreement.values()))


def make_model(layers: int, *, tiny: bool, seed: int, device: str) -> Any:
    """Return a Qwen3-MoE of qwen3-30b-a3b's widths, bf16, random weights."""
    shape = load_model("qwen3-30b-a3b")
    config = transformers.Qwen3MoeConfig(
        vocab_size=96 if tiny else 151936,
        hidden_size=64 if tiny else shape.hidden,
        intermediate_size=64 if tiny else 6144,
        moe_intermediate_size=48 if tiny else shape.intermediate,
        num_experts=6 if tiny else shape.experts,
        num_experts_per_tok=2 if tiny else shape.top_k,
        num_hidden_layers=layers,
        num_attention_heads=2 if tiny else 32,
        num_key_value_heads=1 if tiny else 4,
        head_dim=32 if tiny else 128,
        max_position_embeddings=8192,
        norm_topk_prob=True,
    )
    torch.manual_seed(seed)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval()
    # Runs to the end whatever comes out.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def bound(layers: int) -> float:
    """Return how far a row of logits may be off (derived in transformers_moe.py)."""
    return 2 * math.sqrt(28 * layers + 3) * 2.0**-8 / math.sqrt(3)


class Bench:
    """One model, and what is done with each implementation.

    Args:
        model: In bf16.
        prefill: Tokens of a prefill.
        steps: Tokens that are generated.
        calls: Calls of a layer's experts alone.
        seed: Of the prompts.
    """

    def __init__(self, model: Any, *, prefill: int, steps: int, calls: int, seed: int) -> None:
        self.model, self.steps, self.calls = model, steps, calls
        generator = torch.Generator().manual_seed(seed)
        size = (1, max(prefill, PROMPT) + steps)
        tokens = torch.randint(1, model.config.vocab_size, size, generator=generator)
        self.tokens = tokens.to(model.device)
        self.prefill = self.tokens[:, :prefill]
        self.prompt = self.tokens[:, :PROMPT]
        self.experts = next(m for n, m in model.named_modules() if n.endswith("mlp.experts"))

    def agreement(self) -> dict[str, dict[str, float]]:
        """Return each implementation's largest and median row error against the float32 model."""
        restore(self.model)
        self.model.set_experts_implementation("eager")
        exact = copy.deepcopy(self.model).float()
        routes = Routes()
        with routes.recording(exact):
            wanted = self.logits(exact).double()
        del exact
        found = {}
        for name in IMPLEMENTATIONS:
            self.model.set_experts_implementation(name)
            with routes.replaying(self.model):
                got = self.logits(self.model).double()
            errors = (got - wanted).norm(dim=1) / wanted.norm(dim=1)
            best = (got.argmax(dim=1) == wanted.argmax(dim=1)).double().mean()
            worst = float(errors.max()) if bool(got.isfinite().all()) else math.inf
            found[name] = {
                "error": worst,
                "median_error": float(errors.median()),
                "same_best_token": float(best),
            }
        return found

    def logits(self, model: Any) -> Tensor:
        """Return rows of logits: the end of a prefill, then single tokens over a cache."""
        with torch.no_grad():
            kept = min(COMPARED, self.prefill.shape[1])
            rows = [model(self.prefill, logits_to_keep=kept, use_cache=False).logits[0]]
            done = model(self.prompt, use_cache=True)
            rows.append(done.logits[0])
            for place in range(PROMPT, PROMPT + self.steps):
                token = self.tokens[:, place : place + 1]
                done = model(token, past_key_values=done.past_key_values, use_cache=True)
                rows.append(done.logits[0])
        return torch.cat(rows)

    def times(self, rounds: int) -> dict[str, dict[str, Any]]:
        """Return milliseconds of each work with each implementation: medians of interleaved rounds."""
        samples: dict[str, dict[str, list[float]]] = {
            name: {work: [] for work in self.works()} for name in IMPLEMENTATIONS
        }
        for turn in range(rounds):
            for name in IMPLEMENTATIONS if turn % 2 == 0 else IMPLEMENTATIONS[::-1]:
                self.model.set_experts_implementation(name)
                for work, act in self.works().items():
                    act()
                    samples[name][work].append(self.clock(act))
        return {
            name: {
                work: {"median_ms": statistics.median(values), "samples_ms": values}
                for work, values in found.items()
            }
            for name, found in samples.items()
        }

    def works(self) -> dict[str, Callable[[], None]]:
        """Return what is timed, by name."""
        return {
            "generate": self.generate,
            "prefill": self.run_prefill,
            f"{self.calls} x experts, 1 token": lambda: self.run_experts(1),
            f"{self.calls} x experts, prefill": lambda: self.run_experts(self.prefill.shape[1]),
        }

    def configs(self) -> dict[int, str]:
        """Say where our configs are from, for a single token and for the prefill."""
        self.model.set_experts_implementation("rubin_tune")
        self.run_experts(1)
        return {tokens: why(self.experts, tokens) for tokens in (1, self.prefill.shape[1])}

    def generate(self) -> None:
        """Generate greedily from a short prompt."""
        with torch.no_grad():
            self.model.generate(
                self.prompt, max_new_tokens=self.steps, min_new_tokens=self.steps, do_sample=False
            )

    def run_prefill(self) -> None:
        """Run the long prompt once, logits of its last position."""
        with torch.no_grad():
            self.model(self.prefill, logits_to_keep=1, use_cache=False)

    def run_experts(self, tokens: int) -> None:
        """Run the first layer's experts alone, some times."""
        config, device = self.model.config, self.model.device
        generator = torch.Generator(device=device).manual_seed(tokens)
        size = (tokens, config.hidden_size)
        rows = torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)
        scores = torch.rand((tokens, config.num_experts), generator=generator, device=device)
        gates, ids = scores.softmax(dim=1).topk(config.num_experts_per_tok)
        with torch.no_grad():
            for _ in range(self.calls):
                self.experts(rows, ids, gates.bfloat16())

    def clock(self, act: Callable[[], None]) -> float:
        """Return a work's wall time in milliseconds, the GPU's included."""
        self.wait()
        started = time.perf_counter()
        act()
        self.wait()
        return (time.perf_counter() - started) * 1e3

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()


class Routes:
    """Routers' answers of one run, given again to other runs of the same inputs."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    @contextmanager
    def recording(self, model: Any) -> Iterator[None]:
        """Keep what the model's routers answer."""
        self.answers = []
        with self._hooked(model, lambda *call: self.answers.append(call[2])):
            yield

    @contextmanager
    def replaying(self, model: Any) -> Iterator[None]:
        """Answer in the routers' place, in the same order."""
        kept = iter(self.answers)

        def answer(*call: Any) -> Any:
            logits, scores, ids = next(kept)
            own_logits, own_scores, _ = call[2]
            return logits.to(own_logits.dtype), scores.to(own_scores.dtype), ids

        with self._hooked(model, answer):
            yield

    @contextmanager
    def _hooked(self, model: Any, hook: Callable[..., Any]) -> Iterator[None]:
        routers = [m for n, m in model.named_modules() if n.endswith("mlp.gate")]
        hooks = [router.register_forward_hook(hook) for router in routers]
        try:
            yield
        finally:
            for one in hooks:
                one.remove()


def machine(device: str) -> dict[str, str]:
    """Say where and with what this ran."""
    name = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else "cpu, interpreted: times mean nothing"
    )
    versions = {m.__name__: m.__version__ for m in (torch, triton, transformers)}
    return {"device": name, "clocks": read_clocks() if device == "cuda" else "", **versions}


def lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the result as text."""
    yield f"{result['machine']}"
    for tokens, words in result["why"].items():
        yield f"configs at {tokens} tokens: {words}"
    yield f"logits against float32, relative row error, bound {result['bound']:.4f}:"
    for name, row in result["agreement"].items():
        verdict = "within" if row["error"] <= result["bound"] else "BEYOND"
        yield (
            f"  {name:12} {verdict} largest {row['error']:.4f} median {row['median_error']:.4f} "
            f"same best token {row['same_best_token']:.1%}"
        )
    works = next(iter(result["times"].values()))
    yield "median ms, measured: " + "".join(f"{work:>22}" for work in works)
    for name, found in result["times"].items():
        cells = ""
        for work in works:
            own, ours = found[work]["median_ms"], result["times"]["rubin_tune"][work]["median_ms"]
            cells += f"{own:12.3f} ({own / ours:5.2f}x)".rjust(22)
        yield f"  {name:19}{cells}"
