"""The drafts of one stream: several sources, each at its pace, what is wanted before what may come to be."""

import asyncio
import random
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from outrider import token_hash
from outrider.v1 import sampling_pb2
from services.drafter.drafting import MAX_NUM_DRAFT_TOKENS, MAX_NUM_WAITING, Drafting
from services.drafter.lane import Lane
from services.drafter.messages import Answer, Closed, Committed, News, Opened, Verifying, Wanted
from services.drafter.sequences import Sequences
from tests.unit.drafter.counting_source import CountingSource

HOUR = 3600.0
T = TypeVar("T")


class Stream:
    """A stream as its scheduler sees it: it says its news and gathers the answers."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.sequences = Sequences(lanes)
        self.drafting = Drafting(lanes, self.sequences, self.take)
        self.answers: list[Answer] = []
        self._has_answer = asyncio.Condition()

    async def take(self, answer: Answer) -> None:
        async with self._has_answer:
            self.answers.append(answer)
            self._has_answer.notify_all()

    async def say(self, **fields) -> None:
        await self.drafting.follow(News(**fields))

    async def until_complete(self, request_id: int) -> list[Answer]:
        """Returns the answers to a request, in the order in which they came."""
        async with self._has_answer:
            await self._has_answer.wait_for(lambda: any(a.complete for a in self.answers_to(request_id)))
        return self.answers_to(request_id)

    async def until_quiet(self) -> list[Answer]:
        """Returns what was drafted ahead, when no more is to come."""
        await self.drafting.finish()
        return self.answers_to(0)

    def answers_to(self, request_id: int) -> list[Answer]:
        return [answer for answer in self.answers if answer.request_id == request_id]


@asynccontextmanager
async def streams(*sources: CountingSource, number: int = 1) -> AsyncIterator[list[Stream]]:
    lanes = [Lane(source) for source in sources]
    found = [Stream(lanes) for _ in range(number)]
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(s.drafting.run()) for s in found]
        yield found
        for task in beside:
            task.cancel()


def opened(sequence_id: int, token_ids: list[int]) -> Opened:
    return Opened(
        sequence_id=sequence_id,
        tenant="a",
        token_ids=array("I", token_ids),
        num_prompt_tokens=0,
        params=sampling_pb2.SequenceParams(),
        traceparent="",
    )


def committed(sequence_id: int, offset: int, *token_ids: int) -> Committed:
    return Committed(sequence_id=sequence_id, offset=offset, token_ids=array("I", token_ids))


def wanted(sequence_id: int, base_length: int, *sources: str, max_num_tokens: int = 8) -> Wanted:
    return Wanted(
        sequence_id=sequence_id,
        base_length=base_length,
        max_num_tokens=max_num_tokens,
        sources=frozenset(sources),
    )


def verifying(sequence_id: int, base_length: int, *token_ids: int, max_num_tokens: int = 8) -> Verifying:
    return Verifying(
        sequence_id=sequence_id, base_length=base_length, token_ids=token_ids, max_num_tokens=max_num_tokens
    )


def hash_of(*token_ids: int) -> int:
    return token_hash.extend(token_hash.EMPTY, token_ids)


async def until_asked(source: CountingSource) -> None:
    while not source.asked:  # noqa: ASYNC110
        await asyncio.sleep(0)


def failures(source: str) -> float:
    return REGISTRY.get_sample_value("outrider_drafter_num_source_failures_total", {"source": source}) or 0.0


async def test_each_source_answers_for_itself_and_the_last_answer_says_so() -> None:
    async with streams(CountingSource("suffix", length=2), CountingSource("model", length=3)) as (stream,):
        await stream.say(
            opened=[opened(1, [5]), opened(2, [7, 8])], wanted=[wanted(1, 1), wanted(2, 2)], request_id=3
        )
        answers = await stream.until_complete(3)
        assert {answer.source: answer.num_questions for answer in answers} == {"suffix": 2, "model": 2}
        assert [answer.complete for answer in answers] == [False, True]
        by_source = {answer.source: answer.drafts for answer in answers}
        assert [draft.guess.token_ids for draft in by_source["suffix"]] == [(6, 7), (9, 10)]
        assert [draft.guess.token_ids for draft in by_source["model"]] == [(6, 7, 8), (9, 10, 11)]
        (_, draft) = by_source["model"]
        assert (draft.sequence_id, draft.base_length, draft.base_hash) == (2, 2, hash_of(7, 8))


async def test_only_the_sources_that_are_named_are_asked_each_in_one_batch() -> None:
    suffix, model = CountingSource("suffix"), CountingSource("model")
    async with streams(suffix, model) as (stream,):
        sequences = [opened(number, list(range(number))) for number in (1, 2, 3)]
        asked = [wanted(1, 1, "suffix"), wanted(2, 2, "suffix", "model"), wanted(3, 3, "model")]
        await stream.say(opened=sequences, wanted=asked, request_id=1)
        await stream.until_complete(1)
        assert suffix.asked == [[(1, ()), (2, ())]]
        assert model.asked == [[(2, ()), (3, ())]]


async def test_a_request_for_a_source_that_is_not_here_is_answered_all_the_same() -> None:
    async with streams(CountingSource("suffix")) as (stream,):
        await stream.say(opened=[opened(1, [1])], wanted=[wanted(1, 1, "head")], request_id=4)
        assert await stream.until_complete(4) == [Answer(request_id=4, complete=True)]


async def test_what_is_unknown_or_of_another_length_is_answered_without_a_draft() -> None:
    async with streams(CountingSource()) as (stream,):
        await stream.say(opened=[opened(1, [1, 2])], wanted=[wanted(1, 1), wanted(9, 2)], request_id=1)
        (answer,) = await stream.until_complete(1)
        assert answer.drafts == []
        assert answer.num_questions == 0


async def test_a_slow_source_holds_up_no_other_and_its_answers_come_in_the_end() -> None:
    quick, slow = CountingSource("suffix"), CountingSource("model")
    slow.gate.clear()
    async with streams(quick, slow) as (stream,):
        await stream.say(opened=[opened(1, [1])], wanted=[wanted(1, 1)], request_id=1)
        await until_asked(slow)
        await stream.say(committed=[committed(1, 1, 2)], wanted=[wanted(1, 2, "suffix")], request_id=2)
        (answer,) = await stream.until_complete(2)
        assert answer.source == "suffix"
        assert [answer.source for answer in stream.answers_to(1)] == ["suffix"]
        slow.gate.set()
        assert [answer.source for answer in await stream.until_complete(1)] == ["suffix", "model"]
        (late,) = stream.answers[-1].drafts
        assert (late.base_length, late.base_hash) == (1, hash_of(1))


async def test_a_source_is_not_asked_what_the_sequence_has_outgrown() -> None:
    slow = CountingSource("model")
    slow.gate.clear()
    async with streams(slow) as (stream,):
        await stream.say(opened=[opened(1, [1])], wanted=[wanted(1, 1)], request_id=1)
        await until_asked(slow)
        for length in (1, 2):
            await stream.say(
                committed=[committed(1, length, 2)], wanted=[wanted(1, length + 1)], request_id=length + 1
            )
        slow.gate.set()
        await stream.until_complete(3)
        assert slow.asked == [[(1, ())], [(3, ())]]


async def test_where_too_many_requests_wait_for_a_source_the_oldest_goes_without() -> None:
    slow = CountingSource("model")
    slow.gate.clear()
    async with streams(slow) as (stream,):
        await stream.say(opened=[opened(1, [1])])
        for number in range(1, MAX_NUM_WAITING + 3):
            await stream.say(wanted=[wanted(1, 1)], request_id=number)
            await until_asked(slow)
        (oldest,) = await stream.until_complete(2)
        assert oldest.num_questions == 0
        slow.gate.set()
        (newest,) = await stream.until_complete(MAX_NUM_WAITING + 2)
        assert newest.drafts


async def test_a_source_that_fails_has_no_guess_and_is_asked_again() -> None:
    broken, sound = CountingSource("model"), CountingSource("suffix")
    broken.is_broken = True
    before = failures("model")
    async with streams(broken, sound) as (stream,):
        await stream.say(opened=[opened(1, [1])], wanted=[wanted(1, 1)], request_id=1)
        drafts = {answer.source: len(answer.drafts) for answer in await stream.until_complete(1)}
        assert drafts == {"model": 0, "suffix": 1}
        broken.is_broken = False
        await stream.say(wanted=[wanted(1, 1)], request_id=2)
        drafts = {answer.source: len(answer.drafts) for answer in await stream.until_complete(2)}
        assert drafts == {"model": 1, "suffix": 1}
    assert failures("model") == before + 1


async def test_streams_share_a_source_one_call_at_a_time() -> None:
    source = CountingSource()
    async with streams(source, number=5) as found:
        for number, stream in enumerate(found):
            await stream.say(opened=[opened(1, [number])], wanted=[wanted(1, 1)], request_id=1)
        # The source itself asserts that it is not asked twice at once.
        answers = [(await stream.until_complete(1))[0] for stream in found]
    assert [answer.drafts[0].guess.token_ids[0] for answer in answers] == [1, 2, 3, 4, 5]
    assert len(source.asked) == 5


@given(max_num_tokens=st.integers(0, 1000))
async def test_no_draft_is_longer_than_wanted(max_num_tokens) -> None:
    async with streams(CountingSource(length=1000)) as (stream,):
        asked = [wanted(1, 1, max_num_tokens=max_num_tokens)]
        await stream.say(opened=[opened(1, [1])], wanted=asked, request_id=1)
        (answer,) = await stream.until_complete(1)
    lengths = [len(draft.guess.token_ids) for draft in answer.drafts]
    assert lengths == [length for length in [min(max_num_tokens, MAX_NUM_DRAFT_TOKENS)] if length]


async def test_drafts_made_ahead_follow_the_likely_outcomes_likeliest_first() -> None:
    async with streams(CountingSource(length=4, confidence=0.75)) as (stream,):
        await stream.say(opened=[opened(1, [10])], wanted=[wanted(1, 1)], request_id=1)
        await stream.until_complete(1)
        # Drafted: 11 12 13 14, and at each place the next but one with a chance of one in eight.
        await stream.say(verifying=[verifying(1, 1, 11, 12)], ahead_seconds=HOUR, request_id=2)
        ahead = [draft for answer in await stream.until_quiet() for draft in answer.drafts]
        outcomes = [(11, 12, 13), (12,), (11, 13), (11, 12, 14)]
        assert [draft.base_hash for draft in ahead] == [hash_of(10, *outcome) for outcome in outcomes]
        assert [draft.base_length for draft in ahead] == [4, 2, 3, 4]
        assert [draft.guess.token_ids[0] for draft in ahead] == [14, 13, 14, 15]


async def test_an_outcome_that_came_true_is_known_when_its_draft_is_verified() -> None:
    source = CountingSource(length=3)
    async with streams(source) as (stream,):
        await stream.say(opened=[opened(1, [10])], wanted=[wanted(1, 1)], request_id=1)
        await stream.until_complete(1)
        await stream.say(verifying=[verifying(1, 1, 11)], ahead_seconds=HOUR, request_id=2)
        await stream.until_quiet()
        source.asked.clear()
        # 12 was chosen instead of 11; its draft goes on with 13 14 15, and the first of these is verified.
        await stream.say(
            committed=[committed(1, 1, 12)],
            verifying=[verifying(1, 2, 13)],
            ahead_seconds=HOUR,
            request_id=3,
        )
        await stream.until_quiet()
        assert [assumed for batch in source.asked for _, assumed in batch] == [(13, 14), (14,), (13, 15)]


async def test_a_draft_of_unknown_origin_is_followed_until_its_bonus_token_is_guessed() -> None:
    async with streams(CountingSource(length=2)) as (stream,):
        await stream.say(opened=[opened(1, [10])])
        await stream.say(verifying=[verifying(1, 1, 50, 51)], ahead_seconds=HOUR, request_id=1)
        ahead = [draft for answer in await stream.until_quiet() for draft in answer.drafts]
        assert ahead[0].base_hash == hash_of(10, 50, 51)
        assert {draft.base_hash for draft in ahead[1:]} == {hash_of(10, 50, 51, 52), hash_of(10, 50, 51, 53)}


async def test_without_time_nothing_is_drafted_ahead() -> None:
    source = CountingSource()
    async with streams(source) as (stream,):
        await stream.say(opened=[opened(1, [1])], verifying=[verifying(1, 1)], request_id=1)
        await stream.say(verifying=[verifying(1, 1)], ahead_seconds=1e-9, request_id=2)
        assert await stream.until_quiet() == []
        assert source.asked == []


@pytest.mark.parametrize(
    "newer",
    [
        {"committed": [committed(1, 1, 2)]},
        {"wanted": [wanted(1, 1)]},
        {"verifying": [verifying(1, 1, 90)], "ahead_seconds": HOUR},
    ],
)
async def test_a_newer_message_ends_what_was_drafted_ahead_for_an_older(newer) -> None:
    source = CountingSource(length=2)
    async with streams(source) as (stream,):
        sequences = [opened(number, [number]) for number in range(1, 41)]
        await stream.say(opened=sequences)
        source.gate.clear()
        old = [verifying(number, 1, 70, 71) for number in range(1, 41)]
        await stream.say(verifying=old, ahead_seconds=HOUR, request_id=1)
        await until_asked(source)
        await stream.say(**newer, request_id=2)
        source.gate.set()
        await stream.until_quiet()
        later = [assumed for batch in source.asked[1:] for _, assumed in batch]
        assert not any(assumed[:1] == (70,) for assumed in later)


async def test_a_plan_left_while_the_source_was_busy_is_not_drafted_for_before_what_is_wanted() -> None:
    head, model = CountingSource("head"), CountingSource("model")
    turn = asyncio.Lock()
    stream = Stream([Lane(head, turn), Lane(model, turn)])
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(stream.drafting.run())
        await stream.say(opened=[opened(1, [10])])
        head.gate.clear()
        await stream.say(verifying=[verifying(1, 1, 50)], ahead_seconds=HOUR, request_id=1)
        await until_asked(head)
        await stream.say(committed=[committed(1, 1, 50, 7)], wanted=[wanted(1, 3)], request_id=2)
        head.gate.set()
        await stream.until_complete(2)
        beside.cancel()
    assert model.asked == [[(3, ())]]


async def test_for_what_is_closed_nothing_more_is_drafted_and_no_source_keeps_any_of_it() -> None:
    source = CountingSource(length=2)
    stream = Stream([Lane(source)])
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(stream.drafting.run()), tasks.create_task(stream.sequences.run())]
        ids = range(1, 41)
        await stream.say(opened=[opened(number, [number]) for number in ids])
        source.gate.clear()
        await stream.say(
            verifying=[verifying(number, 1, 70) for number in ids], ahead_seconds=HOUR, request_id=1
        )
        await until_asked(source)
        await stream.say(closed=[Closed(sequence_id=number, finished=False) for number in ids])
        source.gate.set()
        await stream.until_quiet()
        await stream.sequences.finish()
        for task in beside:
            task.cancel()
    assert len(source.asked) == 1
    assert not source.texts


async def test_a_source_that_hangs_holds_up_no_message_and_no_other_source(monkeypatch) -> None:
    monkeypatch.setattr("services.drafter.lane.MAX_NUM_ENDED", 50)
    quick, hung = CountingSource("suffix"), CountingSource("model")
    hung.gate.clear()
    stream = Stream([Lane(quick), Lane(hung)])
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(stream.drafting.run()), tasks.create_task(stream.sequences.run())]
        for number in range(1, 200):
            await stream.say(opened=[opened(number, [5])], wanted=[wanted(number, 1)], request_id=number)
            while not stream.answers_to(number):  # noqa: ASYNC110
                await asyncio.sleep(0)
            await stream.say(closed=[Closed(sequence_id=number, finished=True)])
        assert len(hung.texts) < 60
        hung.gate.set()
        await stream.drafting.finish()
        await stream.sequences.finish()
        for task in beside:
            task.cancel()
    assert len(quick.closed) == 199
    assert not hung.texts


async def test_what_is_wanted_goes_before_what_may_come() -> None:
    source = CountingSource(length=2)
    async with streams(source, number=2) as (busy, other):
        await busy.say(opened=[opened(number, [number]) for number in range(1, 41)])
        await other.say(opened=[opened(1, [1])])
        ahead = [verifying(number, 1, 70, 71) for number in range(1, 41)]
        await busy.say(
            verifying=ahead, wanted=[wanted(1, 1, max_num_tokens=1)], ahead_seconds=HOUR, request_id=1
        )
        await other.say(wanted=[wanted(1, 1)], request_id=1)
        await other.until_complete(1)
        assert source.asked[0] == [(1, ())]
        assert [(1, ())] in source.asked[1:3]
        await busy.until_quiet()


async def test_a_cancelled_stream_leaves_the_source_to_others_when_its_call_has_ended() -> None:
    source = CountingSource()
    source.gate.clear()
    lane = Lane(source)
    first, second = Stream([lane]), Stream([lane])
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(stream.drafting.run()) for stream in (first, second)]
        for stream in (first, second):
            await stream.say(opened=[opened(1, [1])], wanted=[wanted(1, 1)], request_id=1)
        await until_asked(source)
        running[0].cancel()
        await asyncio.sleep(0)
        source.gate.set()
        # The source itself asserts that nobody closes a sequence while it is busy.
        await first.sequences.forget()
        (answer,) = await second.until_complete(1)
        assert answer.drafts
        running[1].cancel()
    assert first.answers == []
    assert source.closed == [(1, False)]


def random_news(rng: random.Random, request_id: int) -> News:
    """A message of which some parts contradict what was said before."""
    ids = range(1, 4)

    def some(make: Callable[[int], T]) -> list[T]:
        return [make(number) for number in ids if rng.random() < 0.4]

    def tokens(most: int) -> list[int]:
        return list(range(rng.randrange(3), rng.randrange(most)))

    names = [("suffix",), ("model",), (), ("head",)]
    return News(
        opened=some(lambda number: opened(number, tokens(6))),
        committed=some(lambda number: committed(number, rng.randrange(8), *tokens(9))),
        closed=some(lambda number: Closed(sequence_id=number, finished=True)) if rng.random() < 0.2 else [],
        wanted=some(lambda number: wanted(number, rng.randrange(10), *rng.choice(names))),
        verifying=some(lambda number: verifying(number, rng.randrange(10), *tokens(9))),
        ahead_seconds=rng.choice([0.0, HOUR]),
        request_id=request_id,
    )


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32))
async def test_whatever_is_said_each_request_is_completed_once_and_last(seed) -> None:
    rng = random.Random(seed)
    sources = [CountingSource("suffix", length=2), CountingSource("model", length=5)]
    lanes = [Lane(source) for source in sources]
    stream = Stream(lanes)
    said = [random_news(rng, number) for number in range(1, 12)]
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(stream.drafting.run()), tasks.create_task(stream.sequences.run())]
        for news in said:
            await stream.drafting.follow(news)
        await stream.drafting.finish()
        await stream.sequences.finish()
        for task in beside:
            task.cancel()
    await stream.sequences.forget()
    for news in said:
        complete = [answer.complete for answer in stream.answers_to(news.request_id)]
        assert complete[-1:] == [True] * bool(news.wanted)
        assert sum(complete) == bool(news.wanted)
    assert not any(source.texts for source in sources)
