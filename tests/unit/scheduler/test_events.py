"""What a gateway is told, and how news that it did not take in time are merged."""

from outrider.rpc.errors import ResourceExhausted
from outrider.v1 import sampling_pb2
from outrider.v1 import scheduler_pb2 as pb
from services.scheduler.events import take_event
from tests.unit.scheduler.scenario import SequenceMaker


def test_tokens_that_were_not_taken_are_merged_behind_one_offset() -> None:
    sequence = SequenceMaker()([1, 2, 3], max_num_tokens=100)
    sequence.commit([4])
    first = take_event(sequence)
    sequence.commit([5])
    sequence.commit([6, 7])
    second = take_event(sequence)
    assert (first.offset, list(first.token_ids)) == (0, [4])
    assert (second.offset, list(second.token_ids)) == (1, [5, 6, 7])


def test_logprobs_are_merged_with_their_tokens() -> None:
    sequence = SequenceMaker()([1], max_num_tokens=100)
    for token_id in (4, 5):
        sequence.commit([token_id])
        sequence.unsent_logprobs.append(sampling_pb2.TokenLogprobs(logprob=-float(token_id)))
    event = take_event(sequence)
    assert [item.logprob for item in event.logprobs] == [-4.0, -5.0]
    assert not take_event(sequence).logprobs


def test_the_first_event_of_a_resumed_sequence_counts_the_old_tokens() -> None:
    sequence = SequenceMaker()([1, 2], resumed=(3, 4, 5), max_num_tokens=100)
    sequence.commit([6])
    assert take_event(sequence).offset == 3


def test_started_is_told_once() -> None:
    sequence = SequenceMaker()([1])
    sequence.num_cached_tokens = 0
    assert take_event(sequence).HasField("started")
    assert not take_event(sequence).HasField("started")


def test_a_finished_sequence_reports_its_counts() -> None:
    sequence = SequenceMaker()([1], max_num_tokens=2)
    sequence.count_draft("suffix", 3, 1)
    sequence.commit([2])
    finished = take_event(sequence).finished
    assert finished.reason == pb.SEQUENCE_FINISH_REASON_LENGTH
    assert (finished.sources[0].num_draft_tokens, finished.sources[0].num_accepted_tokens) == (3, 1)


def test_an_error_carries_its_code_and_field() -> None:
    sequence = SequenceMaker()([1])
    sequence.end = ResourceExhausted("full", field="prompt")
    error = take_event(sequence).error
    assert (error.code, error.message, error.field) == (8, "full", "prompt")
