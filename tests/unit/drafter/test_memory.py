"""The memory of all tenants: its budget, and the walls between tenants."""

import asyncio
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.drafter.memory import CHUNK, SuffixMemory, pieces
from services.drafter.suffix_index import BYTES_PER_INDEX, SuffixIndex

tenants = st.sampled_from(["a", "b", "c"])
tokens = st.lists(st.integers(0, 50), max_size=150)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("remember"), tenants, tokens),
        st.tuples(st.just("open"), tenants, st.just([])),
        st.tuples(st.just("extend"), st.just(""), tokens),
        st.tuples(st.just("close"), st.just(""), st.just([])),
    ),
    max_size=25,
)


def open_index(memory: SuffixMemory, tenant: str, running: list[SuffixIndex]) -> SuffixIndex:
    """Opens an index, which is among the running ones until it is dropped."""
    index = SuffixIndex()
    running.append(index)
    memory.open(tenant, index, lambda: running.remove(index))
    return index


async def apply(memory: SuffixMemory, running: list[SuffixIndex], operation: tuple) -> None:
    verb, tenant, token_ids = operation
    if verb == "remember":
        await memory.remember(tenant, token_ids)
    elif verb == "open":
        open_index(memory, tenant, running)
    elif verb == "extend" and running:
        memory.extend(running[-1], token_ids)
    elif verb == "close" and running:
        memory.close(running.pop(0))


@given(operations=operations, budget=st.integers(0, 200_000))
def test_bytes_stay_under_the_budget_whatever_happens(operations, budget) -> None:
    async def run() -> None:
        memory, running = SuffixMemory(budget), []
        for operation in operations:
            await apply(memory, running, operation)
            memory.check()
            held = sum(memory.bytes_by_tenant.values()) + sum(index.num_bytes for index in running)
            assert memory.num_bytes == held <= budget

    asyncio.run(run())


async def test_a_tenant_never_gets_another_tenants_text() -> None:
    memory = SuffixMemory(1 << 20)
    await memory.remember("a", list(range(100)))
    assert memory.memory_of("b") is None
    await memory.remember("b", list(range(200, 300)))
    other = memory.memory_of("b")
    assert other is not None
    assert not other.guess(array("I", range(20, 40)), 8).token_ids


async def test_the_tenant_that_holds_most_forgets_first() -> None:
    memory = SuffixMemory(500_000)
    await memory.remember("small", range(100))
    small = memory.bytes_by_tenant["small"]
    for start in range(0, 20_000, 1000):
        await memory.remember("large", range(start, start + 1000))
    assert memory.bytes_by_tenant["small"] == small
    assert 400_000 < memory.num_bytes <= 500_000


async def test_the_oldest_text_is_forgotten_first() -> None:
    memory = SuffixMemory(600_000)
    for start in range(0, 10_000, 500):
        await memory.remember("a", range(start, start + 500))
    index = memory.memory_of("a")
    assert index is not None
    assert not index.guess(array("I", range(20, 40)), 8).token_ids
    assert index.guess(array("I", range(9600, 9620)), 8).token_ids


async def test_a_tenant_of_whom_nothing_is_left_takes_no_bytes() -> None:
    memory = SuffixMemory(3 * BYTES_PER_INDEX)
    await memory.remember("a", [1, 2, 3])
    running: list[SuffixIndex] = []
    memory.extend(open_index(memory, "a", running), [1])
    open_index(memory, "a", running)
    assert len(running) == 2
    assert memory.bytes_by_tenant == {}


async def test_running_sequences_make_their_own_tenant_forget_and_then_drop_the_largest() -> None:
    memory = SuffixMemory(1_000_000)
    await memory.remember("modest", range(300))
    await memory.remember("greedy", range(300))
    modest, greedy = [], []
    open_index(memory, "modest", modest)
    for number in range(3):
        index = open_index(memory, "greedy", greedy)
        for piece in pieces(range(500 * (number + 1))):
            if index in greedy:
                memory.extend(index, piece)
            memory.check()
    assert "greedy" not in memory.bytes_by_tenant
    assert [len(index) for index in greedy] == [500]
    assert len(modest) == 1
    other = memory.memory_of("modest")
    assert other is not None
    assert other.guess(array("I", range(20)), 4).token_ids == (20, 21, 22, 23)


def test_a_running_sequence_for_which_there_is_no_room_is_dropped() -> None:
    memory = SuffixMemory(BYTES_PER_INDEX + 1000)
    running: list[SuffixIndex] = []
    memory.extend(open_index(memory, "a", running), range(100))
    assert running == []
    assert memory.num_bytes == 0


async def test_texts_remembered_at_the_same_time_do_not_mix() -> None:
    memory = SuffixMemory(10 << 20)
    first, second = range(3 * CHUNK), range(10_000, 10_000 + 3 * CHUNK)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(memory.remember("a", first))
        tasks.create_task(memory.remember("a", second))
    index = memory.memory_of("a")
    assert index is not None
    for text in (first, second):
        assert index.guess(array("I", text[CHUNK - 20 : CHUNK]), 4).token_ids == tuple(
            text[CHUNK : CHUNK + 4]
        )


async def test_a_text_whose_adding_is_cancelled_still_ends() -> None:
    memory = SuffixMemory(10 << 20)
    task = asyncio.create_task(memory.remember("a", range(3 * CHUNK)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await memory.remember("a", range(5000, 5100))
    memory.check()
    index = memory.memory_of("a")
    assert index is not None
    assert 5000 not in index.guess(array("I", range(CHUNK - 20, CHUNK)), 8).token_ids


def test_pieces_are_the_whole_text() -> None:
    text = list(range(2 * CHUNK + 7))
    assert [token_id for piece in pieces(text) for token_id in piece] == text
    assert max(len(piece) for piece in pieces(text)) == CHUNK
