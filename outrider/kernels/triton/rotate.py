"""Rotary position embedding (arXiv 2104.09864) of already computed angles."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.interface import Angles
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import num_tiles, padded_size

BLOCK_H = 16


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn the pairs of x [T, H, P]; the result holds first members, then second ones."""
    turned = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rotate_launch(x, angles, turned).run()
    return turned


def rotate_launch(x: Tensor, angles: Angles, turned: Tensor) -> Launch:
    """Heads [T, H, P] of which the last dimension is dense; turned is contiguous."""
    T, H, P = x.shape
    return Launch(
        kernel=rotate_kernel,
        grid=(T, num_tiles(H, BLOCK_H)),
        arguments={
            "x_ptr": x,
            "cos_ptr": angles.cos,
            "sin_ptr": angles.sin,
            "turned_ptr": turned,
            "x_stride": x.stride(0),
            "x_head_stride": x.stride(1),
            "H": H,
        },
        constants=pair_constants(P, angles) | {"BLOCK_H": BLOCK_H},
    )


def pair_constants(P: int, angles: Angles) -> dict[str, int | bool]:
    """How heads of P elements are laid out."""
    return {"P": P, "BLOCK_PAIRS": padded_size(P // 2), "INTERLEAVED": angles.interleaved}


@triton.jit
def rotate_kernel(
    x_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    x_stride: int,
    x_head_stride: int,
    H: int,
    P: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """Turns BLOCK_H heads of one token: x [T, H, P], cos and sin [T, P / 2] -> turned [T, H, P]."""
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    rotate_heads(
        x_ptr + row * x_stride + heads * x_head_stride,
        cos_ptr + row * (P // 2),
        sin_ptr + row * (P // 2),
        turned_ptr + (row * H + heads) * P,
        heads < H,
        P,
        BLOCK_PAIRS,
        INTERLEAVED,
        None,
    )


@triton.jit
def rotate_heads(
    x_ptrs: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    turned_ptrs: tl.tensor,
    mask: tl.tensor,
    P: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:
    """(first * cos - second * sin, second * cos + first * sin) of the pairs of heads of one token, in fp32.

    Heads begin at x_ptrs [R, 1] and go to turned_ptrs [R, 1], under mask [R, 1]. Where LARGEST is given,
    what is written is finite.
    """
    pairs = tl.arange(0, BLOCK_PAIRS)[None, :]
    inside = pairs < P // 2
    mask = mask & inside
    first_ptrs = x_ptrs + (2 * pairs if INTERLEAVED else pairs)
    first = tl.load(first_ptrs, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(first_ptrs + (1 if INTERLEAVED else P // 2), mask=mask, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + pairs, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + pairs, mask=inside, other=0.0)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    if LARGEST is not None:
        turned_first = finite(turned_first, LARGEST)
        turned_second = finite(turned_second, LARGEST)
    dtype: tl.constexpr = turned_ptrs.dtype.element_ty
    tl.store(turned_ptrs + pairs, turned_first.to(dtype), mask=mask)
    tl.store(turned_ptrs + P // 2 + pairs, turned_second.to(dtype), mask=mask)


@triton.jit
def finite(x: tl.tensor, LARGEST: tl.constexpr) -> tl.tensor:
    """x with 0 for NaN and the largest number of either sign for what lies beyond."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), 0.0)
