"""The source of drafts that looks back: in the sequence's own text and in the tenant's memory."""

from array import array
from collections.abc import Iterable

import pytest
from opentelemetry.trace import INVALID_SPAN

from outrider.v1 import sampling_pb2
from services.drafter.guess import Guess
from services.drafter.memory import SuffixMemory
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question
from services.drafter.suffix_source import QUESTIONS_PER_TURN, SuffixSource


@pytest.fixture
def memory() -> SuffixMemory:
    return SuffixMemory(16 << 20)


@pytest.fixture
def source(memory) -> SuffixSource:
    return SuffixSource(memory)


def sequence(token_ids: Iterable[int], tenant: str = "a", num_prompt_tokens: int = 0) -> RunningSequence:
    opened = RunningSequence(
        id=1,
        tenant=tenant,
        num_prompt_tokens=num_prompt_tokens,
        params=sampling_pb2.SequenceParams(),
        span=INVALID_SPAN,
    )
    opened.extend(array("I", token_ids))
    return opened


def extend(source: SuffixSource, running: RunningSequence, token_ids: Iterable[int]) -> None:
    more = array("I", token_ids)
    running.extend(more)
    source.extend(running, len(more))


async def guess(source: SuffixSource, running: RunningSequence, assumed: Iterable[int] = (), num=4) -> Guess:
    (found,) = await source.guess([Question(sequence=running, assumed=tuple(assumed), max_num_tokens=num)])
    return found


async def finish(source: SuffixSource, token_ids: Iterable[int], tenant: str = "a") -> None:
    done = sequence(token_ids, tenant)
    source.open(done)
    await source.close(done, finished=True)


async def test_a_sequence_is_guessed_from_its_own_past(source) -> None:
    running = sequence([5, 6, 7, 8, 9])
    source.open(running)
    assert await guess(source, running) == Guess()
    extend(source, running, [5, 6])
    assert (await guess(source, running, num=3)).token_ids == (7, 8, 9)


async def test_a_sequence_is_guessed_from_what_its_tenants_finished_ones_said(source) -> None:
    await finish(source, range(100))
    running = sequence(range(20))
    source.open(running)
    found = await guess(source, running)
    assert found.token_ids == (20, 21, 22, 23)
    assert found.match_length == 20
    assert len(found.alternatives) == 5


@pytest.mark.parametrize("seen", ["in its own text", "in the memory"])
async def test_a_guess_ends_with_the_first_stop_token_and_nothing_is_guessed_behind_one(source, seen) -> None:
    if seen == "in the memory":
        await finish(source, range(100))
        running = sequence(range(20))
    else:
        running = sequence([*range(30), *range(20)])
    running.params.sampling.stop_token_ids.extend([22, 24])
    source.open(running)
    found = await guess(source, running, num=8)
    assert found.token_ids == (20, 21, 22)
    assert len(found.confidences) == 3
    assert found.alternatives[3:] == ((),)
    assert await guess(source, running, assumed=[20, 21, 22]) == Guess()


async def test_a_sequence_of_another_tenant_gets_nothing_of_it(source) -> None:
    await finish(source, range(100), tenant="a")
    running = sequence(range(20), tenant="b")
    source.open(running)
    assert await guess(source, running) == Guess()


async def test_the_better_of_both_guesses_is_taken(source) -> None:
    await finish(source, [*range(10, 40), 1, 2, 9])
    running = sequence([1, 2, 3, *range(10, 40), 1, 2])
    source.open(running)
    assert (await guess(source, running, num=1)).token_ids == (9,)
    other = sequence([*range(50, 80), 1, 2, 3, *range(50, 80), 1, 2])
    source.open(other)
    assert (await guess(source, other, num=1)).token_ids == (3,)


async def test_what_is_assumed_counts_for_both_and_is_not_learnt(source, memory) -> None:
    await finish(source, range(100))
    running = sequence([7, 7])
    source.open(running)
    assert (await guess(source, running, range(30, 50))).token_ids == (50, 51, 52, 53)
    own = sequence([200, 201, 202, 203, 7])
    source.open(own)
    assert (await guess(source, own, [200, 201], num=2)).token_ids == (202, 203)
    assert await guess(source, own, [7, 8]) == await guess(source, own, [7, 8])
    memory.check()


async def test_an_unfinished_sequence_leaves_nothing(source, memory) -> None:
    running = sequence(range(100))
    source.open(running)
    assert memory.num_bytes > 0
    await source.close(running, finished=False)
    assert memory.num_bytes == 0


async def test_a_sequence_whose_index_made_room_still_gets_drafts_from_the_memory() -> None:
    memory = SuffixMemory(60_000)
    source = SuffixSource(memory)
    await finish(source, range(100), tenant="small")
    running = sequence([], tenant="small")
    source.open(running)
    for start in range(1000, 21_000, 1000):
        extend(source, running, range(start, start + 1000))
    memory.check()
    extend(source, running, range(20))
    assert await guess(source, running, num=1) == Guess()
    await finish(source, range(100), tenant="small")
    assert (await guess(source, running, num=1)).token_ids == (20,)
    await source.close(running, finished=True)


async def test_a_question_that_the_sequence_has_outgrown_has_no_answer(source) -> None:
    running = sequence([5, 6, 7, 5, 6])
    source.open(running)
    question = Question(sequence=running, max_num_tokens=2)
    extend(source, running, [7])
    assert await source.guess([question]) == [Guess()]


async def test_many_questions_are_answered_in_their_order(source) -> None:
    running = sequence(range(100))
    source.open(running)
    ends = [20 + number % 60 for number in range(3 * QUESTIONS_PER_TURN)]
    questions = [
        Question(sequence=running, assumed=tuple(range(end - 10, end)), max_num_tokens=1) for end in ends
    ]
    assert [found.token_ids for found in await source.guess(questions)] == [(end,) for end in ends]


async def test_prompts_are_learnt_with_outputs(source) -> None:
    done = sequence(range(100), num_prompt_tokens=60)
    source.open(done)
    await source.close(done, finished=True)
    running = sequence(range(20))
    source.open(running)
    assert (await guess(source, running)).token_ids == (20, 21, 22, 23)
