"""Cuts the attention of a step into equal pieces of work, once for all layers.

A tile is a run of (token, head) rows of one sequence; a split is SPLIT_TOKENS tokens of its context, counted
from the start of the sequence. A piece is one tile against one split; every piece is the same two products:

    context     0 ........ 127 | 128 ........ 255 | 256 ...          tiles of a span, heads within tokens
    tile 0      piece          | piece             | masked beyond the row's own position
    tile 1      piece          | piece             | piece

Which splits count for a row depends on its position alone; one that lies wholly after it adds exact zeros.
Pieces are ordered by split, then tile, and tiles by falling number of splits: the pieces of a split are one
slice, and belong to the first tiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.kernels.torch.tiles import cut_rows, equal_wide_rows, padded_rows
from outrider.model.batch import Span

SPLIT_TOKENS = 128
MAX_PIECES = 256  # of a group: bounds the memory of gathered keys


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A run of (token, head) rows of one span; the last tile of a span may be short."""

    span: int
    first_row: int
    last_row: int
    num_rows: int  # as computed
    num_splits: int


@dataclass(frozen=True, kw_only=True)
class TileGroup:
    """Tiles of M rows that are computed together: L tiles, W pieces."""

    rows: Tensor  # [L * M] row of each place; a short tile repeats its last row
    num_tiles: int
    piece_tiles: Tensor  # [W]
    piece_splits: Tensor  # [W]
    piece_blocks: Tensor  # [W * blocks of a split]; past the context any block, all of it hidden
    hidden: Tensor  # [W, 1, M, S] True where a token lies after the row's position
    split_sizes: list[int]  # pieces of split 0, 1, ...


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """The whole step's attention."""

    groups: list[TileGroup]
    shape: AttentionShape
    block_size: int


def plan_attention(
    spans: Sequence[Span], positions: Tensor, block_size: int, shape: AttentionShape
) -> AttentionPlan:
    """Lay out the attention of a step once for all layers."""
    if SPLIT_TOKENS % block_size:
        raise ValueError(f"block size {block_size} does not divide {SPLIT_TOKENS}")
    wide_rows = attention_wide_rows(shape)
    tiles = [t for i, span in enumerate(spans) for t in span_tiles(i, span, shape, wide_rows)]
    tiles.sort(key=lambda tile: (-tile.num_rows, -tile.num_splits))
    blocks = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(s.block_ids) for s in spans], batch_first=True)
    row_positions = positions.repeat_interleave(shape.num_queries_per_key)
    groups = [make_group(group, blocks, row_positions, block_size) for group in grouped(tiles)]
    return AttentionPlan(groups=groups, shape=shape, block_size=block_size)


def attention_wide_rows(shape: AttentionShape) -> tuple[int, ...]:
    """The wide tiles whose bits are those of TILE_ROWS in both products, alone and in a batch."""
    answers = [
        set(equal_wide_rows(weight))
        for num_pieces in (1, 3)
        for weight in (
            torch.empty(num_pieces, SPLIT_TOKENS, shape.key_width).transpose(1, 2),
            torch.empty(num_pieces, SPLIT_TOKENS, shape.value_width),
        )
    ]
    return tuple(sorted(set.intersection(*answers), reverse=True))


def span_tiles(index: int, span: Span, shape: AttentionShape, wide_rows: tuple[int, ...]) -> Iterator[Tile]:
    first_row = span.first_row * shape.num_queries_per_key
    end_row = first_row + span.num_rows * shape.num_queries_per_key
    first_position = span.num_context - span.num_rows
    row = first_row
    for size in cut_rows(padded_rows(end_row - first_row), wide_rows):
        last_row = min(row + size, end_row) - 1
        position = first_position + (last_row - first_row) // shape.num_queries_per_key
        num_splits = position // SPLIT_TOKENS + 1
        yield Tile(span=index, first_row=row, last_row=last_row, num_rows=size, num_splits=num_splits)
        row += size


def grouped(tiles: Sequence[Tile]) -> Iterator[list[Tile]]:
    """Consecutive tiles of equal size, as many as MAX_PIECES allows and at least one."""
    for _, equal in groupby(tiles, key=lambda tile: tile.num_rows):
        group: list[Tile] = []
        num_pieces = 0
        for tile in equal:
            if group and num_pieces + tile.num_splits > MAX_PIECES:
                yield group
                group, num_pieces = [], 0
            group.append(tile)
            num_pieces += tile.num_splits
        yield group


def make_group(tiles: Sequence[Tile], blocks: Tensor, row_positions: Tensor, block_size: int) -> TileGroup:
    """Spell out a group's indices; blocks [B, most blocks of a sequence]."""
    first_rows = torch.tensor([tile.first_row for tile in tiles])
    last_rows = torch.tensor([tile.last_row for tile in tiles])
    rows = torch.minimum(first_rows[:, None] + torch.arange(tiles[0].num_rows), last_rows[:, None])  # [L, M]
    spans = torch.tensor([tile.span for tile in tiles])

    split_sizes = [sum(tile.num_splits > j for tile in tiles) for j in range(tiles[0].num_splits)]
    piece_tiles = torch.cat([torch.arange(size) for size in split_sizes])
    piece_splits = torch.arange(len(split_sizes)).repeat_interleave(torch.tensor(split_sizes))

    tokens = piece_splits[:, None] * SPLIT_TOKENS + torch.arange(SPLIT_TOKENS)  # [W, S]
    block_places = tokens[:, ::block_size] // block_size
    block_places = block_places.where(block_places < blocks.shape[1], 0)
    return TileGroup(
        rows=rows.flatten(),
        num_tiles=len(tiles),
        piece_tiles=piece_tiles,
        piece_splits=piece_splits,
        piece_blocks=blocks[spans[piece_tiles, None], block_places].flatten(),
        hidden=(tokens[:, None] > row_positions[rows][piece_tiles][..., None])[:, None],
        split_sizes=split_sizes,
    )
