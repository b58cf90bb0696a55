"""The blocks of a draft model: every one in its place, and what is cached is what a table says."""

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from services.drafter.kv_blocks import KVBlocks, num_common

BLOCK_SIZE = 4
NUM_BLOCKS = 12
# Few distinct tokens, so that texts begin alike.
texts = st.lists(st.integers(0, 1), min_size=1, max_size=30).map(lambda tokens: array("I", tokens))
calls = st.lists(st.tuples(st.integers(0, 3), texts, st.booleans()), min_size=1, max_size=5)


class Cache:
    """What a model would have written: each slot holds the text up to its token, as keys and values do."""

    def __init__(self):
        self.slots = {}

    def compute(self, table, text):
        first = table.num_tokens
        for place, slot in zip(range(first, len(text)), table.slots(first, len(text)), strict=True):
            self.slots[slot] = text[: place + 1]
        table.token_ids.extend(text[first:])

    def check(self, table):
        for place, slot in enumerate(table.slots(0, table.num_tokens)):
            assert self.slots[slot] == table.token_ids[: place + 1]


@settings(max_examples=300)
@given(st.lists(calls, max_size=8))
def test_a_table_holds_the_text_whatever_was_forked_evicted_and_rolled_back(history):
    blocks, cache = KVBlocks(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE), Cache()
    for call in history:
        blocks.begin()
        used, branches = [], []
        for owner, text, forks in call:
            table = blocks.take(owner)
            if forks or table in used:
                table = blocks.fork(table, text)
                branches.append(table)
            else:
                blocks.roll_back(table, text)
            assert table.token_ids == text[: table.num_tokens]
            if blocks.reserve(table, len(text)):
                cache.compute(table, text)
            used.append(table)
            blocks.check()
        for table in used:
            cache.check(table)
        for branch in branches:
            blocks.release(branch)
        blocks.check()
    for owner in range(4):
        blocks.drop(owner)
    blocks.check()
    assert blocks.reserve(blocks.take("anew"), NUM_BLOCKS * BLOCK_SIZE)


def test_a_text_that_goes_on_keeps_all_that_is_cached():
    blocks = KVBlocks(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    table = blocks.take("a")
    assert blocks.reserve(table, 10)
    table.token_ids.extend(range(10))
    blocks.begin()
    blocks.roll_back(blocks.take("a"), array("I", range(20)))
    assert table.num_tokens == 10


def test_rejected_tokens_are_rolled_back_and_their_blocks_freed():
    blocks = KVBlocks(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    table = blocks.take("a")
    assert blocks.reserve(table, 10)
    table.token_ids.extend(range(10))
    blocks.roll_back(table, array("I", [0, 1, 2, 9]))
    assert table.token_ids == array("I", [0, 1, 2])
    assert len(table.block_ids) == 1


def test_a_branch_shares_whole_blocks_only():
    blocks = KVBlocks(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    table = blocks.take("a")
    assert blocks.reserve(table, 10)
    table.token_ids.extend(range(10))
    branch = blocks.fork(table, array("I", range(10)))
    assert branch.num_tokens == 8
    assert branch.block_ids == table.block_ids[:2]


def test_the_sequence_used_least_recently_gives_its_blocks_up():
    blocks = KVBlocks(num_blocks=3, block_size=BLOCK_SIZE)
    for owner in ("a", "b", "c"):
        assert blocks.reserve(blocks.take(owner), 1)
        blocks.take(owner).token_ids.append(0)
    blocks.begin()
    assert blocks.reserve(blocks.take("a"), 2 * BLOCK_SIZE)
    blocks.begin()
    assert [blocks.take(owner).num_tokens for owner in ("a", "b", "c")] == [1, 0, 1]


def test_what_a_call_uses_is_not_evicted_in_it():
    blocks = KVBlocks(num_blocks=2, block_size=BLOCK_SIZE)
    blocks.begin()
    assert blocks.reserve(blocks.take("a"), 2 * BLOCK_SIZE)
    assert not blocks.reserve(blocks.take("b"), 1)
    blocks.begin()
    assert blocks.reserve(blocks.take("b"), 1)


def test_a_text_longer_than_all_there_is_takes_nothing_from_others():
    blocks = KVBlocks(num_blocks=3, block_size=BLOCK_SIZE)
    for owner in ("a", "b"):
        assert blocks.reserve(blocks.take(owner), 1)
        blocks.take(owner).token_ids.append(0)
    blocks.begin()
    assert not blocks.reserve(blocks.take("long"), 3 * BLOCK_SIZE + 1)
    blocks.check()
    assert [blocks.take(owner).num_tokens for owner in ("a", "b")] == [1, 1]


@given(texts, texts)
def test_texts_have_in_common_what_they_begin_with(first, second):
    length = num_common(first, second)
    assert first[:length] == second[:length]
    assert first[length : length + 1] != second[length : length + 1] or length == len(first) == len(second)
