"""Grouped-query attention: several query heads share a key and a value head of the cached rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.attention_launches import Attention, inner_tokens
from outrider.kernels.triton.attention_plan import AttentionPlan
from outrider.kernels.triton.attention_splits import (
    FIELDS,
    ROWS,
    SPLIT,
    find_tile,
    fold,
    load_columns,
    pieces_before,
    soften,
    tile_rows,
    tile_splits,
    token_rows,
)
from outrider.kernels.triton.tiles import padded_size


def grouped_attention(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Queries [T, H, P] over cache rows [slots, 2 G P] (keys, then values) -> [T, H, P]."""
    mixed = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in grouped_layer(query, cache, plan, scale, mixed).launches():
        launch.run()
    return mixed


def grouped_layer(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, mixed: Tensor
) -> Attention:
    """What writes mixed [T, H, P]: a program for each key head of a tile."""
    P, shape = query.shape[2], plan.shape
    return Attention(
        walk_kernel=walk_grouped_kernel,
        pieces_kernel=grouped_pieces_kernel,
        queries={"query_ptr": query.contiguous()},
        cache=cache,
        plan=plan,
        scale=scale,
        mixed=mixed,
        num_programs=shape.num_key_heads,
        num_parts=1,
        part_width=padded_size(shape.value_width),
        constants={
            "R": shape.num_queries_per_key,
            "G": shape.num_key_heads,
            "P": P,
            "P_PADDED": max(16, padded_size(P)),
            "BLOCK_SIZE": plan.block_size,
            "BLOCK_N": inner_tokens(query),
        },
        num_warps=4 if P * query.itemsize <= 256 else 8,
    )


@triton.jit(do_not_specialize=["table_width"])
def walk_grouped_kernel(
    query_ptr: tl.tensor,
    cache_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    tables_ptr: tl.tensor,
    scale: float,
    table_width: int,
    mixed_ptr: tl.tensor,
    R: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    P_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """mixed[t, h] = sum over tokens n up to t's of softmax(scale * <query t h, key n g>) * value n g.

    query and mixed [T, H, P] with H = G * R, g = h / R; cache [slots, 2, G, P]; tiles and tables as in
    AttentionPlan. The cache is finite.
    """
    group = tl.program_id(0)
    # The last tiles of a prompt have the most splits: they begin first.
    tile_ptr = tiles_ptr + (tl.num_programs(1) - 1 - tl.program_id(1)) * FIELDS
    num_splits = tile_splits(tile_ptr)
    if num_splits == 0:
        return
    token, head, position, _ = tile_rows(tile_ptr, R)
    columns = tl.arange(0, P_PADDED)
    row = ((token * G + group) * R + head).to(tl.int64)
    query = load_columns(query_ptr + row * P, columns, P, P_PADDED)
    blocks_ptr = tables_ptr + tl.load(tile_ptr) * table_width
    num_context = tl.max(position, 0) + 1
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, P_PADDED], tl.float32)
    for split in tl.range(0, num_splits, disable_licm=True):
        next_top, next_total, next_mixed = mix_split(
            query, position, group, cache_ptr, blocks_ptr, split, num_context, scale,
            G, P, P_PADDED, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
        top, total, mixed = fold(top, total, mixed, next_top, next_total, next_mixed)
    token, head, _, is_own = tile_rows(tile_ptr, R)
    row = ((token * G + group) * R + head).to(tl.int64)
    result = (mixed / total[:, None]).to(mixed_ptr.dtype.element_ty)
    mixed_ptrs = mixed_ptr + row[:, None] * P + columns[None, :]
    tl.store(mixed_ptrs, result, mask=is_own[:, None] & (columns < P)[None, :])


@triton.jit(do_not_specialize=["table_width", "num_splits", "L"])
def grouped_pieces_kernel(
    query_ptr: tl.tensor,
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
    R: tl.constexpr,
    G: tl.constexpr,
    P: tl.constexpr,
    P_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    L_PADDED: tl.constexpr,
) -> None:
    """What walk_grouped_kernel folds, by itself for each split s: tops[r, s], totals[r, s], partials[r, s].

    tops and totals [T * H, num_splits], partials [T * H, num_splits, P], the others as there.
    """
    group = tl.program_id(0)
    num_pieces = pieces_before(tiles_ptr + L * FIELDS)
    columns = tl.arange(0, P_PADDED)
    for piece in tl.range(tl.program_id(1), num_pieces, tl.num_programs(1), disable_licm=True):
        tile_ptr = tiles_ptr + find_tile(tiles_ptr, piece, L, L_PADDED) * FIELDS
        split = piece - pieces_before(tile_ptr)
        token, head, position, _ = tile_rows(tile_ptr, R)
        row = ((token * G + group) * R + head).to(tl.int64)
        query = load_columns(query_ptr + row * P, columns, P, P_PADDED)
        blocks_ptr = tables_ptr + tl.load(tile_ptr) * table_width
        num_context = tl.max(position, 0) + 1
        top, total, mixed = mix_split(
            query, position, group, cache_ptr, blocks_ptr, split, num_context, scale,
            G, P, P_PADDED, BLOCK_SIZE, BLOCK_N,
        )  # fmt: skip
        token, head, _, is_own = tile_rows(tile_ptr, R)
        place = ((token * G + group) * R + head).to(tl.int64) * num_splits + split
        tl.store(tops_ptr + place, top, mask=is_own)
        tl.store(totals_ptr + place, total, mask=is_own)
        partials_ptrs = partials_ptr + place[:, None] * P + columns[None, :]
        tl.store(partials_ptrs, mixed, mask=is_own[:, None] & (columns < P)[None, :])


@triton.jit
def mix_split(
    query: tl.tensor,
    position: tl.tensor,
    group: tl.tensor,
    cache_ptr: tl.tensor,
    blocks_ptr: tl.tensor,
    split: tl.tensor,
    num_context: tl.tensor,
    scale: float,
    G: tl.constexpr,
    P: tl.constexpr,
    P_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Maximum, sum and mixture of one split for every row of a tile."""
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, P_PADDED], tl.float32)
    columns = tl.arange(0, P_PADDED)
    end = tl.minimum(split * SPLIT + SPLIT, num_context)
    for first in tl.range(split * SPLIT, end, BLOCK_N, num_stages=3, disallow_acc_multi_buffer=True):
        tokens = first + tl.arange(0, BLOCK_N)
        rows = cache_ptr + group * P + token_rows(blocks_ptr, tokens, end, 2 * G * P, BLOCK_SIZE)
        keys = load_columns(rows, columns, P, P_PADDED)
        values = load_columns(rows + G * P, columns, P, P_PADDED)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        visible = tokens[None, :] <= position[:, None]
        weights, factor, top, total = soften(scores, visible, top, total, scale)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * factor[:, None], input_precision="ieee")
    return top, total, mixed
