"""Cuts the attention of a step into equal pieces of work, once for all layers.

A tile is TILE_ROWS (token, head) rows of one sequence; a split is SPLIT_TOKENS tokens of its context, counted
from the start of the sequence. A piece is one tile against one split; every piece is the same two products:

    context     0 ........ 127 | 128 ........ 255 | 256 ...          tiles of a span, heads within tokens
    tile 0      piece          | piece             | masked beyond the row's own position
    tile 1      piece          | piece             | piece

Which pieces a row meets depends on its position alone. Pieces are ordered by split, then tile, and tiles by
falling number of splits, so that the pieces of one split are one slice over the first tiles.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.kernels.torch.linear import TILE_ROWS
from outrider.model.batch import Span

SPLIT_TOKENS = 128
MAX_PIECES = 512  # per group of tiles: bounds the memory of gathered keys


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Rows [first, last] of one span's (token, head) rows, and what they may look at."""

    span: int
    first: int
    last: int
    num_splits: int


@dataclass(frozen=True, kw_only=True)
class TileGroup:
    """Tiles that are computed together; L tiles, W pieces."""

    rows: Tensor  # [L, TILE_ROWS] row of each place; short tiles repeat their last row
    piece_tiles: Tensor  # [W]
    piece_splits: Tensor  # [W]
    piece_slots: Tensor  # [W, S] cache slot of each token; past the context the sequence's first slot
    hidden: Tensor  # [W, TILE_ROWS, S] True where a token lies after the row's position
    split_sizes: list[int]  # pieces of split 0, 1, ...


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """The whole step's attention."""

    groups: list[TileGroup]
    num_queries_per_key: int


def plan_attention(
    spans: Sequence[Span], positions: Tensor, block_size: int, num_queries_per_key: int
) -> AttentionPlan:
    """Lay out the attention of a step once for all layers."""
    tiles = [tile for i, span in enumerate(spans) for tile in span_tiles(i, span, num_queries_per_key)]
    tiles.sort(key=lambda tile: -tile.num_splits)
    blocks = block_table(spans)
    row_positions = positions.repeat_interleave(num_queries_per_key)
    groups = [make_group(group, spans, blocks, row_positions, block_size) for group in grouped(tiles)]
    return AttentionPlan(groups=groups, num_queries_per_key=num_queries_per_key)


def span_tiles(index: int, span: Span, num_queries_per_key: int) -> Iterator[Tile]:
    start = span.first_row * num_queries_per_key
    end = start + span.num_rows * num_queries_per_key
    first_position = span.num_context - span.num_rows
    for first in range(start, end, TILE_ROWS):
        last = min(first + TILE_ROWS, end) - 1
        position = first_position + (last - start) // num_queries_per_key
        yield Tile(span=index, first=first, last=last, num_splits=position // SPLIT_TOKENS + 1)


def grouped(tiles: Sequence[Tile]) -> Iterator[list[Tile]]:
    """Consecutive tiles, as many as MAX_PIECES allows and at least one."""
    group: list[Tile] = []
    for tile in tiles:
        if group and sum(t.num_splits for t in group) + tile.num_splits > MAX_PIECES:
            yield group
            group = []
        group.append(tile)
    if group:
        yield group


def block_table(spans: Sequence[Span]) -> Tensor:
    """Block ids of all spans side by side: [B, most blocks]."""
    rows = [torch.as_tensor(span.block_ids, dtype=torch.int64) for span in spans]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def make_group(
    tiles: Sequence[Tile], spans: Sequence[Span], blocks: Tensor, row_positions: Tensor, block_size: int
) -> TileGroup:
    first = torch.tensor([tile.first for tile in tiles])
    last = torch.tensor([tile.last for tile in tiles])
    span = torch.tensor([tile.span for tile in tiles])
    context = torch.tensor([spans[tile.span].num_context for tile in tiles])
    rows = torch.minimum(first[:, None] + torch.arange(TILE_ROWS), last[:, None])

    split_sizes = [sum(tile.num_splits > j for tile in tiles) for j in range(tiles[0].num_splits)]
    piece_tiles = torch.cat([torch.arange(size) for size in split_sizes])
    piece_splits = torch.arange(len(split_sizes)).repeat_interleave(torch.tensor(split_sizes))

    tokens = piece_splits[:, None] * SPLIT_TOKENS + torch.arange(SPLIT_TOKENS)  # [W, S]
    hidden = tokens[:, None] > row_positions[rows][piece_tiles][..., None]
    known = torch.where(tokens < context[piece_tiles, None], tokens, 0)
    piece_blocks = blocks[span[piece_tiles, None], known // block_size]
    return TileGroup(
        rows=rows,
        piece_tiles=piece_tiles,
        piece_splits=piece_splits,
        piece_slots=piece_blocks * block_size + known % block_size,
        hidden=hidden,
        split_sizes=split_sizes,
    )
