"""The sequences of one stream: what they take in, what they draft, what they leave behind."""

import asyncio
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import token_hash
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import drafter_pb2 as pb
from services.drafter.guess import SEPARATOR
from services.drafter.memory import SuffixMemory
from services.drafter.messages import Closed, Committed, Draft, News, Opened, Wanted
from services.drafter.sequences import MAX_NUM_DRAFT_TOKENS, Sequences


def opened(sequence_id: int, token_ids: list[int], tenant: str = "a") -> Opened:
    return Opened(
        sequence_id=sequence_id,
        tenant=tenant,
        token_ids=array("I", token_ids),
        num_prompt_tokens=len(token_ids),
        traceparent="",
    )


def committed(sequence_id: int, offset: int, token_ids: list[int]) -> Committed:
    return Committed(sequence_id=sequence_id, offset=offset, token_ids=array("I", token_ids))


def wanted(sequence_id: int, base_length: int, max_num_tokens: int = 8) -> Wanted:
    return Wanted(sequence_id=sequence_id, base_length=base_length, max_num_tokens=max_num_tokens)


async def follow(sequences: Sequences, *items: Opened | Committed | Closed | Wanted) -> list[Draft]:
    """Sends one message that holds all items."""
    news = News(
        opened=[item for item in items if isinstance(item, Opened)],
        committed=[item for item in items if isinstance(item, Committed)],
        closed=[item for item in items if isinstance(item, Closed)],
        wanted=[item for item in items if isinstance(item, Wanted)],
    )
    return await sequences.follow(news)


async def tokens_per_step(sequences: Sequences, prompt: list[int], answer: list[int]) -> float:
    """Replays an answer as a scheduler would: accepts what agrees, adds one token of the model's own."""
    text, position, num_steps = prompt + answer, len(prompt), 0
    await follow(sequences, opened(1, prompt))
    while position < len(text):
        (draft,) = await follow(sequences, wanted(1, position))
        num_accepted = 0
        for guessed, token_id in zip(draft.guess.token_ids, text[position:], strict=False):
            if guessed != token_id:
                break
            num_accepted += 1
        new = text[position : position + num_accepted + 1]
        await follow(sequences, committed(1, position, new))
        position, num_steps = position + len(new), num_steps + 1
    await follow(sequences, Closed(sequence_id=1, finished=True))
    return len(answer) / num_steps


@pytest.fixture
def memory() -> SuffixMemory:
    return SuffixMemory(32 << 20)


@pytest.fixture
def sequences(memory: SuffixMemory) -> Sequences:
    return Sequences(memory)


async def test_a_draft_names_the_tokens_that_it_follows(sequences) -> None:
    text = [1, 2, 3, 4, 1, 2, 3]
    (draft,) = await follow(sequences, opened(7, text), wanted(7, 7))
    assert (draft.sequence_id, draft.base_length) == (7, 7)
    assert draft.base_hash == token_hash.extend(token_hash.EMPTY, text)
    assert draft.guess.token_ids[0] == 4


async def test_the_hash_rolls_on_with_the_commits(sequences) -> None:
    await follow(sequences, opened(7, [1, 2, 3]), committed(7, 3, [4]), committed(7, 4, [5, 6]))
    (draft,) = await follow(sequences, wanted(7, 6))
    assert draft.base_hash == token_hash.extend(token_hash.EMPTY, [1, 2, 3, 4, 5, 6])


async def test_each_draft_wanted_is_answered_in_order(sequences) -> None:
    drafts = await follow(sequences, opened(1, [1, 2]), *(wanted(number, 2) for number in range(20)))
    assert [draft.sequence_id for draft in drafts] == list(range(20))


async def test_a_repeated_commit_changes_nothing(sequences) -> None:
    once = await follow(sequences, opened(1, [1, 2, 3, 1]), committed(1, 4, [2, 3]), wanted(1, 6))
    twice = await follow(sequences, opened(1, [1, 2, 3, 1]), committed(1, 4, [2, 3]), wanted(1, 6))
    overlapping = await follow(sequences, committed(1, 2, [3, 1, 2]), committed(1, 0, [1]), wanted(1, 6))
    assert once == twice == overlapping
    assert once[0].guess.token_ids


