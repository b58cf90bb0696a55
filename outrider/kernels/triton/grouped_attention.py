"""Grouped-query attention: several query heads share a key and a value head of the cached rows."""

import math
from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.attention_plan import AttentionPlan
from outrider.kernels.triton.attention_splits import (
    FIELDS,
    ROWS,
    SPLIT,
    Partials,
    combine_splits_launch,
    find_tile,
    fold,
    load_columns,
    pieces_before,
    soften,
    tile_rows,
    tile_splits,
    token_rows,
    walks_splits,
)
from outrider.kernels.triton.launch import Argument, Launch
from outrider.kernels.triton.tiles import NUM_PROCESSORS, padded_size


def grouped_attention(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Queries [T, H, P] over cache rows [slots, 2 G P] (keys, then values) -> [T, H, P]."""
    mixed = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for launch in grouped_attention_launches(query.contiguous(), cache, plan, scale, mixed):
        launch.run()
    return mixed


def grouped_attention_launches(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, mixed: Tensor
) -> Iterator[Launch]:
    """What writes mixed [T, H, P], given contiguous tensors."""
    forms = walked_launches if walks_splits(plan, mixed, num_parts=1) else pieced_launches
    return forms(query, cache, plan, scale, mixed)


def walked_launches(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, mixed: Tensor
) -> Iterator[Launch]:
    """A program for each key head of a tile, which takes one split after another."""
    yield Launch(
        kernel=walk_grouped_kernel,
        grid=(plan.shape.num_key_heads, plan.num_tiles),
        arguments={**_arguments(query, cache, plan, scale), "mixed_ptr": mixed},
        constants=_constants(query, plan),
        num_warps=_num_warps(query),
    )


def pieced_launches(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, mixed: Tensor
) -> Iterator[Launch]:
    """As many programs as run at a time share the pieces of all key heads; then splits are combined."""
    partials = Partials.allocate(mixed, plan, num_parts=1)
    G, L = plan.shape.num_key_heads, plan.num_tiles
    yield Launch(
        kernel=grouped_pieces_kernel,
        grid=(G, min(-(-NUM_PROCESSORS // G), L * plan.num_splits)),
        arguments={
            **_arguments(query, cache, plan, scale),
            "tops_ptr": partials.tops,
            "totals_ptr": partials.totals,
            "partials_ptr": partials.mixed,
            "num_splits": plan.num_splits,
            "L": L,
        },
        constants={**_constants(query, plan), "L_PADDED": padded_size(L)},
        num_warps=_num_warps(query),
    )
    yield combine_splits_launch(partials, plan, mixed, padded_size(plan.shape.value_width))


def _arguments(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> dict[str, Argument]:
    return {
        "query_ptr": query,
        "cache_ptr": cache,
        "tiles_ptr": plan.tiles,
        "tables_ptr": plan.block_tables,
        "scale": scale * math.log2(math.e),
        "table_width": plan.block_tables.shape[1],
    }


def _constants(query: Tensor, plan: AttentionPlan) -> dict[str, int]:
    P = query.shape[2]
    return {
        "R": plan.shape.num_queries_per_key,
        "G": plan.shape.num_key_heads,
        "P": P,
        "P_PADDED": max(16, padded_size(P)),
        "BLOCK_SIZE": plan.block_size,
        "BLOCK_N": 64 if query.itemsize == 2 else 32,
    }


def _num_warps(query: Tensor) -> int:
    return 4 if query.shape[2] * query.itemsize <= 256 else 8


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
