"""Adding what the ranks computed, on both backends."""

import pytest
import torch

from outrider.kernels import load_kernels


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("R", [1, 2, 3, 8])
def test_parts_are_added_in_rank_order(backend: str, R: int) -> None:
    # 1 is lost beside 2^25 in fp32, so another order gives another sum.
    parts = torch.ones(R, 3, 1030)
    parts[0], parts[-1] = 2.0**25, -(2.0**25) if R > 1 else 2.0**25
    expected = parts[0].clone()
    for part in parts[1:]:
        expected = expected + part
    assert torch.equal(load_kernels(backend).add_parts(parts), expected)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_sixteen_bit_parts_are_rounded_once(backend: str) -> None:
    parts = torch.randn(4, 5, 70, generator=torch.Generator().manual_seed(1)).to(torch.float16)
    exact = parts.to(torch.float64).sum(0)
    found = load_kernels(backend).add_parts(parts)
    assert found.dtype == torch.float16
    assert torch.equal(found, exact.to(torch.float16))
