"""Rows of every torch kernel have the same bits alone, in a crowd, and at any place in it."""

import pytest
import torch
from torch import Tensor

from outrider.kernels import load_kernels
from outrider.kernels.interface import GateRule
from outrider.kernels.torch.tiles import cut_rows, equal_wide_rows

kernels = load_kernels("torch")
NUM_ROWS = 333
# Inputs and outputs of products, among them those where libraries are known to split the additions.
WIDTHS = [(8, 24), (100, 7), (192, 800), (1024, 1536), (2048, 64)]


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def draw(request):
    generator = torch.Generator().manual_seed(1)
    return lambda *shape: torch.randn(*shape, generator=generator).to(request.param)


def assert_rows_keep_their_bits(kernel, x: Tensor) -> None:
    """Computed together, in shuffled order, in parts, and one by one."""
    whole = kernel(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    assert torch.equal(kernel(x[order]), whole[order])
    for start, end in [(0, 1), (5, 6), (7, 24), (100, 164), (30, 287), (332, 333)]:
        assert torch.equal(kernel(x[start:end].clone()), whole[start:end])


@pytest.mark.parametrize(("num_inputs", "num_outputs"), WIDTHS)
def test_linear(draw, num_inputs, num_outputs):
    weight = kernels.pack_linear(draw(num_outputs, num_inputs))
    assert_rows_keep_their_bits(lambda x: kernels.linear(x, weight), draw(NUM_ROWS, num_inputs))


@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(32, 64), (128, 512)])
def test_head_linear(draw, num_inputs, num_outputs):
    weight = kernels.pack_head_linear(draw(4, num_inputs, num_outputs))
    assert_rows_keep_their_bits(lambda x: kernels.head_linear(x, weight), draw(NUM_ROWS, 4, num_inputs))


@pytest.mark.parametrize("width", [7, 48, 192, 7168])
def test_rms_norm(draw, width):
    weight = draw(width).float()
    assert_rows_keep_their_bits(lambda x: kernels.rms_norm(x, weight, 1e-6), draw(NUM_ROWS, width))


@pytest.mark.parametrize("width", [6, 130, 1024])
def test_silu_product(draw, width):
    assert_rows_keep_their_bits(kernels.silu_product, draw(NUM_ROWS, width))


@pytest.mark.parametrize("num_experts", [6, 33, 384])
def test_gate(draw, num_experts):
    rule = GateRule(
        num_experts_per_token=5, num_groups=3, num_kept_groups=2, normalize_weights=True, scaling=2.5
    )
    bias = 0.1 * draw(num_experts).float()
    logits = draw(NUM_ROWS, num_experts).float()
    assert_rows_keep_their_bits(lambda x: kernels.gate(x, bias, rule).weights, logits)
    assert_rows_keep_their_bits(lambda x: kernels.gate(x, bias, rule).experts, logits)


def test_rows_are_cut_into_the_largest_tiles_that_are_allowed():
    assert cut_rows(336, (256, 64)) == [256, 64, 16]
    assert cut_rows(48, ()) == [16, 16, 16]


def test_wide_tiles_are_refused_where_they_change_bits(monkeypatch):
    def unsteady(x: Tensor, weight: Tensor) -> Tensor:
        return real(x, weight) + (x.shape[-2] == 256)

    real = Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", unsteady)
    assert equal_wide_rows(torch.zeros(3, 5)) == (64,)
