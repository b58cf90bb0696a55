"""Products with weights, in tiles of a fixed number of rows.

A library picks another kernel, and so another order of additions, for another number of rows. Called with
exactly TILE_ROWS rows every time, the last tile padded, a row's bits never change, whatever its place and its
neighbours.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

TILE_ROWS = 16


def pack_linear(weight: Tensor) -> Tensor:
    """[N, K] -> [K, N]: a product by rows of inputs is two to four times as fast on small fp32 tiles."""
    return weight.t().contiguous()


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """[T, K] x [K, N] -> [T, N]."""
    T = x.shape[0]
    x = pad_rows(x)
    y = x.new_empty(x.shape[0], weight.shape[1])
    for tile, out in zip(x.split(TILE_ROWS), y.split(TILE_ROWS), strict=True):
        torch.mm(tile, weight, out=out)
    return y[:T]


def pack_head_linear(weight: Tensor) -> Tensor:
    """[H, K, N] as it is, contiguous."""
    return weight.contiguous()


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """[T, H, K] x [H, K, N] -> [T, H, N]."""
    T = x.shape[0]
    tiles = [torch.bmm(tile.transpose(0, 1), weight) for tile in pad_rows(x).split(TILE_ROWS)]
    return torch.cat(tiles, dim=1)[:, :T].transpose(0, 1)


def pad_rows(x: Tensor) -> Tensor:
    """Add rows of zeros up to a multiple of TILE_ROWS."""
    missing = -x.shape[0] % TILE_ROWS
    return pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) if missing else x
