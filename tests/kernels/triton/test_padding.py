"""Rows of padding choose expert E, which does not exist, and wake nobody."""

import torch

from outrider.kernels.interface import Choice
from outrider.kernels.triton import experts, pack_experts
from outrider.kernels.triton.align import align

E, A, D, F = 4, 2, 32, 16


def test_a_pair_without_an_expert_is_in_no_tile():
    alignment = align(torch.tensor([[0, 3], [E, E], [3, 1], [E, E]]), E, 16)
    used = alignment.tiles[alignment.tiles[:, 2] > 0].tolist()
    assert used == [[0, 0, 1], [1, 1, 1], [3, 2, 2]]
    assert alignment.pairs[:4].tolist() == [0, 5, 1, 4]


def test_padding_leaves_the_other_rows_as_they_are():
    generator = torch.Generator().manual_seed(3)
    gate_up = [torch.randn(2 * F, D, generator=generator) for _ in range(E)]
    down = [torch.randn(D, F, generator=generator) for _ in range(E)]
    weights = pack_experts(gate_up, down)
    x = torch.randn(3, D, generator=generator)
    chosen = torch.tensor([[1, 0], [3, 1], [0, 2]])
    padded = Choice(experts=torch.cat([chosen, torch.full((2, A), E)]), weights=torch.ones(5, A))
    rows = torch.cat([x, torch.full((2, D), torch.nan)])
    alone = experts(x, Choice(experts=chosen, weights=torch.ones(3, A)), weights)
    assert torch.equal(experts(rows, padded, weights)[:3], alone)
