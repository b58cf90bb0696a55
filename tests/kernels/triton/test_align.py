"""Pairs sorted by expert, on a device, against a stable sort."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.kernels.triton.align import Alignment, align, align_launch, empty_alignment


def poisoned(experts: Tensor, num_experts: int, width: int) -> Alignment:
    """The alignment of choices, in memory that held something else before."""
    alignment = empty_alignment(experts, num_experts, width)
    alignment.pairs.fill_(-7)
    alignment.tiles.fill_(-7)
    align_launch(experts, num_experts, alignment).run()
    return alignment


def expected_tiles(experts: Tensor, num_experts: int, width: int) -> list[tuple[int, int, int]]:
    tiles, place = [], 0
    for expert, count in enumerate(torch.bincount(experts.flatten(), minlength=num_experts).tolist()):
        tiles += [(expert, place + n, min(width, count - n)) for n in range(0, count, width)]
        place += count
    return tiles


def assert_aligned(experts: Tensor, num_experts: int, width: int) -> None:
    alignment = poisoned(experts, num_experts, width)
    assert alignment.pairs.tolist() == experts.flatten().argsort(stable=True).tolist()
    expected = expected_tiles(experts, num_experts, width)
    rows = [tuple(row) for row in alignment.tiles.tolist()]
    assert rows[: len(expected)] == expected
    assert all(count == 0 for _, _, count in rows[len(expected) :])


@settings(max_examples=15)
@given(st.data())
def test_pairs_are_sorted_by_expert_and_by_number(data):
    num_experts = data.draw(st.integers(1, 12))
    num_chosen = data.draw(st.integers(1, num_experts))
    seed, num_tokens = data.draw(st.integers(0, 2**31)), data.draw(st.integers(1, 40))
    noise = torch.rand(num_tokens, num_experts, generator=torch.Generator().manual_seed(seed))
    assert_aligned(noise.argsort(1)[:, :num_chosen].contiguous(), num_experts, width=16)


@pytest.mark.parametrize("num_pairs", [15, 16, 17, 32, 33, 1023, 1024, 1025, 2050])
def test_an_expert_that_gets_all_pairs_fills_its_tiles(num_pairs):
    assert_aligned(torch.full((num_pairs, 1), 2), num_experts=5, width=16)


@pytest.mark.parametrize("expert", [0, 4])
def test_the_first_and_the_last_expert_may_be_alone(expert):
    assert_aligned(torch.full((3, 1), expert), num_experts=5, width=32)


def test_there_is_room_where_every_expert_ends_in_a_short_tile():
    experts = torch.cat([torch.arange(6), torch.zeros(16, dtype=torch.int64)])[:, None]
    assert len(expected_tiles(experts, 6, 16)) == len(empty_alignment(experts, 6, 16).tiles)
    assert_aligned(experts, num_experts=6, width=16)


def test_no_tokens_make_no_tiles():
    alignment = align(torch.empty(0, 4, dtype=torch.int64), 8, 16)
    assert len(alignment.tiles) == len(alignment.pairs) == 0
