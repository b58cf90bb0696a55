"""Products of 16-bit numbers on tensor cores.

The weight's outputs are the rows of the tensor-core product and the tokens its columns: so few tokens and
many take the same instruction, and add in the same order.
"""

import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.head_products import head_product_launch
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import ProductShape, product_tile


def plain_product_launch(x: Tensor, weight: Tensor, y: Tensor) -> Launch:
    """y [T, H, N] = x [T, H, K] by weights [H, N, K], each head by its own."""
    H, N, K = weight.shape
    tile = product_tile(ProductShape(H=H, N=N, K=K, itemsize=weight.itemsize), x.shape[0])
    return head_product_launch(plain_product_kernel, x, weight, y, tile, {"BLOCK_K": tile.block_k})


@triton.jit(do_not_specialize=["T"])
def plain_product_kernel(
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
    BLOCK_K: tl.constexpr,
) -> None:
    """y[t, h, n] = sum over k of x[t, h, k] * w[h, n, k], added in fp32, rounded once.

    x [T, H, K], w [H, N, K], y [T, H, N]; the last dimension of x and y is dense, w is contiguous.
    """
    head = tl.program_id(2).to(tl.int64)
    offs_t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    offs_n = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    w_mask = (offs_n < N)[:, None]
    x_mask = (offs_t < T)[None, :]
    w_ptrs = w_ptr + head * N * K + offs_n[:, None] * K + offs_k[None, :]
    x_ptrs = x_ptr + head * x_head_stride + offs_t[None, :] * x_stride + offs_k[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_T), dtype=tl.float32)
    for first in tl.range(0, K, BLOCK_K):
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs, mask=w_mask, other=0.0)
            x = tl.load(x_ptrs, mask=x_mask, other=0.0)
        else:
            w = tl.load(w_ptrs, mask=w_mask & (offs_k < K - first)[None, :], other=0.0)
            x = tl.load(x_ptrs, mask=x_mask & (offs_k < K - first)[:, None], other=0.0)
        total = tl.dot(w, x, total)
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
    y_ptrs = y_ptr + head * y_head_stride + offs_t[None, :] * y_stride + offs_n[:, None]
    tl.store(y_ptrs, total.to(y_ptr.dtype.element_ty), mask=w_mask & x_mask)
