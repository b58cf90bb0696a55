"""The repaired interpreter against torch's own bf16 and FP8: operations round once, to the nearest even."""

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

N = 256


def special() -> Tensor:
    """Normal numbers, and those at which rounding goes wrong first: ties, signed zeros, infinities, NaN."""
    numbers = torch.randn(N, generator=torch.Generator().manual_seed(2)) * 8
    numbers[:8] = torch.tensor(
        [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 3e38]
    )
    return numbers


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    """Two vectors of bf16."""
    return special().bfloat16(), special().roll(3).bfloat16()


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal bit for bit; one NaN is as good as another."""
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def run(kernel: Any, *tensors: Tensor, **sizes: int) -> None:
    """Runs one program."""
    kernel[(1,)](*tensors, **sizes)


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, x + y)
    tl.store(out_ptr + N + offs, x - y)
    tl.store(out_ptr + 2 * N + offs, x * y)
    tl.store(out_ptr + 3 * N + offs, -x)
    tl.store(out_ptr + 4 * N + offs, x * 0.3)
    tl.store(out_ptr + 5 * N + offs, tl.abs(x))
    tl.store(out_ptr + 6 * N + offs, tl.where(x > y, x, y))
    tl.store(out_ptr + 7 * N + offs, tl.maximum(x, 0.0).to(tl.bfloat16))


def test_arithmetic_rounds_each_result_to_bf16(pair):
    x, y = pair
    out = torch.full((8, N), torch.nan, dtype=torch.bfloat16)
    run(arithmetic_kernel, x, y, out, N=N)
    tenth = torch.tensor(0.3).bfloat16()
    expected = [x + y, x - y, x * y, -x, x * tenth, x.abs(), x.where(x > y, y)]
    assert_same(out[:7], torch.stack(expected))
    numbers = ~x.isnan()
    assert_same(out[7][numbers], x.clamp(min=0)[numbers])


@triton.jit
def comparison_kernel(x_ptr, y_ptr, out_ptr, as_number_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    tl.store(out_ptr + offs, x < y)
    tl.store(out_ptr + N + offs, x >= y)
    tl.store(out_ptr + 2 * N + offs, x == y)
    tl.store(out_ptr + 3 * N + offs, x != y)
    tl.store(as_number_ptr + offs, (x < y).to(tl.float32))
    tl.store(as_number_ptr + N + offs, (x.to(tl.float32) < y).to(tl.bfloat16))


def test_comparisons_are_of_numbers_and_not_of_bits(pair):
    x, y = pair
    out, as_number = torch.zeros(4, N, dtype=torch.bool), torch.full((2, N), torch.nan)
    run(comparison_kernel, x, y, out, as_number, N=N)
    assert torch.equal(out, torch.stack([x < y, x >= y, x == y, x != y]))
    assert torch.equal(as_number, (x < y).float().expand(2, -1))


@triton.jit
def dot_kernel(x_ptr, y_ptr, out_ptr, M: tl.constexpr):
    offs_m = tl.arange(0, M)
    places = offs_m[:, None] * M + offs_m[None, :]
    product = tl.dot(tl.load(x_ptr + places), tl.load(y_ptr + places).trans())
    tl.store(out_ptr + places, product)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_dot_multiplies_numbers(dtype):
    x, y = (torch.randn(16, 16, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (1, 2))
    out = torch.full((16, 16), torch.nan)
    run(dot_kernel, x, y, out, M=16)
    torch.testing.assert_close(out, x.float() @ y.float().t(), rtol=1e-6, atol=1e-6)


@triton.jit
def reduction_kernel(x_ptr, out_ptr, best_ptr, R: tl.constexpr, N: tl.constexpr):
    offs_r = tl.arange(0, R)
    x = tl.load(x_ptr + offs_r[:, None] * N + tl.arange(0, N)[None, :])
    tl.store(out_ptr + offs_r, tl.sum(x, axis=1))
    tl.store(out_ptr + R + offs_r, tl.max(x, axis=1).to(tl.bfloat16))
    tl.store(out_ptr + 2 * R + offs_r, tl.min(x, axis=1).to(tl.bfloat16))
    tl.store(best_ptr + offs_r, tl.argmax(x, axis=1))
    tl.store(out_ptr + 3 * R + tl.arange(0, N), tl.cumsum(tl.sum(x, axis=0)))


def test_reductions_round_once():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    out, best = torch.full((3 * 4 + 64,), torch.nan, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32)
    run(reduction_kernel, x, out, best, R=4, N=64)
    columns = x.float().sum(0).bfloat16()
    assert_same(out[:4], x.float().sum(1).bfloat16())
    assert_same(out[4:8], x.max(1).values)
    assert_same(out[8:12], x.min(1).values)
    assert_same(out[12:], columns.float().cumsum(0).bfloat16())
    assert torch.equal(best.long(), x.max(1).indices)


@triton.jit
def cast_kernel(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs).to(out_ptr.dtype.element_ty))


WIDE = [torch.float32, torch.float16]


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    out = torch.zeros(N, dtype=dtype)
    run(cast_kernel, x, out, N=N)
    return out


@pytest.mark.parametrize("wide", WIDE)
def test_casts_to_bf16_round_to_the_nearest_even(wide):
    x = special().to(wide)
    assert_same(cast(x, torch.bfloat16), x.bfloat16())


@pytest.mark.parametrize("wide", [*WIDE, torch.bfloat16])
def test_casts_to_fp8_round_to_the_nearest_even_and_stop_at_the_largest_number(wide):
    x = (special() * 20).to(wide)
    expected = x.float().clamp(-448, 448).to(torch.float8_e4m3fn)
    assert_same(cast(x, torch.float8_e4m3fn).float(), expected.float())


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("wide", WIDE)
def test_casts_from_narrow_types_are_exact(narrow, wide):
    x = torch.randn(N, generator=torch.Generator().manual_seed(4)).to(narrow)
    assert_same(cast(x, wide), x.to(wide))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8])
def test_integers_become_bf16_and_back(dtype):
    x = torch.arange(N, dtype=torch.int32).to(dtype)
    assert_same(cast(x, torch.bfloat16), x.bfloat16())
    assert_same(cast(x.bfloat16(), dtype), x)


@triton.jit
def wide_function_kernel(x_ptr, out_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs, mask=offs < N - 8, other=1.0).to(tl.float32)
    tl.store(out_ptr + offs, tl.exp(x) * tl.full((N,), 1.5, tl.bfloat16))


def test_a_function_in_fp32_is_rounded_when_it_is_stored(pair):
    x, out = pair[0], torch.full((N,), torch.nan, dtype=torch.bfloat16)
    run(wide_function_kernel, x, out, N=N)
    masked = torch.cat([x[:-8], torch.ones(8, dtype=torch.bfloat16)])
    torch.testing.assert_close(out, (masked.float().exp() * 1.5).bfloat16(), equal_nan=True)
