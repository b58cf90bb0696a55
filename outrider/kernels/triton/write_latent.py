"""What a token leaves in the cache of multi-head latent attention, and its queries turned, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.interface import LatentNorm, Place
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.rms_norm import normalized
from outrider.kernels.triton.rotate import BLOCK_H, finite, pair_constants, rotate_heads
from outrider.kernels.triton.tiles import num_tiles, padded_size


def write_latent(row: Tensor, query: Tensor, norm: LatentNorm, place: Place) -> Tensor:
    """Write rows [T, C + P], latents normalised and keys turned; returns the queries [T, H, P] turned."""
    turned = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    write_latent_launch(row, query, norm, place, turned).run()
    return turned


def write_latent_launch(row: Tensor, query: Tensor, norm: LatentNorm, place: Place, turned: Tensor) -> Launch:
    """Rows [T, C + P] and queries [T, H, P] of which the last dimension is dense; turned is contiguous."""
    T, H, P = query.shape
    C = norm.weight.shape[0]
    return Launch(
        kernel=write_latent_kernel,
        grid=(T, 1 + num_tiles(H, BLOCK_H)),
        arguments={
            "row_ptr": row,
            "query_ptr": query,
            "weight_ptr": norm.weight,
            "cos_ptr": place.angles.cos,
            "sin_ptr": place.angles.sin,
            "slots_ptr": place.slots,
            "cache_ptr": place.cache,
            "turned_ptr": turned,
            "row_stride": row.stride(0),
            "query_stride": query.stride(0),
            "query_head_stride": query.stride(1),
            "epsilon": norm.epsilon,
            "H": H,
        },
        constants=pair_constants(P, place.angles)
        | {
            "C": C,
            "BLOCK_C": padded_size(C),
            "BLOCK_H": BLOCK_H,
            "LARGEST": torch.finfo(place.cache.dtype).max,
        },
    )


@triton.jit
def write_latent_kernel(
    row_ptr: tl.tensor,
    query_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    cos_ptr: tl.tensor,
    sin_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    row_stride: int,
    query_stride: int,
    query_head_stride: int,
    epsilon: float,
    H: int,
    P: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_H: tl.constexpr,
    LARGEST: tl.constexpr,
) -> None:
    """cache[slots[t]] = (normalized(row[t, :C]), rotated(row[t, C:])); turned[t] = rotated(query[t]).

    row [T, C + P], query [T, H, P], cos and sin [T, P / 2], slots [T] int64, cache [slots, C + P]. Of the
    programs of a token the first writes the cache, each other one turns BLOCK_H heads.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    cos_ptr += token * (P // 2)
    sin_ptr += token * (P // 2)
    if part == 0:
        row_ptr += token * row_stride
        cache_ptr += tl.load(slots_ptr + token) * (C + P)
        offs = tl.arange(0, BLOCK_C)
        latent = tl.load(row_ptr + offs, mask=offs < C, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + offs, mask=offs < C, other=0.0)
        latent = finite(normalized(latent, weight, epsilon, C), LARGEST)
        tl.store(cache_ptr + offs, latent.to(cache_ptr.dtype.element_ty), mask=offs < C)
        one = tl.arange(0, 1)[:, None]
        key_ptrs, cached_ptrs = row_ptr + C + one, cache_ptr + C + one
        rotate_heads(key_ptrs, cos_ptr, sin_ptr, cached_ptrs, one == 0, P, BLOCK_PAIRS, INTERLEAVED, LARGEST)
    else:
        heads = (part - 1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
        rotate_heads(
            query_ptr + token * query_stride + heads * query_head_stride,
            cos_ptr,
            sin_ptr,
            turned_ptr + (token * H + heads) * P,
            heads < H,
            P,
            BLOCK_PAIRS,
            INTERLEAVED,
            None,
        )
