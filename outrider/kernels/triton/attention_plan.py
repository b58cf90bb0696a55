"""Cuts the attention of a step into tiles of rows, once for all layers.

A tile is up to TILE_ROWS (token, head) rows of one sequence, all of which read the same key head, heads
fastest. A split is SPLIT_TOKENS tokens of a context, counted from its start; a piece is one tile against one
split:

    context     0 ........ 255 | 256 ........ 511 | 512 ...
    tile 0      piece          | piece             | nothing: after the tile's last row
    tile 1      piece          | piece             | piece

Which splits a row has depends on its position alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from outrider.kernels.interface import AttentionShape
from outrider.model.batch import Span

TILE_ROWS = 64  # the rows of a tensor-core product on Hopper; no row shows in another one's bits
SPLIT_TOKENS = 256
TILE_FIELDS = 7


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """The whole step's attention; its tensors may be replaced by others of the same shapes.

    The shapes depend on the numbers of rows and of spans and on the longest list of blocks alone, and grids
    depend on the shapes: L is what that many rows and spans have at most, and tiles beyond the real ones have
    no splits.
    """

    tiles: Tensor  # [L + 1, TILE_FIELDS] int32, as in tile_table; of the last one only first_piece counts
    block_tables: Tensor  # [B, W] int32
    positions: Tensor  # [T] int64
    shape: AttentionShape
    block_size: int

    @property
    def num_tiles(self) -> int:
        """At most so many."""
        return len(self.tiles) - 1

    @property
    def num_splits(self) -> int:
        """At most so many of any row."""
        return -(-self.block_tables.shape[1] * self.block_size // SPLIT_TOKENS)


def plan_attention(
    spans: Sequence[Span], positions: Tensor, block_size: int, shape: AttentionShape
) -> AttentionPlan:
    """Lay out the attention of a step once for all layers."""
    return AttentionPlan(
        tiles=tile_table(spans, len(positions), shape.num_queries_per_key).to(positions.device),
        block_tables=block_tables(spans).to(positions.device),
        positions=positions,
        shape=shape,
        block_size=block_size,
    )


def tile_table(spans: Sequence[Span], num_tokens: int, num_heads: int) -> Tensor:
    """[L + 1, TILE_FIELDS]: one line for each tile, num_heads rows for each token.

    Its fields: sequence | first token of the sequence in the batch | first row of the tile in the sequence |
    end of the sequence's rows | position of the sequence's first token | splits of the tile's last row |
    pieces of all tiles before.
    """
    sequences = [(span.first_row, span.num_rows, span.num_context) for span in spans]
    first_tokens, sizes, contexts = np.array(sequences, dtype=np.int64).reshape(-1, 3).T
    counts = -(-sizes * num_heads // TILE_ROWS)
    owners = np.repeat(np.arange(len(spans)), counts)
    first_rows = (np.arange(len(owners)) - (counts.cumsum() - counts)[owners]) * TILE_ROWS
    ends = (sizes * num_heads)[owners]
    first_positions = (contexts - sizes)[owners]
    last_rows = np.minimum(first_rows + TILE_ROWS, ends) - 1
    num_splits = (first_positions + last_rows // num_heads) // SPLIT_TOKENS + 1

    # In numpy: torch takes twice as long for so few numbers, in every step.
    tiles = np.zeros((num_tokens * num_heads // TILE_ROWS + len(spans) + 1, TILE_FIELDS), dtype=np.int32)
    fields = (owners, first_tokens[owners], first_rows, ends, first_positions, num_splits)
    tiles[: len(owners), : len(fields)] = np.stack(fields, 1)
    tiles[1:, -1] = tiles[:-1, -2].cumsum()
    return torch.from_numpy(tiles)


def block_tables(spans: Sequence[Span]) -> Tensor:
    """[B, W]: the blocks of each sequence, zeros behind them."""
    tables = np.zeros((len(spans), max((len(span.block_ids) for span in spans), default=0)), dtype=np.int32)
    for table, span in zip(tables, spans, strict=True):
        table[: len(span.block_ids)] = span.block_ids
    return torch.from_numpy(tables)
