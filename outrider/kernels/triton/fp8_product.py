"""Products of e4m3 numbers with factors for their blocks (arXiv 2412.19437, 3.3.2).

Hopper's tensor cores add products of e4m3 numbers with fewer bits than fp32 has: each block of inputs is a
product of its own, and these are scaled and added in fp32.
"""

import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import ProductShape, num_tiles, product_tile
from outrider.kernels.weights import FP8_BLOCK, Fp8Weight


def fp8_product_launch(x: Tensor, x_scales: Tensor, weight: Fp8Weight, y: Tensor) -> Launch:
    """y [T, N] = x [T, K], as quantize_rows makes it, by the weight [N, K]."""
    T, K = x.shape
    N = weight.shape[0]
    tile = product_tile(ProductShape(H=1, N=N, K=K, itemsize=1), T)
    return Launch(
        kernel=fp8_product_kernel,
        grid=(num_tiles(T, tile.block_t), num_tiles(N, tile.block_m)),
        arguments={
            "x_ptr": x,
            "x_scales_ptr": x_scales,
            "w_ptr": weight.values,
            "w_scales_ptr": weight.scales,
            "y_ptr": y,
            "x_scales_stride": x_scales.stride(0),
            "T": T,
            "N": N,
        },
        constants={"K": K, "BLOCK_M": tile.block_m, "BLOCK_T": tile.block_t, "BLOCK_K": FP8_BLOCK},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


@triton.jit(do_not_specialize=["T"])
def fp8_product_kernel(
    x_ptr: tl.tensor,
    x_scales_ptr: tl.tensor,
    w_ptr: tl.tensor,
    w_scales_ptr: tl.tensor,
    y_ptr: tl.tensor,
    x_scales_stride: int,
    T: int,
    N: int,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """y[t, n] = sum over blocks b of (sum over k in b of x[t, k] * w[n, k]) * xs[b, t] * ws[n / BLOCK_K, b].

    x [T, K], w [N, K] and y [T, N] contiguous, xs [blocks, padded T], ws [ceil(N / BLOCK_K), blocks]; BLOCK_M
    divides BLOCK_K, so that a program has one factor of the weight for each block.
    """
    NUM_BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    offs_t = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    offs_n = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_k = tl.arange(0, BLOCK_K)
    w_mask = (offs_n < N)[:, None]
    x_mask = (offs_t < T)[None, :]
    w_ptrs = w_ptr + offs_n[:, None] * K + offs_k[None, :]
    x_ptrs = x_ptr + offs_t[None, :] * K + offs_k[:, None]
    # Factors are loaded a block ahead, since nothing else hides how long that takes; without a mask, since
    # there is room for whole tiles.
    x_scale_ptrs = x_scales_ptr + offs_t
    w_scale_ptr = w_scales_ptr + tl.program_id(1) * BLOCK_M // BLOCK_K * NUM_BLOCKS
    x_scales = tl.load(x_scale_ptrs)
    w_scale = tl.load(w_scale_ptr)
    total = tl.zeros((BLOCK_M, BLOCK_T), dtype=tl.float32)
    for block in tl.range(0, NUM_BLOCKS):
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs, mask=w_mask, other=0.0)
            x = tl.load(x_ptrs, mask=x_mask, other=0.0)
        else:
            inside = offs_k < K - block * BLOCK_K
            w = tl.load(w_ptrs, mask=w_mask & inside[None, :], other=0.0)
            x = tl.load(x_ptrs, mask=x_mask & inside[:, None], other=0.0)
        scales = x_scales * w_scale
        after = tl.minimum(block + 1, NUM_BLOCKS - 1)
        x_scales = tl.load(x_scale_ptrs + after * x_scales_stride)
        w_scale = tl.load(w_scale_ptr + after)
        total += tl.dot(w, x) * scales[None, :]
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
    tl.store(
        y_ptr + offs_t[None, :] * N + offs_n[:, None],
        total.to(y_ptr.dtype.element_ty),
        mask=w_mask & x_mask,
    )
