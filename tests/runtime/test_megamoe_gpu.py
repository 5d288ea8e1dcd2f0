"""MegaMoE's promises that only a GPU can break: CUDA graphs, no waiting, no allocation, no copies kept."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from rubin_tune.topology import is_present

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not is_present(), reason="there is no CUDA GPU"),
]

EXPERTS, TOP_K, HIDDEN, WIDTH = 16, 4, 512, 256


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def make(torch: Any) -> Any:
    """A function that makes a module over the same random weights."""
    from rubin_tune.runtime import MegaMoE

    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*size: int) -> Any:
        return torch.randn(size, generator=generator, device="cuda")

    gate_up = (normal(EXPERTS, 2 * WIDTH, HIDDEN) / HIDDEN**0.5).bfloat16()
    down = (normal(EXPERTS, HIDDEN, WIDTH) / WIDTH**0.5).bfloat16()

    def build(**options: Any) -> Any:
        return MegaMoE.from_fused(gate_up, down, top_k=TOP_K, **options)

    build.weights = (gate_up, down)
    return build


def step(torch: Any, tokens: int, seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn((tokens, HIDDEN), generator=generator, device="cuda").bfloat16()
    scores = torch.rand((tokens, EXPERTS), generator=generator, device="cuda")
    gates, ids = scores.softmax(dim=1).topk(TOP_K)
    return x, ids, gates.bfloat16()


def expected(torch: Any, make: Any, x: Any, ids: Any, gates: Any) -> Any:
    gate_up, down = (w.double() for w in make.weights)
    out = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for expert in range(EXPERTS):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token].double() @ gate_up[expert].T).chunk(2, dim=1)
        done = (torch.nn.functional.silu(gate) * up) @ down[expert].T
        out.index_add_(0, token, done * gates[token, slot].double()[:, None])
    return out


def check(torch: Any, make: Any, got: Any, x: Any, ids: Any, gates: Any) -> None:
    from rubin_tune.kernels.megamoe import PROVIDES
    from rubin_tune.search_spaces import Unit

    wanted = expected(torch, make, x, ids, gates)
    error = ((got.double() - wanted).norm(dim=1) / wanted.norm(dim=1)).max().item()
    assert error <= PROVIDES.tolerance(make().problem, Unit.LAYER)


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 256, 257, 3000])
def test_steps_are_right_with_and_without_graphs(
    torch: Any, make: Any, tokens: int, graphs: bool
) -> None:
    module = make(graphs=graphs)
    for seed in (0, 1):
        x, ids, gates = step(torch, tokens, seed)
        check(torch, make, module(x, ids, gates), x, ids, gates)
        out = torch.full_like(x, float("nan"))
        assert module(x, ids, gates, out=out) is out
        check(torch, make, out, x, ids, gates)


@pytest.mark.parametrize("tokens", [8, 512])
def test_a_planned_step_neither_waits_nor_allocates(torch: Any, make: Any, tokens: int) -> None:
    module = make()
    module.plan(tokens)
    x, ids, gates = step(torch, tokens)
    out = torch.empty_like(x)
    module(x, ids, gates, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with warnings.catch_warnings():
        # torch calls the mode a prototype
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
    try:
        module(x, ids, gates, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("tokens", [8, 512])
def test_a_planned_step_can_be_captured_and_reads_new_inputs(
    torch: Any, make: Any, tokens: int
) -> None:
    module = make()
    module.plan(tokens)
    x, ids, gates = step(torch, tokens)
    out = torch.empty_like(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module(x, ids, gates, out=out)
    for seed in (1, 2):
        for mine, new in zip((x, ids, gates), step(torch, tokens, seed), strict=True):
            mine.copy_(new)
        out.fill_(float("nan"))
        graph.replay()
        check(torch, make, out, x, ids, gates)


def test_a_step_that_was_not_planned_is_refused_during_a_capture(torch: Any, make: Any) -> None:
    from rubin_tune.errors import InvalidInput

    module = make()
    x, ids, gates = step(torch, 5)
    graph = torch.cuda.CUDAGraph()
    refused = ""
    with torch.cuda.graph(graph):
        # An empty graph would be warned of.
        x.add_(0)
        try:
            module(x, ids, gates)
        except InvalidInput as refusal:
            refused = str(refusal)
    assert "plan(5)" in refused


def test_moved_weights_are_planned_anew(torch: Any, make: Any) -> None:
    module = make()
    x, ids, gates = step(torch, 4)
    module(x, ids, gates)
    module.cpu().cuda()
    check(torch, make, module(x, ids, gates), x, ids, gates)


def test_layers_of_one_workspace_share_their_buffers(torch: Any, make: Any) -> None:
    from rubin_tune.runtime import Workspace

    workspace = Workspace()
    modules = [make(workspace=workspace) for _ in range(4)]
    x, ids, gates = step(torch, 2048)
    modules[0](x, ids, gates)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for module in modules[1:]:
        module(x, ids, gates)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_transformers_model_holds_its_weights_once(torch: Any) -> None:
    transformers = pytest.importorskip("transformers")
    from rubin_tune.runtime.transformers import register

    register()
    config = transformers.Qwen3MoeConfig(
        vocab_size=128, hidden_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=128, num_experts=32, num_experts_per_tok=4,
        moe_intermediate_size=256, intermediate_size=512,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval()
    tokens = torch.arange(12, device="cuda")[None]
    with torch.no_grad():
        model.set_experts_implementation("eager")
        own = model(tokens).logits.double()
        held = torch.cuda.memory_allocated()
        model.set_experts_implementation("rubin_tune")
        ours = model(tokens).logits.double()
        model.set_experts_implementation("eager")
        again = model(tokens).logits.double()
    one = model.model.layers[0].mlp.experts.gate_up_proj.nbytes
    assert torch.cuda.memory_allocated() - held < one
    assert ((ours - own).norm(dim=-1) / own.norm(dim=-1)).max().item() < 0.05
    assert torch.equal(own, again)
