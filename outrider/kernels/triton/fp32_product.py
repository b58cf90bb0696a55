"""Products in full fp32: tensor cores would round what they multiply.

The one that large models have is the gate's: small, so that its time is latency. Each output is added up in
LANES chains at once, and these in a tree that is spelled out: the compiler's would depend on the tile.
"""

import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.head_products import head_product_launch
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import fp32_tile

LANES = 16


def fp32_product_launch(x: Tensor, weight: Tensor, y: Tensor) -> Launch:
    """y [T, H, N] = x [T, H, K] by weights [H, N, K], each head by its own."""
    tile = fp32_tile(weight.shape[2], x.shape[0])
    lanes = {"LANES": LANES, "LANE_K": tile.block_k // LANES, "NUM_LEVELS": LANES.bit_length() - 1}
    return head_product_launch(fp32_product_kernel, x, weight, y, tile, lanes)


@triton.jit(do_not_specialize=["T"])
def fp32_product_kernel(
    x_ptr: tl.tensor,
    w_ptr: tl.tensor,
    y_ptr: tl.tensor,
    x_stride: int,
    x_head_stride: int,
    y_stride: int,
    y_head_stride: int,
    T: int,
    N: int,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    LANES: tl.constexpr,
    LANE_K: tl.constexpr,
    NUM_LEVELS: tl.constexpr,
) -> None:
    """y[t, h, n] = sum over k of x[t, h, k] * w[h, n, k], multiplied and added in fp32.

    x [T, H, K], w [H, N, K], y [T, H, N]; the last dimension of x and y is dense, w is contiguous.
    """
    BLOCK_K: tl.constexpr = LANES * LANE_K
    head = tl.program_id(2).to(tl.int64)
    offs_t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    offs_n = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_k = tl.arange(0, LANES)[:, None] * LANE_K + tl.arange(0, LANE_K)[None, :]
    w_mask = (offs_n < N)[None, :, None]
    x_mask = (offs_t < T)[None, None, :]
    w_ptrs = w_ptr + head * N * K + offs_n[None, :, None] * K + offs_k[:, None, :]
    x_ptrs = x_ptr + head * x_head_stride + offs_t[None, None, :] * x_stride + offs_k[:, :, None]
    chains = tl.zeros((LANES, BLOCK_M, BLOCK_T), dtype=tl.float32)
    for first in tl.range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs, mask=w_mask, other=0.0)
            x = tl.load(x_ptrs, mask=x_mask, other=0.0)
        else:
            w = tl.load(w_ptrs, mask=w_mask & (offs_k < K - first)[:, None, :], other=0.0)
            x = tl.load(x_ptrs, mask=x_mask & (offs_k < K - first)[:, :, None], other=0.0)
        chains = tl.dot(w, x, chains, input_precision="ieee")
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
    chains = tl.permute(chains, (1, 2, 0))
    for level in tl.static_range(NUM_LEVELS):
        even, odd = tl.split(tl.reshape(chains, (BLOCK_M, BLOCK_T, LANES // 2 // 2**level, 2)))
        chains = even + odd
    total = tl.reshape(chains, (BLOCK_M, BLOCK_T))
    y_ptrs = y_ptr + head * y_head_stride + offs_t[None, :] * y_stride + offs_n[:, None]
    tl.store(y_ptrs, total, mask=(offs_n < N)[:, None] & (offs_t < T)[None, :])
