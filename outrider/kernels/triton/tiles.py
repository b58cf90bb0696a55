"""How work is cut into programs: by shapes alone, so that it is the same in every step and on every machine.

Neither the outputs nor the tokens of a tile show in the bits of a product; the number of inputs that it
multiplies at a time might, and is given by the weight. The rules were reasoned out and compiled ahead of time
for sm_90 and sm_100 (no spills, shared memory within the limit). TABLE is for shapes that
benchmarks/tile_search.py, which times all candidates on a GPU, finds to run faster otherwise: it has not been
run yet, since no GPU was to be had.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

MOST_TOKENS = 128
"""No program of a product takes more tokens."""

NUM_PROCESSORS = 132  # of an H200; a B200 has 148
SHARED_BYTES = 232_448  # that a program may have, on both


@dataclass(frozen=True, kw_only=True)
class Tile:
    """What one program of a product computes, and how."""

    block_m: int  # outputs of the weight
    block_t: int  # tokens
    block_k: int  # inputs multiplied at a time
    num_warps: int
    num_stages: int  # loads in flight, in steps of block_k

    def shared_bytes(self, itemsize: int) -> int:
        return self.num_stages * (self.block_m + self.block_t) * self.block_k * itemsize


@dataclass(frozen=True, kw_only=True)
class ProductShape:
    """A product with H weights [N, K] of elements of some bytes."""

    H: int
    N: int
    K: int
    itemsize: int


TABLE: dict[tuple[ProductShape, int], Tile] = {}
"""The tile of a shape and a block_t."""


def num_tiles(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)


def padded_size(size: int) -> int:
    """The next power of two, of which Triton's blocks are."""
    return 1 << (size - 1).bit_length()


def product_tile(shape: ProductShape, T: int) -> Tile:
    """The tile of a product of T tokens on tensor cores."""
    block_t = next((tokens for tokens in (16, 32, 64) if tokens >= T), MOST_TOKENS)
    return TABLE.get((shape, block_t)) or tile_by_rule(shape, T, block_t)


def tile_by_rule(shape: ProductShape, T: int, block_t: int) -> Tile:
    """Larger tiles where there are enough for every processor; as many loads in flight as memory allows."""

    def num_programs(block_m: int) -> int:
        return shape.H * num_tiles(shape.N, block_m) * num_tiles(T, block_t)

    # FP8 keeps a second sum, a block's own, for which 128 by 128 leaves no registers.
    narrow = shape.itemsize == 1 and block_t == MOST_TOKENS
    block_m = 128 if num_programs(128) >= 2 * NUM_PROCESSORS and not narrow else 64
    block_k = min(128, max(16, padded_size(shape.K)))
    num_warps = 8 if block_m * block_t >= 128 * 64 else 4
    tile = Tile(block_m=block_m, block_t=block_t, block_k=block_k, num_warps=num_warps, num_stages=1)
    fitting = SHARED_BYTES // tile.shared_bytes(shape.itemsize)
    # Two programs share a processor where there are that many and each keeps two loads in flight.
    if num_programs(block_m) > NUM_PROCESSORS and fitting >= 6:
        fitting //= 2
    return replace(tile, num_stages=min(8, fitting, num_tiles(shape.K, block_k) + 1))


def tile_candidates(shape: ProductShape, block_t: int) -> Iterator[Tile]:
    """What the search tries: everything that fits, with the shape's one block_k."""
    block_k = tile_by_rule(shape, 1, block_t).block_k
    for block_m in (64, 128):
        for num_warps in (4, 8):
            for num_stages in range(2, 9):
                tile = Tile(
                    block_m=block_m,
                    block_t=block_t,
                    block_k=block_k,
                    num_warps=num_warps,
                    num_stages=num_stages,
                )
                if tile.shared_bytes(shape.itemsize) <= SHARED_BYTES:
                    yield tile


def fp32_tile(K: int, T: int) -> Tile:
    """The tile of a product in full fp32 with a weight of K inputs."""
    if T > 16:
        return Tile(block_m=32, block_t=32, block_k=256, num_warps=8, num_stages=2)
    # Long sums take few outputs, so that many processors share them.
    block_m = 4 if K >= 1024 else 8
    if T > 4:
        return Tile(block_m=block_m, block_t=16, block_k=256, num_warps=4, num_stages=5)
    return Tile(block_m=block_m, block_t=4, block_k=256, num_warps=4, num_stages=6)
