"""Experts' weights as plain numbers: bf16, fp16 or fp32."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor


def pack_plain(weights: Sequence[Tensor]) -> Tensor:
    """E weights [N, K] as one [E, N, K]."""
    first = weights[0]
    values = torch.empty(len(weights), *first.shape, dtype=first.dtype, device=first.device)
    for expert, weight in enumerate(weights):
        values[expert] = weight
    return values


@triton.jit
def plain_product(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    expert: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    live: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Outputs `rows` of an expert for some tokens, fp32 [BLOCK_M, WIDTH]: x [T, K], w [E, N, K]."""
    offs_k = tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + expert * N * K + rows[:, None] * K + offs_k[None, :]
    x_ptrs = x_ptr + tokens[None, :] * K + offs_k[:, None]
    total = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    for first in tl.range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs)
            x = tl.load(x_ptrs, mask=live[None, :], other=0.0)
        else:
            inside = offs_k < K - first
            w = tl.load(w_ptrs, mask=inside[None, :], other=0.0)
            x = tl.load(x_ptrs, mask=live[None, :] & inside[:, None], other=0.0)
        total = tl.dot(w, x, total, input_precision="ieee")
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
    return total
