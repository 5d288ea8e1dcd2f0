"""The engine's layer and its GEMM kernel, computed in float32 from the arguments they get."""

import torch


def _wide(weight, scale):
    if scale is None:
        return weight.float()
    spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return weight.float() * spread[: weight.shape[0], : weight.shape[1]]


def fused_experts(
    x, w1, w2, gates, ids, *, quant_config=None, expert_map=None, global_num_experts=-1
):
    """Silu layer over the experts that the map calls local."""
    s1, s2 = quant_config.scales if quant_config else (None, None)
    out = torch.zeros(x.shape)
    for token in range(len(x)):
        for slot, expert in enumerate(ids[token].tolist()):
            expert = expert if expert_map is None else int(expert_map[expert])
            if expert < 0:
                continue
            hot = x[token].float() @ _wide(w1[expert], None if s1 is None else s1[expert]).T
            gate, up = hot.chunk(2)
            hot = torch.nn.functional.silu(gate) * up
            done = hot @ _wide(w2[expert], None if s2 is None else s2[expert]).T
            out[token] += gates[token, slot] * done
    return out.to(torch.bfloat16)


class _Kernel:
    params = ()

    def __getitem__(self, grid):
        return self._run

    def _run(self, rows, weight, out, _, row_scale, scale, *more, top_k, BLOCK_SIZE_M, **options):
        _, order, experts, padded = more[:4]
        routes = more[7]
        for place in range(int(padded)):
            route, expert = int(order[place]), int(experts[place // BLOCK_SIZE_M])
            if route >= routes:
                continue
            value = rows[route // top_k].float()
            if row_scale is not None:
                value = value * row_scale[route // top_k].repeat_interleave(128)[: len(value)]
            wide = _wide(weight[expert], None if scale is None else scale[expert])
            out[route, 0] = (wide @ value).to(torch.bfloat16)


fused_moe_kernel = _Kernel()
