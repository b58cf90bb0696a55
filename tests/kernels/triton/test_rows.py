"""Norms, rotations and activations of rows."""

import pytest
import torch
from torch import Tensor

from outrider.kernels import load_kernels
from outrider.kernels.interface import Angles
from outrider.kernels.triton.rms_norm import add_rms_norm, rms_norm
from outrider.kernels.triton.rotate import rotate
from outrider.kernels.triton.silu_product import silu_product
from tests.kernels.exactness import assert_close_as_plain, draw

reference = load_kernels("torch")
EVERY_DTYPE = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"]
)


def exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


@EVERY_DTYPE
@pytest.mark.parametrize("D", [1, 100, 128, 1100])
def test_a_norm_is_as_close_as_torchs(dtype, D):
    x, weight = draw(9, D, dtype=dtype), 1 + draw(D) * 0.1
    assert_close_as_plain(
        rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), exact_norm(x, weight)
    )


@EVERY_DTYPE
def test_the_norm_of_a_sum_is_that_of_the_rounded_sum(dtype):
    x, addend, weight = draw(9, 100, dtype=dtype), draw(9, 100, dtype=dtype, seed=2), 1 + draw(100) * 0.1
    total, normed = add_rms_norm(x, addend, weight, 1e-6)
    assert torch.equal(total, x + addend)
    assert torch.equal(normed, rms_norm(x + addend, weight, 1e-6))


@EVERY_DTYPE
def test_a_norms_row_has_the_same_bits_alone_and_in_wider_rows(dtype):
    wide, weight = draw(9, 200, dtype=dtype), 1 + draw(100) * 0.1
    together = rms_norm(wide[:, 60:160], weight, 1e-6)
    for row in range(9):
        assert torch.equal(rms_norm(wide[row : row + 1, 60:160].clone(), weight, 1e-6)[0], together[row])


def test_a_row_that_overflowed_spoils_no_other():
    x, weight = draw(3, 64), torch.ones(64)
    expected = rms_norm(x, weight, 1e-6)
    x[1] = torch.inf
    assert torch.equal(rms_norm(x, weight, 1e-6)[[0, 2]], expected[[0, 2]])


@EVERY_DTYPE
@pytest.mark.parametrize("interleaved", [True, False], ids=["neighbours", "halves"])
@pytest.mark.parametrize(("H", "P"), [(1, 2), (3, 16), (17, 12)])
def test_a_rotation_is_as_close_as_torchs(dtype, interleaved, H, P):
    heads = draw(5, H, P + 8, dtype=dtype)[..., 8:]
    angles = torch.linspace(0, 50, 5 * P // 2).view(5, P // 2)
    given = Angles(cos=angles.cos(), sin=angles.sin(), interleaved=interleaved)
    exact = reference.rotate(
        heads.double(), Angles(cos=given.cos.double(), sin=given.sin.double(), interleaved=interleaved)
    )
    assert_close_as_plain(rotate(heads, given), reference.rotate(heads, given), exact)


@EVERY_DTYPE
def test_a_rotations_row_has_the_same_bits_alone_and_among_others(dtype):
    x, angles = draw(5, 20, 16, dtype=dtype), draw(5, 8)
    together = rotate(x, Angles(cos=angles.cos(), sin=angles.sin(), interleaved=True))
    for row in range(5):
        own = angles[row : row + 1]
        alone = rotate(x[row : row + 1, 3:], Angles(cos=own.cos(), sin=own.sin(), interleaved=True))
        assert torch.equal(alone[0], together[row, 3:])


@EVERY_DTYPE
@pytest.mark.parametrize("F", [1, 70, 1025])
def test_an_activation_is_as_close_as_torchs(dtype, F):
    gate_up = 4 * draw(3, 2 * F, dtype=dtype)
    gate, up = gate_up.double().chunk(2, dim=-1)
    assert_close_as_plain(
        silu_product(gate_up), reference.silu_product(gate_up), torch.nn.functional.silu(gate) * up
    )


def test_an_activation_goes_to_zero_where_the_gate_is_far_below():
    assert torch.equal(silu_product(torch.tensor([[-200.0, 3.0]])), torch.zeros(1, 1))


def test_no_tokens_give_no_rows():
    angles = Angles(cos=draw(0, 8), sin=draw(0, 8), interleaved=True)
    assert rms_norm(draw(0, 64), torch.ones(64), 1e-6).shape == (0, 64)
    assert rotate(draw(0, 2, 16), angles).shape == (0, 2, 16)
    assert silu_product(draw(0, 64)).shape == (0, 32)
