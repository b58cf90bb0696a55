"""What attention kernels share: the rows of a tile, the softmax of a split, and the sum over splits.

A split's result is a maximum, a sum and a mixture of values for each row; splits are added from left to
right. One program may do both, or many programs the splits and `combine_splits_kernel` the sum: the bits are
the same, for both take `fold`. Multiply-adds are spelled out, so that no compiler chooses where they are.
Exponents have base 2; log2(e) is part of the scale.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider.kernels.triton.attention_plan import SPLIT_TOKENS, TILE_FIELDS, TILE_ROWS, AttentionPlan
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import num_tiles, padded_size

COMBINED_HEADS = 4
COMBINED_COLUMNS = 128
FIELDS = tl.constexpr(TILE_FIELDS)
SPLIT = tl.constexpr(SPLIT_TOKENS)
ROWS = tl.constexpr(TILE_ROWS)


@dataclass(frozen=True, kw_only=True)
class Partials:
    """What is known of every row after each of its splits.

    Where programs share the width of a row, each of them has a maximum and a sum of its own.
    """

    tops: Tensor  # [rows, splits, parts] fp32
    totals: Tensor  # [rows, splits, parts] fp32
    mixed: Tensor  # [rows, splits, width] fp32

    @classmethod
    def allocate(cls, mixed: Tensor, plan: AttentionPlan, num_parts: int) -> "Partials":
        """For the rows of a result [T, H, width]."""
        T, H, width = mixed.shape

        def empty(size: int) -> Tensor:
            return torch.empty(T * H, plan.num_splits, size, dtype=torch.float32, device=mixed.device)

        return cls(tops=empty(num_parts), totals=empty(num_parts), mixed=empty(width))


@triton.jit
def pieces_before(tile_ptr: tl.tensor) -> tl.tensor:
    """How many pieces the tiles before have."""
    return tl.load(tile_ptr + (FIELDS - 1))


@triton.jit
def tile_splits(tile_ptr: tl.tensor) -> tl.tensor:
    """How many splits a tile has: none if it lies behind the real ones."""
    return tl.load(tile_ptr + (FIELDS - 2))


@triton.jit
def find_tile(tiles_ptr: tl.tensor, piece: tl.tensor, L: int, L_PADDED: tl.constexpr) -> tl.tensor:
    """The tile that a piece belongs to: the last one that has no more pieces before it."""
    offs = tl.arange(0, L_PADDED)
    num_before = tl.load(tiles_ptr + offs * FIELDS + (FIELDS - 1), mask=offs < L, other=2147483647)
    return tl.sum((num_before <= piece).to(tl.int32), 0) - 1


@triton.jit
def tile_rows(tile_ptr: tl.tensor, H: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """The token, head and position of a tile's rows, and which are its own: others repeat the last one.

    Asked again after a loop it is computed again, for its answers must not take the loop's registers.
    """
    first_token = tl.load(tile_ptr + 1, volatile=True)
    first_row = tl.load(tile_ptr + 2, volatile=True)
    end = tl.load(tile_ptr + 3, volatile=True)
    first_position = tl.load(tile_ptr + 4, volatile=True)
    offs = first_row + tl.arange(0, ROWS)
    rows = tl.minimum(offs, end - 1)
    return first_token + rows // H, rows % H, first_position + rows // H, offs < end


@triton.jit
def token_rows(
    blocks_ptr: tl.tensor, tokens: tl.tensor, end: tl.tensor, stride: int, BLOCK_SIZE: tl.constexpr
) -> tl.tensor:
    """Where the cached rows of tokens begin; of tokens from `end` on those of some other token."""
    blocks = tl.load(blocks_ptr + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    return (blocks.to(tl.int64) * BLOCK_SIZE + tokens % BLOCK_SIZE) * stride


@triton.jit
def load_columns(ptrs: tl.tensor, columns: tl.tensor, WIDTH: tl.constexpr, PADDED: tl.constexpr) -> tl.tensor:
    """Columns of rows that are WIDTH wide, zeros behind; PADDED columns are asked for in all."""
    if WIDTH == PADDED:
        return tl.load(ptrs[:, None] + columns[None, :])
    return tl.load(ptrs[:, None] + columns[None, :], mask=(columns < WIDTH)[None, :], other=0.0)


@triton.jit
def soften(
    scores: tl.tensor, visible: tl.tensor, top: tl.tensor, total: tl.tensor, scale: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Weights of scores [M, N], the factor of what was added before, and the new maximum and sum [M]."""
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    # A row that sees nothing yet has exact zeros.
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    factor = tl.exp2(top - finite_top)
    weights = tl.exp2(tl.fma(scores, scale, -finite_top[:, None]))
    return weights, factor, new_top, tl.fma(total, factor, tl.sum(weights, 1))


