"""Numbers of rows at which a product may be computed without showing in its bits.

A library picks another kernel, and so another order of additions, for another number of rows. Called with
exactly TILE_ROWS rows every time, the last tile padded, a row's bits never change, whatever its place and its
neighbours. Larger tiles are used only where they give the same bits on the machine at hand: the order of
additions depends on shapes, not on values, so that one product of random numbers shows it.
"""

from functools import cache

import torch
from torch import Tensor

TILE_ROWS = 16
WIDE_ROWS = (256, 64)


def padded_rows(num_rows: int) -> int:
    """The next multiple of TILE_ROWS."""
    return num_rows + -num_rows % TILE_ROWS


def pad_rows(x: Tensor) -> Tensor:
    """Add rows of zeros up to a multiple of TILE_ROWS."""
    missing = padded_rows(x.shape[0]) - x.shape[0]
    return torch.constant_pad_nd(x, (0, 0) * (x.dim() - 1) + (0, missing)) if missing else x


def cut_rows(num_rows: int, wide_rows: tuple[int, ...]) -> list[int]:
    """Sizes of tiles that cover a multiple of TILE_ROWS, the largest first."""
    sizes: list[int] = []
    for size in (*wide_rows, TILE_ROWS):
        sizes += [size] * (num_rows // size)
        num_rows %= size
    return sizes


def equal_wide_rows(weight: Tensor) -> tuple[int, ...]:
    """Which of WIDE_ROWS give the bits of TILE_ROWS in products [.., rows, K] x weight [.., K, N]."""
    return probe(weight.shape, weight.stride(), weight.dtype, weight.device, torch.get_num_threads())


@cache
def probe(
    shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: torch.device, num_threads: int
) -> tuple[int, ...]:
    """The answer for one layout; num_threads is there because libraries split products by it."""
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.empty_strided(shape, stride, dtype=dtype, device=device).normal_(generator=generator)
    x = torch.empty((*shape[:-2], max(WIDE_ROWS), shape[-2]), dtype=dtype, device=device)
    x.normal_(generator=generator)
    narrow = torch.cat([tile @ weight for tile in x.split(TILE_ROWS, dim=-2)], dim=-2)
    return tuple(
        rows
        for rows in WIDE_ROWS
        if torch.equal(torch.cat([tile @ weight for tile in x.split(rows, dim=-2)], dim=-2), narrow)
    )
