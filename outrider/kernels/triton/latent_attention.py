"""Absorbed multi-head latent attention: every head reads the same cached row, both as key and as value.

Two programs share a tile, each for half of the values' width: see latent_split.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.attention_launches import Attention, inner_tokens
from outrider.kernels.triton.attention_plan import AttentionPlan
from outrider.kernels.triton.attention_splits import (
    FIELDS,
    ROWS,
    find_tile,
    fold,
    pieces_before,
    tile_rows,
    tile_splits,
)
from outrider.kernels.triton.latent_split import load_queries, mix_split
from outrider.kernels.triton.tiles import padded_size


def latent_attention(
    latent: Tensor, turned: Tensor, cache: Tensor, plan: AttentionPlan, scale: float
) -> Tensor:
    """Absorbed MLA: queries [T, H, C] and [T, H, P] over cache rows [slots, C + P] -> [T, H, C]."""
    mixed = torch.empty(latent.shape, dtype=latent.dtype, device=latent.device)
    for launch in latent_layer(latent, turned, cache, plan, scale, mixed).launches():
        launch.run()
    return mixed


def latent_layer(
    latent: Tensor, turned: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, mixed: Tensor
) -> Attention:
    """What writes mixed [T, H, C]: two programs share a tile, each for half of the width."""
    _, H, C = latent.shape
    P, half = turned.shape[2], max(16, padded_size(C) // 2)
    return Attention(
        walk_kernel=walk_latent_kernel,
        pieces_kernel=latent_pieces_kernel,
        queries={"latent_ptr": latent.contiguous(), "turned_ptr": turned.contiguous()},
        cache=cache,
        plan=plan,
        scale=scale,
        mixed=mixed,
        num_programs=2,
        num_parts=2,
        part_width=half,
        constants={
            "H": H,
            "C": C,
            "P": P,
            "HALF": half,
            "P_PADDED": max(16, padded_size(P)),
            "BLOCK_SIZE": plan.block_size,
            "BLOCK_N": inner_tokens(latent),
        },
        num_warps=8,
        # On Hopper the second four warps would compute the scores again: a product takes 64 rows of four.
        num_warps_of_pieces_on={90: 4},
    )


@triton.jit(do_not_specialize=["table_width"])
def walk_latent_kernel(
    latent_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    scale: float,
    table_width: int,
    mixed_ptr: tl.tensor,
    H: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    HALF: tl.constexpr,
    P_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """mixed[r] = sum over tokens n up to r's position of softmax(scale * <query r, key n>) * value n.

    latent [T * H, C], turned [T * H, P], cache [slots, C + P] (a key is a row, a value its first C elements),
    mixed [T * H, C]; tiles and tables as in AttentionPlan. The cache is finite.
    """
    half = tl.program_id(0)
    # The last tiles of a prompt have the most splits: they begin first.
    tile_ptr = tiles_ptr + (tl.num_programs(1) - 1 - tl.program_id(1)) * FIELDS
    num_splits = tile_splits(tile_ptr)
    if num_splits == 0:
        return
    token, head, position, _ = tile_rows(tile_ptr, H)
    own, other, keys = load_queries(latent_ptr, turned_ptr, token * H + head, half, C, P, HALF, P_PADDED)
    blocks_ptr = tables_ptr + tl.load(tile_ptr) * table_width
    num_context = tl.max(position, 0) + 1
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, HALF], tl.float32)
    for split in tl.range(0, num_splits, disable_licm=True):
        next_top, next_total, next_mixed = mix_split(
            own, other, keys, position, half, cache_ptr, blocks_ptr, split, num_context, scale,
            C, P, HALF, P_PADDED, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
        top, total, mixed = fold(top, total, mixed, next_top, next_total, next_mixed)
    token, head, _, is_own = tile_rows(tile_ptr, H)
    columns = half * HALF + tl.arange(0, HALF)
    mixed_ptrs = mixed_ptr + (token * H + head).to(tl.int64)[:, None] * C + columns[None, :]
    result = (mixed / total[:, None]).to(mixed_ptr.dtype.element_ty)
    tl.store(mixed_ptrs, result, mask=is_own[:, None] & (columns < C)[None, :])


@triton.jit(do_not_specialize=["table_width", "num_splits", "L"])
def latent_pieces_kernel(
    latent_ptr: tl.tensor,
    turned_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    scale: float,
    table_width: int,
    tops_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    num_splits: int,
    L: int,
    H: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    HALF: tl.constexpr,
    P_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    L_PADDED: tl.constexpr,
) -> None:
    """What walk_latent_kernel folds, by itself for each split s: tops[r, s, half], totals, partials[r, s].

    tops and totals [T * H, num_splits, 2], partials [T * H, num_splits, C], the others as there.
    """
    half = tl.program_id(0)
    num_pieces = pieces_before(tiles_ptr + L * FIELDS)
    for piece in tl.range(tl.program_id(1), num_pieces, tl.num_programs(1), disable_licm=True):
        tile_ptr = tiles_ptr + find_tile(tiles_ptr, piece, L, L_PADDED) * FIELDS
        split = piece - pieces_before(tile_ptr)
        token, head, position, _ = tile_rows(tile_ptr, H)
        own, other, keys = load_queries(latent_ptr, turned_ptr, token * H + head, half, C, P, HALF, P_PADDED)
        blocks_ptr = tables_ptr + tl.load(tile_ptr) * table_width
        num_context = tl.max(position, 0) + 1
        top, total, mixed = mix_split(
            own, other, keys, position, half, cache_ptr, blocks_ptr, split, num_context, scale,
            C, P, HALF, P_PADDED, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
        token, head, _, is_own = tile_rows(tile_ptr, H)
        place = (token * H + head).to(tl.int64) * num_splits + split
        tl.store(tops_ptr + place * 2 + half, top, mask=is_own)
        tl.store(totals_ptr + place * 2 + half, total, mask=is_own)
        columns = half * HALF + tl.arange(0, HALF)
        partials_ptrs = partials_ptr + place[:, None] * C + columns[None, :]
        tl.store(partials_ptrs, mixed, mask=is_own[:, None] & (columns < C)[None, :])
