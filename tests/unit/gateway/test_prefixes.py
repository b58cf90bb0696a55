"""What is remembered of a group's prefix cache."""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.prefixes import PrefixMemory, block_hashes

BLOCK_SIZE = 2
TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=30)


def hashes_of(text: list[int], tenant: str = "a") -> tuple[bytes, ...]:
    return block_hashes(tenant, text, BLOCK_SIZE)


def num_alike(one: list[int], other: list[int]) -> int:
    """Returns how many full blocks two texts have in common from their beginning on."""
    num = 0
    while one[: num + BLOCK_SIZE] == other[: num + BLOCK_SIZE] and num + BLOCK_SIZE <= min(
        len(one), len(other)
    ):
        num += BLOCK_SIZE
    return num // BLOCK_SIZE


@given(TEXTS, st.lists(st.integers(0, 2), max_size=12))
def test_the_longest_prefix_of_any_text_is_known(texts: list[list[int]], text: list[int]) -> None:
    memory = PrefixMemory(10_000)
    for before in texts:
        memory.add(hashes_of(before))
    longest = max((num_alike(before, text) for before in texts), default=0)
    assert memory.num_known(hashes_of(text)) == longest


@given(TEXTS, st.integers(1, 8), st.data())
def test_it_is_bounded_and_keeps_no_block_without_those_before_it(
    texts: list[list[int]], max_num_blocks: int, data: st.DataObject
) -> None:
    memory = PrefixMemory(max_num_blocks)
    everything = [hashes_of(text) for text in texts]
    for hashes in everything:
        memory.add(hashes)
        if hashes and data.draw(st.booleans()):
            memory.forget(data.draw(st.sampled_from(hashes)))
        assert len(memory) <= max_num_blocks
        known = {block_hash for text in everything for block_hash in text[: memory.num_known(text)]}
        assert len(known) == len(memory)


def test_the_least_recently_used_text_is_forgotten_first() -> None:
    memory = PrefixMemory(4)
    first, second, third = ([token] * 4 for token in range(3))
    for text in (first, second, first, third):
        memory.add(hashes_of(text))
    assert [memory.num_known(hashes_of(text)) for text in (first, second, third)] == [2, 0, 2]


def test_a_block_that_the_group_had_evicted_takes_all_older_ones_with_it() -> None:
    memory = PrefixMemory(100)
    old, missed, young = ([token] * 8 for token in range(3))
    for text in (old, missed, young):
        memory.add(hashes_of(text))
    memory.forget(hashes_of(missed)[1])
    assert [memory.num_known(hashes_of(text)) for text in (old, missed, young)] == [0, 1, 4]


def test_tenants_know_nothing_of_each_other() -> None:
    memory = PrefixMemory(100)
    memory.add(hashes_of([1] * 8, tenant="a"))
    assert memory.num_known(hashes_of([1] * 8, tenant="b")) == 0


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20), st.integers(0, 20))
def test_hashes_go_on_from_those_that_are_known(text: list[int], num: int) -> None:
    known = hashes_of(text[:num])
    assert block_hashes("a", text, BLOCK_SIZE, known=known) == hashes_of(text)
