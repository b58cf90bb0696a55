"""How the attention of a step is cut into tiles."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.kernels.interface import AttentionShape
from outrider.kernels.triton.attention_plan import SPLIT_TOKENS, TILE_ROWS, AttentionPlan, plan_attention
from outrider.model.batch import Span
from tests.kernels.triton.scattered import BLOCK_SIZE, Scattered

SIZES = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 600)), min_size=1, max_size=5)


def make_plan(sizes: list[tuple[int, int]], num_heads: int) -> AttentionPlan:
    """The plan of sequences of (new rows, tokens before)."""
    spans, first_row = [], 0
    for rows, before in sizes:
        blocks = torch.arange(-(-(before + rows) // BLOCK_SIZE))
        spans.append(Span(first_row=first_row, num_rows=rows, num_context=before + rows, block_ids=blocks))
        first_row += rows
    positions = torch.cat([torch.arange(before, before + rows) for rows, before in sizes])
    shape = AttentionShape(num_queries_per_key=num_heads, num_key_heads=1, key_width=8, value_width=8)
    return plan_attention(spans, positions, BLOCK_SIZE, shape)


@given(SIZES, st.integers(1, 20))
def test_every_row_of_every_sequence_lies_in_one_tile(sizes, num_heads):
    plan = make_plan(sizes, num_heads)
    rows = []
    for _, first_token, first_row, end, *_ in plan.tiles[plan.tiles[:, 5] > 0].tolist():
        tile = range(first_row, min(first_row + TILE_ROWS, end))
        rows += [first_token * num_heads + row for row in tile]
    assert rows == list(range(len(plan.positions) * num_heads))


@given(SIZES, st.integers(1, 20))
def test_a_tile_has_the_splits_up_to_its_last_rows_position(sizes, num_heads):
    plan = make_plan(sizes, num_heads)
    for sequence, _, first_row, end, first_position, num_splits, _ in plan.tiles[:-1].tolist():
        if num_splits:
            position = first_position + (min(first_row + TILE_ROWS, end) - 1) // num_heads
            assert num_splits == position // SPLIT_TOKENS + 1
            assert first_position == sizes[sequence][1]


@given(SIZES, st.integers(1, 20))
def test_tiles_are_numbered_by_the_pieces_before_them(sizes, num_heads):
    tiles = make_plan(sizes, num_heads).tiles
    assert tiles[0, 6] == 0
    assert torch.equal(tiles[1:, 6], tiles[:-1, 5].cumsum(0))


def test_shapes_depend_on_the_numbers_of_rows_sequences_and_blocks_alone():
    one = make_plan([(9, 300), (1, 0), (6, 20)], 8)
    other = make_plan([(0, 309), (15, 8), (1, 2)], 8)
    assert [t.shape for t in (one.tiles, one.block_tables, one.positions)] == [
        t.shape for t in (other.tiles, other.block_tables, other.positions)
    ]
    assert (one.num_tiles, one.num_splits) == (other.num_tiles, other.num_splits)


def test_block_tables_hold_each_sequences_blocks():
    spans = Scattered(sizes=((1, 40), (2, 17))).spans
    shape = AttentionShape(num_queries_per_key=2, num_key_heads=1, key_width=8, value_width=8)
    plan = plan_attention(spans, torch.tensor([39, 15, 16]), BLOCK_SIZE, shape)
    assert plan.block_tables.tolist() == [spans[0].block_ids, [*spans[1].block_ids, 0]]


@pytest.mark.parametrize("sizes", [[(0, 0)], [(0, 0), (0, 5)]])
def test_sequences_without_rows_have_no_pieces(sizes):
    assert make_plan(sizes, 8).tiles[-1, 6] == 0


def test_a_step_without_sequences_has_no_tiles():
    shape = AttentionShape(num_queries_per_key=2, num_key_heads=1, key_width=8, value_width=8)
    assert plan_attention([], torch.zeros(0, dtype=torch.int64), BLOCK_SIZE, shape).num_tiles == 0
