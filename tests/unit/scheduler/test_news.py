"""What the drafter is told."""

from outrider.v1 import drafter_pb2 as pb
from services.scheduler.batch import Features
from services.scheduler.news import (
    MAX_NUM_COMMITTED_BYTES,
    MAX_NUM_ENDED_BYTES,
    MAX_NUM_FEATURE_BYTES,
    MAX_NUM_OPENED_BYTES,
    News,
)
from services.scheduler.sequence import FinishReason
from tests.unit.scheduler.scenario import SequenceMaker


def test_a_sequence_is_told_of_whole_once_and_then_what_is_new() -> None:
    news, sequence = News(), SequenceMaker()([1, 2, 3])
    news.tell(sequence)
    first = news.take()
    assert [list(opened.token_ids) for opened in first.opened] == [[1, 2, 3]]
    assert first.opened[0].num_prompt_tokens == 3
    sequence.commit([4, 5])
    news.want(sequence, ["suffix", "head"])
    second = news.take()
    assert not second.opened
    assert [(item.offset, list(item.token_ids)) for item in second.committed] == [(3, [4, 5])]
    (wanted,) = second.wanted
    assert wanted.base_length == 5
    assert list(wanted.sources) == [pb.DRAFT_SOURCE_SUFFIX, pb.DRAFT_SOURCE_HEAD]
    assert (first.request_id, second.request_id) == (1, 2)


def test_a_draft_is_wanted_no_longer_than_it_could_be_used() -> None:
    news, sequence = News(), SequenceMaker()([1, 2, 3], max_num_tokens=6, max_num_draft_tokens=8)
    news.want(sequence, ["suffix"])
    assert news.take().wanted[0].max_num_tokens == 2


def test_a_sequence_that_ends_is_told_of_to_its_end() -> None:
    news, sequence = News(), SequenceMaker()([1], stop=frozenset([9]))
    news.tell(sequence)
    sequence.commit([9])
    news.close(sequence)
    message = news.take()
    assert list(message.committed[0].token_ids) == [9]
    assert [(item.sequence_id, item.finished) for item in message.closed] == [(sequence.id, True)]
    assert not news.knows(sequence.id)


def test_an_aborted_sequence_is_not_worth_remembering() -> None:
    news, sequence = News(), SequenceMaker()([1])
    news.tell(sequence)
    sequence.end = FinishReason.ABORTED
    news.close(sequence)
    assert not news.take().closed[0].finished


def test_questions_that_were_not_sent_in_time_are_taken_back_and_the_tokens_are_not() -> None:
    news, sequence = News(), SequenceMaker()([1])
    news.want(sequence, ["suffix"])
    news.verify(sequence, (2, 3), ["suffix"])
    news.allow(0.01)
    news.drop_questions()
    message = news.take()
    assert (len(message.opened), len(message.wanted), len(message.verifying)) == (1, 0, 0)
    assert message.ahead_us == 0


def test_hidden_vectors_are_passed_on_behind_the_opening_of_their_sequence() -> None:
    news, sequence = News(), SequenceMaker()([1, 2])
    news.show(sequence, Features(sequence_id=sequence.id, offset=0, rows=b"abcd"))
    message = news.take()
    assert len(message.opened) == 1
    assert [(item.offset, item.rows) for item in message.features] == [(0, b"abcd")]


def test_more_hidden_vectors_than_a_message_should_hold_are_left_out() -> None:
    news, sequence = News(), SequenceMaker()([1, 2])
    rows = bytes(MAX_NUM_FEATURE_BYTES // 2)
    for offset in range(3):
        news.show(sequence, Features(sequence_id=sequence.id, offset=offset, rows=rows))
    assert [item.offset for item in news.take().features] == [0, 1]
    news.show(sequence, Features(sequence_id=sequence.id, offset=3, rows=rows))
    assert [item.offset for item in news.take().features] == [3]


def test_there_is_nothing_to_send_until_something_is_said() -> None:
    news = News()
    news.allow(0.01)
    assert news.is_empty
    news.tell(SequenceMaker()([1]))
    assert not news.is_empty


def test_a_drafter_that_comes_back_is_told_of_long_texts_over_several_messages() -> None:
    news, make = News(), SequenceMaker()
    num_tokens = MAX_NUM_OPENED_BYTES // 10
    sequences = [make([7] * num_tokens, max_num_tokens=2 * num_tokens) for _ in range(9)]
    opened: list[list[int]] = []
    for _ in range(3):
        asked = [sequence.id for sequence in sequences if news.want(sequence, ["suffix"])]
        message = news.take()
        assert [item.sequence_id for item in message.wanted] == asked
        assert message.ByteSize() < MAX_NUM_OPENED_BYTES
        opened.append([item.sequence_id for item in message.opened])
    assert opened == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_text_longer_than_a_message_should_open_is_told_of_alone() -> None:
    news, make = News(), SequenceMaker()
    sequences = [make([7] * MAX_NUM_OPENED_BYTES), make([7])]
    assert [news.tell(sequence) for sequence in sequences] == [True, False]
    assert not news.knows(sequences[1].id)
    assert len(news.take().opened) == 1


def test_hidden_vectors_of_a_text_that_cannot_be_told_of_now_are_left_out() -> None:
    news, make = News(), SequenceMaker()
    news.tell(make([7] * MAX_NUM_OPENED_BYTES))
    sequence = make([7, 8])
    assert not news.show(sequence, Features(sequence_id=sequence.id, offset=0, rows=b"abcd"))
    assert not news.take().features


def test_long_texts_that_end_together_are_learnt_from_over_several_messages() -> None:
    news, make = News(), SequenceMaker()
    for _ in range(3):
        sequence = make([7] * (MAX_NUM_OPENED_BYTES // 4))
        sequence.end = FinishReason.STOP
        news.close(sequence)
    for sequence_id in (1, 2, 3):
        assert not news.is_empty
        message = news.take()
        assert [item.sequence_id for item in message.opened] == [sequence_id]
        assert [(item.sequence_id, item.finished) for item in message.closed] == [(sequence_id, True)]
    assert news.is_empty
    assert not news.has_ended_texts


def test_of_too_many_texts_to_learn_from_the_oldest_are_forgotten() -> None:
    news, make = News(), SequenceMaker()
    num_tokens = MAX_NUM_OPENED_BYTES // 4
    for _ in range(40):
        news.close(make([7] * num_tokens))
    ids = []
    while not news.is_empty:
        ids += [item.sequence_id for item in news.take().closed]
    num_kept = MAX_NUM_ENDED_BYTES // (3 * num_tokens)
    assert ids == [1, *range(41 - num_kept, 41)]


def test_while_no_message_is_taken_no_more_than_so_much_gathers() -> None:
    news, make = News(), SequenceMaker()
    growing, ending = make([7], max_num_tokens=10**8), make([7])
    for sequence in (growing, ending):
        news.tell(sequence)
    for _ in range(100):
        growing.commit([8] * (MAX_NUM_COMMITTED_BYTES // 100))
        news.tell(growing)
    ending.commit([8])
    ending.end = FinishReason.STOP
    news.close(ending)
    message = news.take()
    assert message.ByteSize() < 1.1 * MAX_NUM_COMMITTED_BYTES
    assert [(item.sequence_id, item.finished) for item in message.closed] == [(ending.id, False)]
    assert news.tell(growing)
    told = sum(len(item.token_ids) for item in message.committed)
    (rest,) = news.take().committed
    assert (rest.offset, len(rest.token_ids)) == (1 + told, growing.num_tokens - 1 - told)
