"""The sequences of one stream: what they take in, what the sources hear of them, and how they end."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import token_hash
from outrider.rpc.errors import InvalidArgument
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import sampling_pb2
from services.drafter.guess import SEPARATOR
from services.drafter.lane import Lane
from services.drafter.messages import Closed, Committed, NewFeatures, News, Opened, Verifying, Wanted
from services.drafter.sequence import MAX_NUM_FEATURES, MAX_NUM_PROMPT_FEATURES, RunningSequence
from services.drafter.sequences import MAX_NUM_TOKENS_AT_ONCE, Sequences
from tests.unit.drafter.counting_source import CountingSource

FEATURE_SIZE = 2
ROW_BYTES = 2 * FEATURE_SIZE


def opened(sequence_id: int, token_ids: list[int], num_prompt_tokens: int | None = None) -> Opened:
    return Opened(
        sequence_id=sequence_id,
        tenant="a",
        token_ids=array("I", token_ids),
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
        params=sampling_pb2.SequenceParams(seed=7),
        traceparent="",
    )


def committed(sequence_id: int, offset: int, token_ids: list[int]) -> Committed:
    return Committed(sequence_id=sequence_id, offset=offset, token_ids=array("I", token_ids))


def closed(sequence_id: int, *, finished: bool = True) -> Closed:
    return Closed(sequence_id=sequence_id, finished=finished)


def features(offset: int, *rows: int, sequence_id: int = 1) -> NewFeatures:
    """Vectors whose bytes are all of one value each."""
    content = b"".join(bytes([row]) * ROW_BYTES for row in rows)
    return NewFeatures(sequence_id=sequence_id, offset=offset, rows=content)


@asynccontextmanager
async def following(*sources: CountingSource, feature_size: int = 0) -> AsyncIterator[Sequences]:
    """Follows a stream, with what is done beside it."""
    sequences = Sequences([Lane(source) for source in sources], feature_size)
    async with asyncio.TaskGroup() as tasks:
        beside = tasks.create_task(sequences.run())
        yield sequences
        beside.cancel()
    await sequences.forget()


async def until_taken_in(sequences: Sequences, sequence_id: int, num_tokens: int) -> RunningSequence:
    while (sequence := sequences.get(sequence_id, num_tokens)) is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return sequence


def rows_of(sequence: RunningSequence) -> tuple[int, list[int]] | None:
    """Returns the offset and the first byte of each vector."""
    if sequence.features is None:
        return None
    return sequence.features.offset, list(sequence.features.rows[::ROW_BYTES])


async def test_a_sequence_holds_what_was_opened_and_committed_and_its_hash() -> None:
    source = CountingSource()
    async with following(source) as sequences:
        await sequences.follow(News(opened=[opened(7, [1, 2, 3])], committed=[committed(7, 3, [4])]))
        await sequences.follow(News(committed=[committed(7, 4, [5, 6])]))
        sequence = sequences.get(7, 6)
        assert sequence is not None
        assert sequence.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
        assert sequence.hash == token_hash.extend(token_hash.EMPTY, [1, 2, 3, 4, 5, 6])
        assert sequence.params.seed == 7
        assert source.texts[sequence] == sequence.token_ids


async def test_a_sequence_of_another_length_is_not_the_one_that_was_meant() -> None:
    async with following() as sequences:
        await sequences.follow(News(opened=[opened(1, [1, 2])]))
        assert sequences.get(1, 1) is None
        assert sequences.get(1, 3) is None
        assert sequences.get(2, 2) is None


@settings(max_examples=40)
@given(
    cuts=st.lists(st.integers(0, 20), max_size=6),
    overlaps=st.lists(st.integers(0, 20), min_size=7, max_size=7),
)
async def test_repeats_and_overlaps_add_only_what_is_new(cuts, overlaps) -> None:
    text = list(range(100, 120))
    source = CountingSource()
    async with following(source) as sequences:
        known = 0
        await sequences.follow(News(opened=[opened(1, [])]))
        for end, overlap in zip([*cuts, 20], overlaps, strict=False):
            start = max(0, min(known, end) - overlap)
            await sequences.follow(News(committed=[committed(1, start, text[start:end])]))
            known = max(known, end)
        sequence = sequences.get(1, known)
        assert sequence is not None
        assert sequence.token_ids.tolist() == text[:known]
        assert source.texts[sequence] == sequence.token_ids


@pytest.mark.parametrize("lost", [committed(1, 5, [9]), committed(1, 2, [4, 1])])
async def test_a_gap_or_a_contradiction_ends_that_sequence_only(lost) -> None:
    source = CountingSource()
    async with following(source) as sequences:
        text = [1, 2, 3, 1]
        await sequences.follow(
            News(opened=[opened(1, text), opened(2, text)], committed=[lost, committed(2, 4, [2])])
        )
        assert sequences.get(1, 4) is sequences.get(1, 5) is None
        assert sequences.get(2, 5) is not None
        await sequences.finish()
        assert source.closed == [(1, False)]


async def test_what_is_closed_is_gone_at_once_and_every_source_hears_how_it_ended() -> None:
    first, second = CountingSource("suffix"), CountingSource("model")
    async with following(first, second) as sequences:
        await sequences.follow(News(opened=[opened(1, [1]), opened(2, [2])]))
        await sequences.follow(News(closed=[closed(1), closed(2, finished=False), closed(3)]))
        assert sequences.get(1, 1) is sequences.get(2, 2) is None
        await sequences.finish()
    assert first.closed == second.closed == [(1, True), (2, False)]


async def test_a_stream_that_breaks_closes_all_that_ran_as_unfinished_once() -> None:
    source = CountingSource()
    async with following(source) as sequences:
        await sequences.follow(News(opened=[opened(1, [1]), opened(2, [2])], closed=[closed(1)]))
        await sequences.finish()
    assert source.closed == [(1, True), (2, False)]
    assert not source.texts


async def test_a_long_text_is_taken_in_beside_while_short_ones_are_there_at_once() -> None:
    source = CountingSource()
    long = [number % 500 for number in range(3 * MAX_NUM_TOKENS_AT_ONCE)]
    async with following(source) as sequences:
        await sequences.follow(News(opened=[opened(1, long), opened(2, [1, 2])]))
        assert sequences.get(1, len(long)) is None
        assert sequences.get(2, 2) is not None
        await sequences.follow(News(committed=[committed(1, len(long) - 1, [long[-1], 0, 1])]))
        sequence = await until_taken_in(sequences, 1, len(long) + 2)
        assert sequence.hash == token_hash.extend(token_hash.EMPTY, [*long, 0, 1])
        assert source.texts[sequence] == sequence.token_ids


async def test_a_long_text_that_has_finished_is_learnt_whole() -> None:
    source = CountingSource()
    long = list(range(3 * MAX_NUM_TOKENS_AT_ONCE))
    async with following(source) as sequences:
        await sequences.follow(News(opened=[opened(1, long)]))
        (sequence,) = source.texts
        await sequences.follow(News(committed=[committed(1, len(long), [5, 6])], closed=[closed(1)]))
        await sequences.finish()
        assert sequence.token_ids.tolist() == [*long, 5, 6]
        assert source.closed == [(1, True)]


async def test_features_are_gathered_with_the_tokens_that_they_belong_to() -> None:
    async with following(feature_size=FEATURE_SIZE) as sequences:
        await sequences.follow(News(opened=[opened(1, [1, 2, 3])], features=[features(0, 10, 11, 12)]))
        await sequences.follow(News(committed=[committed(1, 3, [4, 5])], features=[features(3, 13, 14)]))
        sequence = sequences.get(1, 5)
        assert sequence is not None
        assert rows_of(sequence) == (0, [10, 11, 12, 13, 14])


@pytest.mark.parametrize(
    ("second", "left"),
    [
        (features(1, 11, 12, 13), (0, [10, 11, 12, 13])),  # a repeat and something new
        (features(1, 11), (0, [10, 11, 12])),  # a repeat
        (features(4, 14), (4, [14])),  # a gap
        (features(1, 99), (1, [99])),  # a contradiction
        (features(4, 14, 15), None),  # more than there are tokens
        (NewFeatures(sequence_id=1, offset=3, rows=b"12345"), None),  # no whole vectors
        (NewFeatures(sequence_id=1, offset=9, rows=b""), (0, [10, 11, 12])),
        (features(0, 1, sequence_id=5), (0, [10, 11, 12])),
    ],
)
async def test_features_that_do_not_fit_begin_anew(second, left) -> None:
    async with following(feature_size=FEATURE_SIZE) as sequences:
        await sequences.follow(News(opened=[opened(1, [1, 2, 3, 4, 5])], features=[features(0, 10, 11, 12)]))
        await sequences.follow(News(features=[second]))
        sequence = sequences.get(1, 5)
        assert sequence is not None
        assert rows_of(sequence) == left


async def test_features_that_were_read_and_come_again_are_left_out() -> None:
    async with following(feature_size=FEATURE_SIZE) as sequences:
        await sequences.follow(News(opened=[opened(1, [1, 2, 3, 4, 5])], features=[features(0, 10, 11, 12)]))
        sequence = sequences.get(1, 5)
        assert sequence is not None
        assert sequence.features is not None
        sequence.features.forget_before(2, ROW_BYTES)
        await sequences.follow(News(features=[features(0, 10, 11), features(1, 11, 12, 13)]))
        assert rows_of(sequence) == (2, [12, 13])


async def test_features_of_early_prompt_tokens_and_of_long_outputs_are_let_go() -> None:
    num_prompt = 2 * MAX_NUM_PROMPT_FEATURES
    async with following(feature_size=FEATURE_SIZE) as sequences:
        prompt = features(0, *(number % 251 for number in range(num_prompt)))
        await sequences.follow(News(opened=[opened(1, list(range(num_prompt)))], features=[prompt]))
        sequence = sequences.get(1, num_prompt)
        assert sequence is not None
        assert sequence.features is not None
        assert sequence.features.offset == num_prompt - MAX_NUM_PROMPT_FEATURES
        length = num_prompt
        while length < num_prompt + MAX_NUM_FEATURES:
            new = [length % 251] * 100
            await sequences.follow(
                News(committed=[committed(1, length, new)], features=[features(length, *new)])
            )
            length += 100
        assert sequence.features.offset == length - MAX_NUM_FEATURES
        assert len(sequence.features.rows) == MAX_NUM_FEATURES * ROW_BYTES


async def test_where_no_source_wants_features_none_are_kept() -> None:
    async with following() as sequences:
        await sequences.follow(News(opened=[opened(1, [1])], features=[features(0, 1)]))
        sequence = sequences.get(1, 1)
        assert sequence is not None
        assert sequence.features is None


def test_a_message_is_read_whole() -> None:
    message = pb.ProposeRequest(
        features=[{"sequence_id": 1, "offset": 2, "rows": b"ab"}],
        wanted=[{"sequence_id": 1, "base_length": 3, "max_num_tokens": 4, "sources": ["DRAFT_SOURCE_HEAD"]}],
        verifying=[{"sequence_id": 1, "base_length": 3, "token_ids": [5], "max_num_tokens": 6}],
        request_id=9,
        ahead_us=1500,
    )
    assert News.from_proto(message) == News(
        opened=[],
        committed=[],
        closed=[],
        features=[NewFeatures(sequence_id=1, offset=2, rows=b"ab")],
        wanted=[Wanted(sequence_id=1, base_length=3, max_num_tokens=4, sources=frozenset({"head"}))],
        verifying=[Verifying(sequence_id=1, base_length=3, token_ids=(5,), max_num_tokens=6)],
        request_id=9,
        ahead_seconds=1500 * 1e-6,
    )


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"opened": [{"token_ids": [1, 2], "num_prompt_tokens": 3}]}, "opened.num_prompt_tokens"),
        ({"opened": [{"token_ids": [SEPARATOR]}]}, "opened.token_ids"),
        ({"opened": [{"tenant": "x" * 257}]}, "opened.tenant"),
        ({"committed": [{"token_ids": [1, SEPARATOR]}]}, "committed.token_ids"),
        ({"verifying": [{"token_ids": [1, SEPARATOR]}]}, "verifying.token_ids"),
    ],
)
def test_a_wrong_message_is_refused_naming_the_field(item, field) -> None:
    with pytest.raises(InvalidArgument) as refused:
        News.from_proto(pb.ProposeRequest(**item))
    assert refused.value.field == field


def test_a_draft_asked_of_a_source_that_is_not_known_asks_none_of_those_here() -> None:
    message = pb.ProposeRequest(wanted=[{"sequence_id": 1, "sources": ["DRAFT_SOURCE_GRAMMAR"]}])
    (wanted,) = News.from_proto(message).wanted
    assert not any(wanted.asks(source) for source in ("suffix", "model", "head"))
