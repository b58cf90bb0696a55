"""The memory of all tenants: its budget, and the walls between tenants."""

import asyncio
from array import array
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider_native.suffix import RunningText

from services.drafter.memory import BYTES_PER_TOKEN, MAX_NUM_TOKENS_AT_ONCE, PIECE, SuffixMemory

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


async def remember(memory: SuffixMemory, tenant: str, token_ids: Iterable[int], num_prompt_tokens=0) -> None:
    await memory.remember(tenant, array("I", token_ids), num_prompt_tokens)


def guess(memory: SuffixMemory, tenant: str, context: Iterable[int], max_num_tokens=4) -> tuple[int, ...]:
    found = memory.memory_of(tenant)
    return found.guess(array("I", context), array("I"), max_num_tokens)[0] if found is not None else ()


class Running:
    """The indexes of running sequences that were not dropped, with their tokens."""

    def __init__(self, memory: SuffixMemory) -> None:
        self.memory = memory
        self.texts: dict[RunningText, array] = {}

    def open(self, tenant: str) -> RunningText:
        text = self.memory.open(tenant, lambda: self.texts.pop(text))
        self.texts[text] = array("I")
        return text

    def extend(self, text: RunningText, token_ids: Iterable[int]) -> None:
        self.texts[text].extend(token_ids)
        self.memory.extend(text, self.texts[text])

    def close(self, text: RunningText) -> None:
        del self.texts[text]
        self.memory.close(text)


