"""Inputs of FP8 products."""

import pytest
import torch

from outrider.kernels.triton.quantize import quantize_rows


@pytest.mark.parametrize("K", [128, 200, 1152])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"]
)
def test_values_and_factors_are_those_of_the_formula(K, dtype):
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(K)).to(dtype)
    x[2] = 0
    values, scales = quantize_rows(x)
    blocks = torch.nn.functional.pad(x.float(), (0, -K % 128)).unflatten(1, (-1, 128))
    expected = blocks.abs().amax(-1).clamp(min=1e-30) / 448  # [T, K / 128]
    assert torch.equal(scales[:, :5].t(), expected)
    rounded = (blocks / expected[..., None]).flatten(1)[:, :K].to(torch.float8_e4m3fn)
    assert torch.equal(values.float(), rounded.float())


def test_a_row_has_the_same_values_alone_and_among_others():
    x = torch.randn(130, 256, generator=torch.Generator().manual_seed(1))[126:]
    values, scales = quantize_rows(x)
    alone, own_scales = quantize_rows(x[2:3])
    assert torch.equal(values[2:3].float(), alone.float())
    assert torch.equal(scales[:, 2], own_scales[:, 0])


def test_a_row_that_overflowed_spoils_no_other():
    x = torch.ones(3, 128)
    x[1] = torch.inf
    values, scales = quantize_rows(x)
    assert torch.equal((values.float() * scales[0, :3, None])[[0, 2]], torch.ones(2, 128))
