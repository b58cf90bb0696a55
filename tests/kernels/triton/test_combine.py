"""Experts' outputs brought together, against float64 and in the token's own order."""

import pytest
import torch
from torch import Tensor

from outrider.kernels.interface import Choice
from outrider.kernels.triton.combine import BLOCK_D, combine, combine_launch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("has_shared", [True, False])
@pytest.mark.parametrize("D", [1, 96, BLOCK_D, BLOCK_D + 1])
def test_combine(dtype, has_shared, D):
    generator = torch.Generator().manual_seed(D)
    outputs, shared = torch.randn(3, 4, D, generator=generator), torch.randn(3, D, generator=generator)
    weights = torch.rand(3, 4, generator=generator)
    total = torch.full((3, D), torch.nan, dtype=dtype)
    combine_launch(outputs.to(dtype), weights, shared.to(dtype) if has_shared else None, total).run()

    def formula(convert) -> Tensor:
        sums = (convert(outputs.to(dtype)) * convert(weights)[..., None]).sum(1)
        return sums + convert(shared.to(dtype)) if has_shared else sums

    exact, plain = formula(Tensor.double), formula(Tensor.float).to(dtype)
    ulp = exact.abs() * torch.finfo(dtype).eps
    assert ((total.double() - exact).abs() - ulp / 2).max() <= 2 * (plain.double() - exact).abs().max()


def test_experts_are_added_in_the_order_of_choice_and_the_shared_one_last():
    big = torch.tensor([[[2.0**25], [1.0], [-(2.0**25)]]])
    choice = Choice(experts=torch.tensor([[2, 0, 1]]), weights=torch.ones(1, 3))
    assert combine(big, choice, None).item() == (2.0**25 + 1 - 2.0**25) - 1
    small = torch.tensor([[1.0]])
    assert (
        combine(big[:, :2], Choice(experts=choice.experts[:, :2], weights=torch.ones(1, 2)), small) == 2.0**25
    )


def test_a_token_alone_has_the_bits_that_it_has_among_others():
    generator = torch.Generator().manual_seed(3)
    outputs, shared = torch.randn(5, 2, 40, generator=generator), torch.randn(5, 40, generator=generator)
    choice = Choice(
        experts=torch.zeros(5, 2, dtype=torch.int64), weights=torch.rand(5, 2, generator=generator)
    )
    together = combine(outputs, choice, shared)
    alone = Choice(experts=choice.experts[3:4], weights=choice.weights[3:4])
    assert torch.equal(combine(outputs[3:4], alone, shared[3:4])[0], together[3])


def test_no_tokens_are_no_work():
    none = Choice(experts=torch.empty(0, 2, dtype=torch.int64), weights=torch.empty(0, 2))
    assert combine(torch.empty(0, 2, 8), none, None).shape == (0, 8)
