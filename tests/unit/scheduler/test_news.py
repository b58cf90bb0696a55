"""What the drafter is told."""

from outrider.v1 import drafter_pb2 as pb
from services.scheduler.batch import Features
from services.scheduler.news import MAX_NUM_FEATURE_BYTES, News
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
