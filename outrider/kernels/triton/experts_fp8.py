"""Experts' FP8 weights with a factor for each block, and inputs rounded to FP8 in blocks of a row."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.align import Alignment
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.quantize import empty_scales
from outrider.kernels.triton.tiles import num_tiles
from outrider.kernels.weights import FP8_BLOCK, Fp8Weight

PLACES_PER_PROGRAM = 128


def pack_fp8(weights: Sequence[Fp8Weight]) -> tuple[Tensor, Tensor]:
    """E weights [N, K] as values [E, N, K] and scales [E, ceil(N / FP8_BLOCK), ceil(K / FP8_BLOCK)]."""
    first, E = weights[0], len(weights)
    values = torch.empty(E, *first.values.shape, dtype=first.values.dtype, device=first.values.device)
    for expert, weight in enumerate(weights):
        values[expert] = weight.values
    return values, torch.stack([weight.scales for weight in weights])


def check_halves(weight: Fp8Weight) -> None:
    """Raises ValueError where a block of factors holds outputs of both halves of a weight [2 F, K]."""
    F = weight.shape[0] // 2
    if F % FP8_BLOCK:
        raise ValueError(f"{F} gate outputs end inside a block of {FP8_BLOCK}")


def ordered_scales(scales: Tensor, alignment: Alignment, T: int, K: int) -> Tensor:
    """Factors [blocks, T] of rows of K inputs, in the order of the sorted pairs."""
    ordered = room_for_scales(alignment, K)
    order_scales_launch(scales, alignment, T, ordered).run()
    return ordered


def room_for_scales(alignment: Alignment, K: int) -> Tensor:
    """Room for factors by place, and past the last one for those that a full tile would read."""
    return empty_scales(len(alignment.pairs) + alignment.width, K, alignment.pairs.device)


def order_scales_launch(scales: Tensor, alignment: Alignment, T: int, ordered: Tensor) -> Launch:
    """Factors [blocks, T] into [blocks, T * A]."""
    P = len(alignment.pairs)
    return Launch(
        kernel=order_scales_kernel,
        grid=(num_tiles(P, PLACES_PER_PROGRAM), len(scales)),
        arguments={
            "scales_ptr": scales,
            "pairs_ptr": alignment.pairs,
            "ordered_ptr": ordered,
            "scales_stride": scales.stride(0),
            "ordered_stride": ordered.stride(0),
            "P": P,
        },
        constants={"A": P // max(1, T), "PLACES": PLACES_PER_PROGRAM},
    )


@triton.jit
def order_scales_kernel(
    scales_ptr: tl.tensor,
    pairs_ptr: tl.tensor,
    ordered_ptr: tl.tensor,
    scales_stride: int,
    ordered_stride: int,
    P: int,
    A: tl.constexpr,
    PLACES: tl.constexpr,
) -> None:
    """ordered[b, p] = scales[b, pairs[p] / A]: scales [blocks, T], pairs [P] -> ordered [blocks, P].

    A product reads the factors of its tokens side by side then: to gather them there takes registers for
    the place of each. Places behind the last pair of a tile hold anything at all.
    """
    block = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    pairs = tl.load(pairs_ptr + places, mask=places < P, other=0)
    is_pair = (pairs >= 0) & (pairs < P)
    scales = tl.load(scales_ptr + block * scales_stride + pairs // A, mask=is_pair, other=0.0)
    tl.store(ordered_ptr + block * ordered_stride + places, scales, mask=places < P)


@triton.jit
def fp8_product(
    x_ptr: tl.tensor,
    x_scales_ptr: tl.tensor,
    x_scales_stride: int,
    w_ptr: tl.tensor,
    w_scales_ptr: tl.tensor,
    expert: tl.tensor,
    even_block: tl.tensor,
    odd_block: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    first_place: tl.tensor,
    live: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_K: tl.constexpr,
) -> tl.tensor:
    """Outputs `rows` of an expert for some tokens, fp32 [BLOCK_M, WIDTH].

    x [T, K] with factors [blocks, places], w [E, N, K] with factors [E, N blocks, K blocks]. Hopper's tensor
    cores add products of e4m3 numbers with fewer bits than fp32 has: each block of inputs is a product of its
    own, and these are scaled and added in fp32. Of the weight's blocks of outputs, even_block has the first
    eight rows and every other eight after them, odd_block the rest.
    """
    BLOCKS: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    offs_k = tl.arange(0, BLOCK_K)
    w_ptrs = w_ptr + expert * N * K + rows[:, None] * K + offs_k[None, :]
    x_ptrs = x_ptr + tokens[None, :] * K + offs_k[:, None]
    w_scale_ptr = w_scales_ptr + expert * ((N + BLOCK_K - 1) // BLOCK_K) * BLOCKS
    # Without a mask, since there is room; what a tile reads past its own pairs is never stored.
    x_scale_ptrs = x_scales_ptr + first_place + tl.arange(0, WIDTH)
    is_odd = (tl.arange(0, BLOCK_M) // 8 % 2 == 1)[:, None]
    total = tl.zeros((BLOCK_M, WIDTH), dtype=tl.float32)
    for block in tl.range(0, BLOCKS):
        even_scale = tl.load(w_scale_ptr + even_block * BLOCKS + block)
        odd_scale = tl.load(w_scale_ptr + odd_block * BLOCKS + block)
        x_scales = tl.load(x_scale_ptrs)
        if K % BLOCK_K == 0:
            w = tl.load(w_ptrs)
            x = tl.load(x_ptrs, mask=live[None, :], other=0.0)
        else:
            inside = offs_k < K - block * BLOCK_K
            w = tl.load(w_ptrs, mask=inside[None, :], other=0.0)
            x = tl.load(x_ptrs, mask=live[None, :] & inside[:, None], other=0.0)
        total += tl.dot(w, x) * x_scales[None, :] * tl.where(is_odd, odd_scale, even_scale)
        w_ptrs += BLOCK_K
        x_ptrs += BLOCK_K
        x_scale_ptrs += x_scales_stride
    return total
