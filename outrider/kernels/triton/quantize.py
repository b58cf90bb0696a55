"""Inputs of FP8 products, rounded to e4m3 with a factor for each block of a row (arXiv 2412.19437, 3.3.2)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import MOST_TOKENS, num_tiles
from outrider.kernels.weights import FP8_BLOCK

LARGEST_E4M3 = tl.constexpr(448.0)
BLOCKS_PER_PROGRAM = 8


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Values e4m3 [T, K] and fp32 factors [ceil(K / FP8_BLOCK), padded T] whose products are close to x.

    The factors of a block lie side by side, so that a product reads those of its tokens at once. There is
    room for whole tiles of MOST_TOKENS: what lies past T is not written, may be read, and must not be used.
    """
    T, K = x.shape
    values = torch.empty(T, K, dtype=torch.float8_e4m3fn, device=x.device)
    scales = empty_scales(T, K, x.device)
    quantize_launch(x, values, scales).run()
    return values, scales


def empty_scales(T: int, K: int, device: torch.device) -> Tensor:
    """Room for the factors of T rows of K inputs."""
    padded = num_tiles(T, MOST_TOKENS) * MOST_TOKENS
    return torch.empty(num_tiles(K, FP8_BLOCK), padded, dtype=torch.float32, device=device)


def quantize_launch(x: Tensor, values: Tensor, scales: Tensor) -> Launch:
    """The rows of x [T, K], each cut into blocks; the last dimension is dense."""
    T, K = x.shape
    return Launch(
        kernel=quantize_kernel,
        grid=(T, num_tiles(K, FP8_BLOCK * BLOCKS_PER_PROGRAM)),
        arguments={
            "x_ptr": x,
            "values_ptr": values,
            "scales_ptr": scales,
            "x_stride": x.stride(0),
            "scales_stride": scales.stride(0),
            "K": K,
        },
        constants={"BLOCKS": BLOCKS_PER_PROGRAM, "BLOCK_K": FP8_BLOCK},
    )


@triton.jit
def quantize_kernel(
    x_ptr: tl.tensor,
    values_ptr: tl.tensor,
    scales_ptr: tl.tensor,
    x_stride: int,
    scales_stride: int,
    K: int,
    BLOCKS: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> None:
    """scale = max(abs(block)) / 448; value = block / scale.

    x [T, K] -> values [T, K], scales [ceil(K / BLOCK_K), T]; a program takes BLOCKS blocks of one row.
    """
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    columns = blocks[:, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    x = tl.load(x_ptr + row * x_stride + columns, mask=columns < K, other=0.0).to(tl.float32)
    scales = block_scales(x)
    values = x / scales[:, None]
    tl.store(values_ptr + row * K + columns, values.to(values_ptr.dtype.element_ty), mask=columns < K)
    tl.store(scales_ptr + blocks * scales_stride + row, scales, mask=blocks * BLOCK_K < K)


@triton.jit
def block_scales(x: tl.tensor) -> tl.tensor:
    """The factors [R] of rows x [R, FP8_BLOCK] in fp32; x / factor lies within e4m3's range."""
    # The floor gives a row of zeros a factor that it can be divided by.
    return tl.maximum(tl.max(tl.abs(x), axis=1), 1e-30) / LARGEST_E4M3
