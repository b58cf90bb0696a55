"""The launch of a product with one weight for each head, by whatever kernel multiplies."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.tiles import Tile, num_tiles


def head_product_launch(
    kernel: Any, x: Tensor, weight: Tensor, y: Tensor, tile: Tile, constants: Mapping[str, int]
) -> Launch:
    """y [T, H, N] = x [T, H, K] by weights [H, N, K], each head by its own, a tile to a program."""
    H, N, K = weight.shape
    T = x.shape[0]
    return Launch(
        kernel=kernel,
        # Token tiles first: all that need a weight's tile run at the same time, and it is read once.
        grid=(num_tiles(T, tile.block_t), num_tiles(N, tile.block_m), H),
        arguments={
            "x_ptr": x,
            "w_ptr": weight,
            "y_ptr": y,
            "x_stride": x.stride(0),
            "x_head_stride": x.stride(1),
            "y_stride": y.stride(0),
            "y_head_stride": y.stride(1),
            "T": T,
            "N": N,
        },
        constants={"K": K, "BLOCK_M": tile.block_m, "BLOCK_T": tile.block_t, **constants},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
