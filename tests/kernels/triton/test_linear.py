"""Products with weights, plain and in FP8, and those of heads.

Errors are held against float64: twice those of torch with the same inputs, or half a unit in the last place
of the result, to which both are rounded.
"""

import pytest
import torch

from outrider.kernels.triton.head_linear import head_linear, pack_head_linear
from outrider.kernels.triton.linear import linear, pack_linear
from outrider.kernels.triton.quantize import quantize_rows
from outrider.kernels.weights import Fp8Weight, Int4Weight
from tests.kernels.exactness import assert_close_as_plain, draw

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EVERY_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])
# Past the borders of tiles: of 4, 16, 32, 64 and 128 tokens, 4, 32 and 64 outputs, 128 and 256 inputs.
PRODUCTS = [(1, 40, 96), (5, 33, 300), (33, 65, 128), (65, 24, 96), (129, 20, 128)]


def fp8_weight(N: int, K: int, dtype: torch.dtype) -> Fp8Weight:
    blocks = (-(-N // 128), -(-K // 128))
    return Fp8Weight(
        values=draw(N, K).to(torch.float8_e4m3fn), scales=draw(*blocks, seed=3).abs() + 0.1, dtype=dtype
    )


@EVERY_DTYPE
@pytest.mark.parametrize(("num_tokens", "N", "K"), PRODUCTS)
def test_a_product_is_as_close_as_torchs(dtype, num_tokens, N, K):
    x, weight = draw(num_tokens, K, dtype=dtype), draw(N, K, dtype=dtype, seed=2)
    result = linear(x, pack_linear(weight))
    assert_close_as_plain(result, x @ weight.t(), x.double() @ weight.double().t())


@EVERY_DTYPE
def test_a_products_row_has_the_same_bits_whatever_it_is_computed_with(dtype):
    x, weight = draw(129, 300, dtype=dtype), pack_linear(draw(24, 300, dtype=dtype, seed=2))
    together = linear(x, weight)
    for first, last in [(0, 1), (128, 129), (3, 8), (60, 80), (1, 50), (40, 105)]:
        assert torch.equal(linear(x[first:last], weight), together[first:last])


@EVERY_DTYPE
def test_inputs_may_be_a_slice_of_wider_rows(dtype):
    wide, weight = draw(5, 200, dtype=dtype), pack_linear(draw(24, 96, dtype=dtype))
    assert torch.equal(linear(wide[:, 40:136], weight), linear(wide[:, 40:136].contiguous(), weight))


def test_no_tokens_give_no_rows():
    assert linear(draw(0, 96), pack_linear(draw(40, 96))).shape == (0, 40)


def test_inputs_of_another_type_than_the_weight_are_refused():
    with pytest.raises(ValueError, match="float16 do not fit a weight of"):
        linear(draw(1, 32, dtype=torch.float16), pack_linear(draw(8, 32)))


@EVERY_DTYPE
@pytest.mark.parametrize(("num_tokens", "N", "K"), [(1, 40, 128), (17, 130, 300), (40, 136, 256)])
def test_an_fp8_product_is_that_of_its_quantised_inputs(dtype, num_tokens, N, K):
    x, weight = 3 * draw(num_tokens, K, dtype=dtype), fp8_weight(N, K, dtype)
    values, scales = quantize_rows(x)
    factors = scales[:, :num_tokens].t().repeat_interleave(128, 1)[:, :K]
    wide = weight.scales.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
    rounded, stored = values.float() * factors, weight.values.float() * wide
    exact = (values.double() * factors.double()) @ (weight.values.double() * wide.double()).t()
    assert_close_as_plain(linear(x, pack_linear(weight)), (rounded @ stored.t()).to(dtype), exact)


def test_an_fp8_row_has_the_same_bits_whatever_it_is_computed_with():
    x, weight = draw(70, 256), pack_linear(fp8_weight(130, 256, torch.float32))
    together = linear(x, weight)
    for first, last in [(0, 1), (69, 70), (60, 66), (3, 25)]:
        assert torch.equal(linear(x[first:last], weight), together[first:last])


def test_an_fp8_product_is_within_the_error_of_rounding_its_inputs():
    x, weight = draw(20, 256), fp8_weight(130, 256, torch.float32)
    exact = x.double() @ weight.to_plain().double().t()
    # Of each input at most 2^-4 is lost, with either sign.
    assert (linear(x, pack_linear(weight)) - exact).norm() < 2**-4 * exact.norm()


def test_an_int4_weight_is_multiplied_as_plain_numbers():
    packed = torch.randint(-(2**31), 2**31, (24, 12), dtype=torch.int32)
    weight = Int4Weight(packed=packed, scales=draw(24, 3).bfloat16(), dtype=torch.float32)
    x = draw(3, 96)
    assert torch.equal(linear(x, pack_linear(weight)), linear(x, pack_linear(weight.to_plain())))


@EVERY_DTYPE
@pytest.mark.parametrize("num_tokens", [1, 17, 70])
def test_heads_products_are_as_close_as_torchs(dtype, num_tokens):
    x, weight = draw(num_tokens, 3, 40, dtype=dtype)[..., :24], draw(3, 24, 40, dtype=dtype, seed=2)
    result = head_linear(x, pack_head_linear(weight))
    exact = torch.einsum("thk,hkn->thn", x.double(), weight.double())
    assert_close_as_plain(result, torch.einsum("thk,hkn->thn", x, weight), exact)


@EVERY_DTYPE
def test_a_heads_row_has_the_same_bits_whatever_it_is_computed_with(dtype):
    x, weight = draw(70, 3, 128, dtype=dtype), pack_head_linear(draw(3, 128, 40, dtype=dtype, seed=2))
    together = head_linear(x, weight)
    for first, last in [(0, 1), (69, 70), (3, 20), (5, 60)]:
        assert torch.equal(head_linear(x[first:last], weight), together[first:last])
    assert torch.equal(head_linear(x[:4, 1:2], weight[1:2]), together[:4, 1:2])  # a rank's share of heads
