"""How products are cut into programs."""

import pytest

from outrider.kernels.triton.tiles import (
    MOST_TOKENS,
    SHARED_BYTES,
    ProductShape,
    product_tile,
    tile_by_rule,
    tile_candidates,
)

SHAPES = [
    ProductShape(H=H, N=N, K=K, itemsize=itemsize)
    for H, N, K in [(1, 2112, 7168), (1, 36864, 7168), (1, 163840, 7168), (64, 512, 128), (1, 97, 48)]
    for itemsize in (1, 2)
]
NUM_TOKENS = [1, 16, 17, 32, 64, 65, 128, 8192]
EVERY_SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=str)


@EVERY_SHAPE
def test_the_inputs_multiplied_at_a_time_are_given_by_the_weight(shape):
    assert len({product_tile(shape, T).block_k for T in NUM_TOKENS}) == 1
    assert {tile.block_k for tile in tile_candidates(shape, 16)} == {product_tile(shape, 1).block_k}


@EVERY_SHAPE
def test_every_tile_fits_the_memory_of_a_processor(shape):
    for T in NUM_TOKENS:
        tile = product_tile(shape, T)
        assert tile.shared_bytes(shape.itemsize) <= SHARED_BYTES
        assert tile.block_t <= MOST_TOKENS


@EVERY_SHAPE
def test_few_tokens_take_one_tile(shape):
    assert all(product_tile(shape, T).block_t >= T for T in NUM_TOKENS if T <= MOST_TOKENS)


@pytest.mark.parametrize("shape", SHAPES[:8], ids=str)
def test_the_search_tries_what_the_rule_chooses(shape):
    for T, block_t in ((8, 16), (2048, MOST_TOKENS)):
        assert tile_by_rule(shape, T, block_t) in set(tile_candidates(shape, block_t))
