"""Times every tile for the published models' products on a GPU and prints the lines of the tiles' TABLE.

    python -m benchmarks.tile_search [--dtype bf16|fp8]

A tile that spills registers is not timed. A line is printed where the fastest beats the rule of
outrider/kernels/triton/tiles.py by more than 3 %: measured noise is below. It takes about an hour.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from unittest.mock import patch

import torch

from benchmarks import published
from benchmarks.aot.case import FEW_TOKENS, Setting, settings
from benchmarks.aot.compiled import compile_launch
from benchmarks.aot.product_cases import linear_shapes
from benchmarks.gpu.bench import require_gpu
from benchmarks.gpu.stopwatch import Run, seconds
from outrider.kernels.triton.fp8_product import fp8_product_launch
from outrider.kernels.triton.launch import Launch
from outrider.kernels.triton.plain_product import plain_product_launch
from outrider.kernels.triton.quantize import empty_scales
from outrider.kernels.triton.tiles import (
    MOST_TOKENS,
    TABLE,
    ProductShape,
    Tile,
    tile_by_rule,
    tile_candidates,
)
from outrider.kernels.weights import FP8_BLOCK, Fp8Weight

ITEMSIZES = {"bf16": 2, "fp8": 1}
TOKENS = {16: 8, 32: 32, 64: 64, MOST_TOKENS: 2048}
"""How many tokens are timed for each block_t."""

LARGER_THAN_CACHE = 2**28
WORTHWHILE = 0.97


def main() -> None:
    """Searches and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", choices=ITEMSIZES, action="append", help="all if left out")
    arguments = parser.parse_args()
    require_gpu()
    for dtype in arguments.dtype or ITEMSIZES:
        for shape in dict.fromkeys(shapes(ITEMSIZES[dtype])):
            for block_t, T in TOKENS.items():
                tile = fastest(shape, T, block_t)
                if tile is not None:
                    print(line(shape, block_t, tile), flush=True)


def shapes(itemsize: int) -> Iterator[ProductShape]:
    """Yields the products of both models, whole and an eighth of them."""
    for setting in settings():
        if setting.num_tokens == FEW_TOKENS:
            for N, K in linear_shapes(setting):
                yield ProductShape(H=1, N=N, K=K, itemsize=itemsize)
            if itemsize == ITEMSIZES["bf16"]:
                yield from head_shapes(setting)


def head_shapes(setting: Setting) -> Iterator[ProductShape]:
    """Yields the products of each head, into the latent space and out of it."""
    attention, H = published.latent(setting.config), setting.num_heads
    C = attention.latent_width
    yield ProductShape(H=H, N=C, K=attention.plain_width, itemsize=2)
    yield ProductShape(H=H, N=attention.value_width, K=C, itemsize=2)


def fastest(shape: ProductShape, T: int, block_t: int) -> Tile | None:
    """Returns the tile that takes the least time, or None if the rule's is as good."""
    rule = tile_by_rule(shape, T, block_t)
    times = {rule: time_of(shape, T, rule)}
    for tile in tile_candidates(shape, block_t):
        if tile not in times and not spills(shape, T, tile):
            times[tile] = time_of(shape, T, tile)
    best = min(times, key=times.__getitem__)
    return best if times[best] < WORTHWHILE * times[rule] else None


def spills(shape: ProductShape, T: int, tile: Tile) -> bool:
    """Whether the tile needs more registers than there are on this GPU."""
    major, minor = torch.cuda.get_device_capability()
    return compile_launch(launch(shape, T, tile, torch.device("meta")), 10 * major + minor).spills > 0


def time_of(shape: ProductShape, T: int, tile: Tile) -> float:
    """Returns the seconds of a product whose weight lies in no cache."""
    num_copies = 1 + LARGER_THAN_CACHE // (shape.H * shape.N * shape.K * shape.itemsize)
    device = torch.device("cuda")
    runs: list[Run] = [partial(Launch.run, launch(shape, T, tile, device)) for _ in range(num_copies)]
    return seconds(runs, device)


def launch(shape: ProductShape, T: int, tile: Tile, device: torch.device) -> Launch:
    """A product with a tile, of zeros: what numbers they are does not show in the time."""
    H, N, K = shape.H, shape.N, shape.K
    zeros = partial(torch.zeros, device=device)
    with patch.dict(TABLE, {(shape, tile.block_t): tile}):
        if shape.itemsize == ITEMSIZES["bf16"]:
            x, weight, y = (
                zeros(*sizes, dtype=torch.bfloat16) for sizes in ((T, H, K), (H, N, K), (T, H, N))
            )
            return plain_product_launch(x, weight, y)
        blocks = -(-N // FP8_BLOCK), -(-K // FP8_BLOCK)
        weight = Fp8Weight(
            values=zeros(N, K, dtype=torch.float8_e4m3fn), scales=zeros(*blocks), dtype=torch.bfloat16
        )
        values = zeros(T, K, dtype=torch.float8_e4m3fn)
        y = zeros(T, N, dtype=torch.bfloat16)
        return fp8_product_launch(values, empty_scales(T, K, device), weight, y)


def line(shape: ProductShape, block_t: int, tile: Tile) -> str:
    """Returns the entry of the table, as Python."""
    return f"    ({shape!r}, {block_t}): {tile!r},"


if __name__ == "__main__":
    main()