async def apply(memory: SuffixMemory, running: Running, operation: tuple) -> None:
    verb, tenant, token_ids = operation
    if verb == "remember":
        await remember(memory, tenant, token_ids, len(token_ids) // 2)
    elif verb == "open":
        running.open(tenant)
    elif verb == "extend" and running.texts:
        running.extend(list(running.texts)[-1], token_ids)
    elif verb == "close" and running.texts:
        running.close(next(iter(running.texts)))


@settings(deadline=None)
@given(operations=operations, budget=st.integers(0, 200_000), share=st.booleans())
def test_bytes_stay_under_the_budget_whatever_happens(operations, budget, share) -> None:
    async def run() -> None:
        memory = SuffixMemory(budget, share=share)
        running = Running(memory)
        for operation in operations:
            await apply(memory, running, operation)
            memory.check()
            assert memory.num_bytes <= budget

    asyncio.run(run())


async def test_a_tenant_never_gets_another_tenants_text() -> None:
    memory = SuffixMemory(1 << 20)
    await remember(memory, "a", range(100))
    assert memory.memory_of("b") is None
    await remember(memory, "b", range(200, 300))
    assert guess(memory, "a", range(20, 40)) == (40, 41, 42, 43)
    assert guess(memory, "b", range(20, 40)) == ()


async def test_tenants_share_one_memory_where_that_is_configured() -> None:
    memory = SuffixMemory(1 << 20, share=True)
    await remember(memory, "a", range(100))
    assert guess(memory, "b", range(20, 40)) == (40, 41, 42, 43)
    assert list(memory.bytes_by_tenant) == ["(all)"]


async def test_the_tenant_that_holds_most_forgets_first() -> None:
    memory = SuffixMemory(500_000)
    await remember(memory, "small", range(100))
    small = memory.bytes_by_tenant["small"]
    for start in range(0, 20_000, 1000):
        await remember(memory, "large", range(start, start + 1000))
    assert memory.bytes_by_tenant["small"] == small
    assert 300_000 < memory.num_bytes <= 500_000


async def test_of_texts_never_used_the_oldest_is_forgotten_first() -> None:
    memory = SuffixMemory(600_000)
    for start in range(0, 10_000, 500):
        await remember(memory, "a", range(start, start + 500))
    assert guess(memory, "a", range(20, 40)) == ()
    assert guess(memory, "a", range(9600, 9620)) != ()


@pytest.mark.parametrize("uses", [0, 5])
async def test_a_useful_old_text_outlives_a_flood_that_washes_away_an_unused_one(uses) -> None:
    rng, memory = Random(0), SuffixMemory(1_000_000)
    old = [rng.randrange(1000) for _ in range(500)]
    await remember(memory, "a", old)
    for _ in range(uses):
        await remember(memory, "a", [2000, *old[100:400]])
    capacity = 1_000_000 // BYTES_PER_TOKEN
    for _ in range(2 * capacity // 500):
        await remember(memory, "a", [rng.randrange(3000, 100_000) for _ in range(500)])
    memory.check()
    assert guess(memory, "a", old[200:220]) == (tuple(old[220:224]) if uses else ())


async def test_a_tenant_of_whom_nothing_is_left_takes_no_bytes() -> None:
    memory = SuffixMemory(13_000)
    await remember(memory, "a", range(100))
    assert "a" in memory.bytes_by_tenant
    running = Running(memory)
    running.extend(running.open("a"), [1, 2, 3])
    running.extend(running.open("a"), [1, 2, 3])
    assert len(running.texts) == 2
    assert memory.bytes_by_tenant == {}


async def test_running_sequences_make_their_own_tenant_forget_and_then_drop_the_largest() -> None:
    memory = SuffixMemory(120_000)
    await remember(memory, "modest", range(300))
    await remember(memory, "greedy", range(300))
    modest, greedy = Running(memory), Running(memory)
    modest.extend(modest.open("modest"), [1])
    for number in range(3):
        text = greedy.open("greedy")
        for start in range(0, 500 * (number + 1), 100):
            if text in greedy.texts:
                greedy.extend(text, range(start, start + 100))
            memory.check()
    assert "greedy" not in memory.bytes_by_tenant
    assert len(greedy.texts) < 3
    assert len(modest.texts) == 1
    assert guess(memory, "modest", range(20)) == (20, 21, 22, 23)


def test_a_running_sequence_for_which_there_is_no_room_is_dropped() -> None:
    memory = SuffixMemory(7_000)
    running = Running(memory)
    running.extend(running.open("a"), range(100))
    assert running.texts == {}
    assert memory.num_bytes == 0


async def test_texts_remembered_at_the_same_time_do_not_mix() -> None:
    memory = SuffixMemory(10 << 20)
    texts = range(3 * PIECE), range(10_000, 10_000 + 3 * PIECE)
    async with asyncio.TaskGroup() as tasks:
        for text in texts:
            tasks.create_task(remember(memory, "a", text))
    for text in texts:
        assert guess(memory, "a", text[PIECE - 20 : PIECE]) == tuple(text[PIECE : PIECE + 4])


async def test_a_text_whose_adding_is_cancelled_still_ends() -> None:
    memory = SuffixMemory(10 << 20)
    task = asyncio.create_task(remember(memory, "a", range(3 * PIECE)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await remember(memory, "a", range(5000, 5100))
    memory.check()
    assert guess(memory, "a", range(PIECE - 24, PIECE - 4), 8) == tuple(range(PIECE - 4, PIECE))


async def test_a_long_text_is_learnt_beside_and_lets_others_work_meanwhile() -> None:
    memory, turns = SuffixMemory(64 << 20), 0
    text = array("I", range(MAX_NUM_TOKENS_AT_ONCE + 1))
    await memory.learn("a", text, 0)
    assert memory.memory_of("a") is None
    learning = asyncio.create_task(memory.run())
    while not guess(memory, "a", text[-20:-4]):
        turns += 1
        await asyncio.sleep(0)
    learning.cancel()
    assert turns >= len(text) // PIECE


async def test_a_short_text_is_learnt_at_once() -> None:
    memory = SuffixMemory(1 << 20)
    await memory.learn("a", array("I", range(100)), 50)
    assert guess(memory, "a", range(40)) == (40, 41, 42, 43)


async def test_what_waits_to_be_learnt_is_bounded() -> None:
    memory, text = SuffixMemory(1 << 20), array("I", [0]) * (MAX_NUM_TOKENS_AT_ONCE + 1)
    for _ in range(1000):
        await memory.learn("a", text, 0)
    assert memory.memory_of("a") is None
