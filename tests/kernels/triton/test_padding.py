"""Rows of padding choose expert E, which does not exist, and wake nobody."""

import pytest
import torch

from outrider.kernels.interface import Choice
from outrider.kernels.triton import experts, pack_experts
from outrider.kernels.triton.align import Alignment, align
from outrider.kernels.triton.experts_fp8 import ordered_scales
from tests.kernels.triton.test_experts import draw_rows, draw_weights

E, A, D, F = 4, 2, 160, 128
STORAGES = [("plain", torch.float32), ("int4", torch.float16), ("fp8", torch.bfloat16)]


def test_a_pair_without_an_expert_is_in_no_tile():
    alignment = align(torch.tensor([[0, 3], [E, E], [3, 1], [E, E]]), E, 16)
    used = alignment.tiles[alignment.tiles[:, 2] > 0].tolist()
    assert used == [[0, 0, 1], [1, 1, 1], [3, 2, 2]]
    assert alignment.pairs[:4].tolist() == [0, 5, 1, 4]


# What torch allocates is poisoned: places behind the last pair name the largest integer.
@pytest.mark.parametrize(("storage", "dtype"), STORAGES)
def test_padding_leaves_the_other_rows_as_they_are(storage, dtype):
    weights = pack_experts(*draw_weights(storage, dtype, D, F))
    x, chosen = draw_rows(3, D, dtype)
    padded = Choice(experts=torch.cat([chosen, torch.full((2, A), E)]), weights=torch.ones(5, A))
    rows = torch.cat([x, torch.full((2, D), torch.nan, dtype=dtype)])
    alone = experts(x, Choice(experts=chosen, weights=torch.ones(3, A)), weights)
    assert torch.equal(experts(rows, padded, weights)[:3], alone)


@pytest.mark.parametrize("poison", [-1, 3 * A])
def test_factors_are_read_of_no_token_that_is_not_there(poison):
    around = torch.full((2, 5), torch.nan)
    scales = around[:, 1:4].copy_(torch.arange(6.0).view(2, 3))
    pairs = torch.tensor([4, 0, 5, 1, poison, poison], dtype=torch.int32)
    alignment = Alignment(pairs=pairs, tiles=torch.zeros(1, 3, dtype=torch.int32), width=16)
    ordered = ordered_scales(scales, alignment, 3, 256)
    assert ordered[:, :6].tolist() == [[2, 0, 2, 0, 0, 0], [5, 3, 5, 3, 0, 0]]
