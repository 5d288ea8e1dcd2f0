"""Stands in for DeepGEMM on the CPU: the same call, computed in float32."""

import torch

ROWS = 128


def m_grouped_fp8_gemm_nt_contiguous(a, b, out, experts):
    """out = a @ b[expert].T for each row; an expert's rows start at a multiple of 128."""
    (rows, row_scale), (weights, scale) = a, b
    assert len(experts) % ROWS == 0
    assert scale.shape == (len(weights), weights.shape[1] // 128, weights.shape[2] // 128)
    for start in range(0, len(experts), ROWS):
        block = experts[start : start + ROWS]
        live = block >= 0
        assert len(set(block[live].tolist())) == 1, "a block of rows has one expert"
        expert = int(block[0])
        wide = scale[expert].repeat_interleave(128, 0).repeat_interleave(128, 1)
        weight = weights[expert].float() * wide
        value = rows[start : start + ROWS].float()
        value = value * row_scale[start : start + ROWS].repeat_interleave(128, 1)
        out[start : start + ROWS][live] = (value @ weight.T)[live].to(torch.bfloat16)