async def test_a_commit_that_overlaps_adds_only_what_is_new(sequences) -> None:
    await follow(sequences, opened(1, [1, 2, 3]), committed(1, 2, [3, 4, 5]))
    (draft,) = await follow(sequences, wanted(1, 5))
    assert draft.base_hash == token_hash.extend(token_hash.EMPTY, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("lost", [committed(1, 5, [9]), committed(1, 2, [4, 1])])
async def test_a_gap_or_a_contradiction_ends_the_drafts_of_that_sequence_only(sequences, lost) -> None:
    text = [1, 2, 3, 1]
    drafts = await follow(
        sequences, opened(1, text), opened(2, text), lost, committed(2, 4, [2]), wanted(1, 5), wanted(2, 5)
    )
    assert [bool(draft.guess.token_ids) for draft in drafts] == [False, True]


async def test_sequences_never_heard_of_are_harmless(sequences) -> None:
    drafts = await follow(sequences, committed(9, 0, [1]), Closed(sequence_id=9, finished=True), wanted(9, 1))
    assert [draft.guess.token_ids for draft in drafts] == [()]


async def test_a_draft_for_another_length_is_empty(sequences) -> None:
    drafts = await follow(sequences, opened(1, [1, 2, 1, 2]), wanted(1, 3), wanted(1, 5))
    assert [draft.guess.token_ids for draft in drafts] == [(), ()]


async def test_a_finished_sequence_helps_the_next_one_of_its_tenant_alone(sequences) -> None:
    text = list(range(50))
    await follow(sequences, opened(1, text), Closed(sequence_id=1, finished=True))
    drafts = await follow(
        sequences, opened(2, text[10:20]), opened(3, text[10:20], "b"), wanted(2, 10), wanted(3, 10)
    )
    assert [draft.guess.token_ids for draft in drafts] == [tuple(range(20, 28)), ()]


async def test_an_unfinished_sequence_is_not_remembered(sequences, memory) -> None:
    await follow(sequences, opened(1, list(range(50))), opened(2, list(range(50))))
    await follow(sequences, Closed(sequence_id=1, finished=False))
    sequences.forget()
    assert memory.num_bytes == 0


async def test_a_sequence_without_room_gets_empty_drafts() -> None:
    sequences = Sequences(SuffixMemory(100_000))
    drafts = await follow(
        sequences, opened(1, [1, 2] * 3), opened(2, list(range(10_000))), wanted(1, 6), wanted(2, 10_000)
    )
    assert [bool(draft.guess.token_ids) for draft in drafts] == [True, False]


@given(max_num_tokens=st.integers(0, 1000))
async def test_no_draft_is_longer_than_wanted(max_num_tokens) -> None:
    sequences = Sequences(SuffixMemory(1 << 20))
    (draft,) = await follow(sequences, opened(1, [1, 2] * 50), wanted(1, 100, max_num_tokens))
    assert len(draft.guess.token_ids) == min(max_num_tokens, MAX_NUM_DRAFT_TOKENS)


async def test_a_repeated_text_is_accepted_many_tokens_a_step(sequences) -> None:
    rng = random.Random(1)
    prompt, answer = ([rng.randrange(1000) for _ in range(300)] for _ in range(2))
    first = await tokens_per_step(sequences, prompt, answer)
    second = await tokens_per_step(sequences, prompt, answer)
    assert first < 1.1
    assert second > 8


async def test_text_that_repeats_itself_is_accepted_without_any_memory(sequences) -> None:
    rng = random.Random(2)
    line = [rng.randrange(1000) for _ in range(40)]
    answer = [token_id for number in range(8) for token_id in (*line, 5000 + number)]
    # The first line has to be written token by token.
    assert await tokens_per_step(sequences, [1], answer) > 3


async def test_a_long_text_is_taken_in_beside_while_short_ones_get_their_drafts(sequences) -> None:
    long = [number % 500 for number in range(20_000)]
    (draft, early) = await follow(
        sequences, opened(1, [1, 2] * 3), opened(2, long), wanted(1, 6), wanted(2, 20_000)
    )
    assert draft.guess.token_ids
    assert early.guess.token_ids == ()
    task = asyncio.create_task(sequences.index())
    await follow(sequences, committed(2, 20_000, [0, 1, 2]))
    late = early
    while not late.guess.token_ids:
        await asyncio.sleep(0)
        (late,) = await follow(sequences, wanted(2, 20_003))
    task.cancel()
    assert late.guess.token_ids == tuple(range(3, 11))
    assert late.base_hash == token_hash.extend(token_hash.EMPTY, [*long, 0, 1, 2])


async def test_a_long_text_that_has_finished_is_remembered_whole_beside(sequences, memory) -> None:
    long = list(range(20_000))
    await follow(sequences, opened(1, long), committed(1, 20_000, [5, 6]))
    await follow(sequences, Closed(sequence_id=1, finished=True))
    assert memory.memory_of("a") is None
    task = asyncio.create_task(sequences.remember())
    await sequences.finish()
    task.cancel()
    index = memory.memory_of("a")
    assert index is not None
    assert index.tokens[:20_002] == array("I", [*long, 5, 6])


async def test_sequences_of_one_tenant_never_drop_those_of_another() -> None:
    sequences = Sequences(SuffixMemory(3_000_000))
    text = list(range(50))
    await follow(sequences, opened(1, text + text, "modest"))
    for number in range(2, 6):
        await follow(sequences, opened(number, list(range(2000)), "greedy"))
    (draft,) = await follow(sequences, wanted(1, 100))
    assert draft.guess.token_ids == tuple(range(8))


async def test_random_text_gets_no_drafts(sequences) -> None:
    rng = random.Random(3)
    await follow(sequences, opened(1, [rng.randrange(100_000) for _ in range(2000)]))
    await follow(sequences, Closed(sequence_id=1, finished=True))
    text = [rng.randrange(100_000) for _ in range(500)]
    await follow(sequences, opened(2, []))
    num_guessed = 0
    for position, token_id in enumerate(text):
        (draft,) = await follow(sequences, wanted(2, position))
        num_guessed += len(draft.guess.token_ids)
        await follow(sequences, committed(2, position, [token_id]))
    assert num_guessed == 0


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"opened": [{"token_ids": [1, 2], "num_prompt_tokens": 3}]}, "opened.num_prompt_tokens"),
        ({"opened": [{"token_ids": [SEPARATOR]}]}, "opened.token_ids"),
        ({"opened": [{"tenant": "x" * 257}]}, "opened.tenant"),
        ({"committed": [{"token_ids": [1, SEPARATOR]}]}, "committed.token_ids"),
    ],
)
def test_a_wrong_message_is_refused_naming_the_field(item, field) -> None:
    with pytest.raises(InvalidArgument) as refused:
        News.from_proto(pb.ProposeRequest(**item))
    assert refused.value.field == field
