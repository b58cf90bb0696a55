"""What a token leaves in the cache."""

import pytest
import torch

from outrider.kernels import load_kernels
from outrider.kernels.interface import Angles, LatentNorm, Place
from outrider.kernels.triton.rms_norm import rms_norm
from outrider.kernels.triton.rotate import rotate
from outrider.kernels.triton.write_latent import write_latent

reference = load_kernels("torch")
T, H, C, P = 6, 19, 24, 8


@pytest.fixture(params=[torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture
def draw(dtype):
    generator = torch.Generator().manual_seed(11)
    return lambda *shape: torch.randn(*shape, generator=generator).to(dtype)


@pytest.fixture
def norm() -> LatentNorm:
    return LatentNorm(weight=torch.linspace(0.5, 1.5, C), epsilon=1e-6)


def place(dtype, interleaved: bool = True, num_tokens: int = T) -> Place:
    angles = torch.linspace(0, 50, T * P // 2).view(T, P // 2)[:num_tokens]
    return Place(
        cache=torch.full((20, C + P), 7.0, dtype=dtype),
        slots=torch.tensor([3, 19, 0, 8, 9, 1])[:num_tokens],
        angles=Angles(cos=angles.cos(), sin=angles.sin(), interleaved=interleaved),
    )


@pytest.mark.parametrize("interleaved", [True, False], ids=["neighbours", "halves"])
def test_latents_are_normalised_and_keys_and_queries_turned(draw, dtype, norm, interleaved):
    row, query = draw(T, C + P + 5)[:, : C + P], draw(T, H, P + 4)[..., 4:]
    where = place(dtype, interleaved)
    turned = write_latent(row, query, norm, where)
    assert torch.equal(turned, rotate(query, where.angles))
    written = where.cache[where.slots]
    assert torch.equal(written[:, :C], rms_norm(row[:, :C], norm.weight, norm.epsilon))
    assert torch.equal(written[:, C:], rotate(row[:, None, C:], where.angles)[:, 0])


def test_other_slots_stay_as_they_are(draw, dtype, norm):
    where = place(dtype)
    write_latent(draw(T, C + P), draw(T, H, P), norm, where)
    others = torch.ones(20, dtype=torch.bool).index_fill(0, where.slots, False)
    assert (where.cache[others] == 7).all()


def test_what_is_written_is_what_torch_writes_but_for_rounding(draw, dtype, norm):
    row, query = draw(T, C + P), draw(T, H, P)
    where, expected = place(dtype), place(dtype)
    turned = write_latent(row, query, norm, where)
    torch.testing.assert_close(turned, reference.write_latent(row, query, norm, expected))
    torch.testing.assert_close(where.cache, expected.cache)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_overflowed_are_written_as_torch_writes_them(draw, dtype, norm, bad):
    row, query = draw(T, C + P), draw(T, H, P)
    row[1, 3], row[4, C + 2] = bad, bad
    where, expected = place(dtype), place(dtype)
    write_latent(row, query, norm, where)
    reference.write_latent(row, query, norm, expected)
    assert where.cache.isfinite().all()
    torch.testing.assert_close(where.cache, expected.cache)


def test_a_row_has_the_same_bits_alone_and_among_others(draw, dtype, norm):
    row, query = draw(T, C + P), draw(T, H, P)
    together, alone = place(dtype), place(dtype, num_tokens=1)
    turned = write_latent(row, query, norm, together)
    assert torch.equal(write_latent(row[:1], query[:1], norm, alone), turned[:1])
    assert torch.equal(alone.cache[3], together.cache[3])


def test_no_tokens_write_nothing(draw, dtype, norm):
    where = place(dtype, num_tokens=0)
    assert write_latent(draw(0, C + P), draw(0, H, P), norm, where).shape == (0, H, P)
    assert (where.cache == 7).all()