@triton.jit
def fold(
    top: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    next_top: tl.tensor,
    next_total: tl.tensor,
    next_mixed: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds the next split to those before it: [M], [M] and [M, N].

    A split without a visible token, whose maximum is minus infinity, changes nothing; the first has one.
    """
    new_top = tl.maximum(top, next_top)
    factor = tl.exp2(top - new_top)
    next_factor = tl.exp2(next_top - new_top)
    total = tl.fma(next_total, next_factor, total * factor)
    mixed = tl.fma(next_mixed, next_factor[:, None], mixed * factor[:, None])
    return new_top, total, mixed


def combine_splits_launch(partials: Partials, plan: AttentionPlan, mixed: Tensor, part_width: int) -> Launch:
    """mixed [T, H, N] from the partial results of its rows."""
    T, H, N = mixed.shape
    BLOCK_H, BLOCK_N = min(COMBINED_HEADS, padded_size(H)), min(COMBINED_COLUMNS, part_width)
    return Launch(
        kernel=combine_splits_kernel,
        grid=(T, num_tiles(H, BLOCK_H), num_tiles(N, BLOCK_N)),
        arguments={
            "tops_ptr": partials.tops,
            "totals_ptr": partials.totals,
            "partials_ptr": partials.mixed,
            "positions_ptr": plan.positions,
            "mixed_ptr": mixed,
            "num_splits": plan.num_splits,
        },
        constants={
            "H": H,
            "N": N,
            "NUM_PARTS": partials.tops.shape[2],
            "PART_WIDTH": part_width,
            "BLOCK_H": BLOCK_H,
            "BLOCK_N": BLOCK_N,
        },
        num_warps=1,
    )


@triton.jit(do_not_specialize=["num_splits"])
def combine_splits_kernel(
    tops_ptr: tl.tensor,
    totals_ptr: tl.tensor,
    partials_ptr: tl.tensor,
    positions_ptr: tl.tensor,
    mixed_ptr: tl.tensor,
    num_splits: int,
    H: tl.constexpr,
    N: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    PART_WIDTH: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """mixed[r, n] = the fold of partials[r, s, n] over the splits s of row r, divided by its total.

    tops, totals [T * H, num_splits, NUM_PARTS], partials [T * H, num_splits, N], positions [T],
    mixed [T * H, N]. A program takes heads of one token, which have the same splits.
    """
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    columns = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2) * BLOCK_N // PART_WIDTH
    # Heads beyond the last one repeat it.
    rows = token * H + tl.minimum(heads, H - 1)
    own_splits = (tl.load(positions_ptr + token) // SPLIT + 1).to(tl.int32)
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    mixed = tl.zeros([BLOCK_H, BLOCK_N], tl.float32)
    for split in tl.range(0, own_splits, num_stages=8):
        places = rows * num_splits + split
        next_top = tl.load(tops_ptr + places * NUM_PARTS + part)
        next_total = tl.load(totals_ptr + places * NUM_PARTS + part)
        next_mixed = load_columns(partials_ptr + places * N, columns, N, tl.cdiv(N, BLOCK_N) * BLOCK_N)
        top, total, mixed = fold(top, total, mixed, next_top, next_total, next_mixed)
    result = (mixed / total[:, None]).to(mixed_ptr.dtype.element_ty)
    mask = (heads < H)[:, None] & (columns < N)[None, :]
    tl.store(mixed_ptr + rows[:, None] * N + columns[None, :], result, mask=mask)
