"""Weights as they are stored: what their bits stand for, and stacked."""

import random

import pytest
import torch
from torch import Tensor

from outrider.kernels.weights import Fp8Weight, Int4Weight, alike, stack_outputs, to_plain


def random_int4(N: int, K: int, dtype: torch.dtype = torch.float32) -> Int4Weight:
    packed = torch.randint(-(2**31), 2**31, (N, K // 8), dtype=torch.int64).to(torch.int32)
    return Int4Weight(packed=packed, scales=torch.randn(N, K // 32).bfloat16(), dtype=dtype)


def random_fp8(N: int, K: int, dtype: torch.dtype = torch.float32) -> Fp8Weight:
    scales = torch.rand(-(-N // 128), -(-K // 128)) + 0.1
    return Fp8Weight(values=torch.randn(N, K).to(torch.float8_e4m3fn), scales=scales, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_four_bits_stand_for_their_value_less_eight_times_the_scale_of_their_group(dtype):
    weight = random_int4(5, 96, dtype)
    plain = to_plain(weight)
    assert plain.shape == weight.shape == (5, 96)
    for n, k in [(n, k) for n in range(5) for k in range(96)]:
        word = int(weight.packed[n, k // 8]) % 2**32
        value = float(word // 16 ** (k % 8) % 16 - 8) * weight.scales[n, k // 32].float()
        assert torch.equal(plain[n, k], value.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_fp8_value_stands_for_itself_times_the_factor_of_its_block(dtype):
    weight = random_fp8(200, 300, dtype)
    plain = to_plain(weight)
    assert plain.shape == weight.shape == (200, 300)
    for n, k in random.Random(0).sample([(n, k) for n in range(200) for k in range(300)], 500):
        value = weight.values[n, k].float() * weight.scales[n // 128, k // 128]
        assert torch.equal(plain[n, k], value.to(dtype))


@pytest.mark.parametrize(
    ("weights", "stored_as"),
    [
        ([random_int4(3, 64), random_int4(5, 64)], Int4Weight),
        ([random_fp8(128, 150), random_fp8(256, 150), random_fp8(60, 150)], Fp8Weight),
        ([random_fp8(60, 150), random_fp8(128, 150)], Tensor),
        ([random_fp8(128, 64), random_int4(3, 64)], Tensor),
        ([random_int4(3, 64), torch.randn(2, 64)], Tensor),
        ([torch.randn(2, 7), torch.randn(3, 7)], Tensor),
    ],
    ids=["int4", "fp8 of whole blocks", "fp8 cut", "fp8 and int4", "int4 and plain", "plain"],
)
def test_stacked_weights_stand_for_the_same_values_and_stay_stored_where_they_can(weights, stored_as):
    stacked = stack_outputs(weights)
    assert isinstance(stacked, stored_as)
    assert torch.equal(to_plain(stacked), torch.cat([to_plain(weight) for weight in weights]))


def test_weights_of_one_form_stay_in_it_and_others_become_plain():
    int4, fp8 = random_int4(3, 64), random_fp8(3, 64)
    assert alike([fp8, fp8]) == [fp8, fp8]
    for weights in ([int4, fp8], [int4, torch.zeros(3, 64)]):
        made_alike = alike(weights)
        assert all(isinstance(weight, Tensor) for weight in made_alike)
        assert torch.equal(
            torch.cat([to_plain(w) for w in made_alike]), torch.cat([to_plain(w) for w in weights])
        )
