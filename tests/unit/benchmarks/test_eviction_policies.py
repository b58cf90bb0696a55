"""Candidates for block eviction keep the block pool whole, and the one that foresees is a bound."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.eviction import BLOCK_SIZE, Request, hit_rate, policies, request
from benchmarks.eviction_policies import ByUses, Learned, SegmentedLru, Weighted
from services.scheduler.blocks import BlockPool
from services.scheduler.eviction import Eviction, LeastRecentlyUsed

NUM_BLOCKS = 8
CANDIDATES: list[Callable[[], Eviction]] = [
    LeastRecentlyUsed,
    SegmentedLru,
    lambda: ByUses(Weighted()),
    lambda: ByUses(Learned(half_life=16)),
]
prefixes = st.tuples(st.sampled_from("abcd"), st.integers(1, 4))


@pytest.mark.parametrize("make", CANDIDATES)
@given(asked=st.lists(prefixes, max_size=40))
@settings(max_examples=30, deadline=None)
def test_every_block_stays_in_one_place(make: Callable[[], Eviction], asked: list[tuple[str, int]]) -> None:
    pool = BlockPool(num_blocks=NUM_BLOCKS, block_size=4, evictable=make())
    for name, length in asked:
        hashes = [f"{name}{index}".encode() for index in range(length)]
        cached = pool.match(hashes)
        pool.share(cached)
        table = cached + pool.allocate(length - len(cached))
        for block_id, block_hash in zip(table, hashes, strict=True):
            pool.publish(block_id, block_hash)
        pool.check([table])
        pool.release(table)
        pool.check([])
    assert pool.num_free_blocks == NUM_BLOCKS


def drawn_requests(rng: Random, count: int) -> list[Request]:
    """Requests of some recurring texts, of different lengths."""
    texts = [[rng.randrange(100) for _ in range(rng.randint(2, 8) * BLOCK_SIZE)] for _ in range(20)]
    return [request(rng.choice(texts), [1, 2, 3]) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_none_finds_more_than_the_one_that_foresees(seed: int) -> None:
    requests = drawn_requests(Random(seed), 200)
    num_blocks = 36
    rates = {
        name: hit_rate(requests, one, num_blocks) for name, one in policies(requests, num_blocks).items()
    }
    assert max(rates.values()) == rates["foreseeing"]
    assert 0 < min(rates.values()) < rates["foreseeing"] < 1


def test_a_cache_that_holds_everything_misses_only_what_is_new() -> None:
    requests = drawn_requests(Random(1), 100)
    seen: set[bytes] = set()
    num_found = 0
    for one in requests:
        prompt = one.hashes[: one.num_prompt_blocks]
        num_found += sum(block_hash in seen for block_hash in prompt)
        seen.update(one.hashes)
    expected = num_found / sum(one.num_prompt_blocks for one in requests)
    assert hit_rate(requests, LeastRecentlyUsed(), 500) == pytest.approx(expected)
