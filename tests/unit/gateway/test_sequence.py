"""One request's tokens in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.params import SamplingParams, SequenceParams
from outrider.rpc.errors import Internal, ResourceExhausted
from outrider.v1 import sampling_pb2
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.auth import Tenant
from services.gateway.messages import Speculation
from services.gateway.output.marks import Mark
from services.gateway.sequence import Arrivals, Sequence
from services.gateway.submission import Submission

TOKENS = list(range(100, 130))


def sequence(*, resumed=(), max_tokens=30, deadline=None, asked_drafts=None, tenant_drafts=None) -> Sequence:
    return Sequence(
        Submission(
            request_id="r",
            tenant=Tenant(name="t", max_draft_tokens=tenant_drafts),
            priority=0,
            prompt_token_ids=(1, 2),
            resumed_token_ids=tuple(resumed),
            numerics_id="",
            block_size=4,
            block_hashes=(),
            params=SequenceParams(sampling=SamplingParams(max_tokens=max_tokens)),
            speculation=Speculation(max_draft_tokens=asked_drafts),
            marks={7: Mark.THINK_END, 8: Mark.CALL_BEGIN, 9: Mark.ARGUMENT_BEGIN},
            deadline=deadline,
            traceparent="",
        )
    )


def event(begin, end, **fields) -> pb.SequenceEvent:
    logprobs = [sampling_pb2.TokenLogprobs(logprob=-t) for t in TOKENS[begin:end]]
    return pb.SequenceEvent(offset=begin, token_ids=TOKENS[begin:end], logprobs=logprobs, **fields)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12))), st.integers(0, 5))
def test_repeated_events_leave_every_token_once(steps, num_resumed):
    running = sequence(resumed=TOKENS[:num_resumed])
    known = num_resumed
    for back, forward in steps:
        begin = max(num_resumed, known - back)
        end = min(begin + forward, len(TOKENS))
        running.receive(event(begin, end))
        known = max(known, end)
    assert running.token_ids == TOKENS[:known]
    assert [-entry.logprob for entry in running.logprobs] == TOKENS[num_resumed:known]
    assert not running.ended


def test_a_gap_breaks_the_sequence():
    running = sequence()
    running.receive(event(3, 5))
    assert isinstance(running.error, Internal)


def test_more_tokens_than_were_asked_for_break_the_sequence():
    running = sequence(max_tokens=4)
    running.receive(event(0, 5))
    assert isinstance(running.error, Internal)
    assert running.token_ids == []


def test_an_error_carries_its_status_and_delay():
    running = sequence()
    error = pb.SequenceError(code=8, message="full", field="f")
    error.retry_delay.FromSeconds(3)
    running.receive(event(0, 2, error=error))
    assert isinstance(running.error, ResourceExhausted)
    assert running.error.retry_delay is not None
    assert (running.error.field, running.error.retry_delay.total_seconds()) == ("f", 3)
    assert running.token_ids == TOKENS[:2]


def test_nothing_follows_the_end():
    running = sequence()
    finished = pb.SequenceFinished(reason=pb.SEQUENCE_FINISH_REASON_LENGTH)
    running.receive(event(0, 2, finished=finished))
    running.receive(event(2, 4))
    assert running.end is not None
    assert (running.token_ids, running.end.reached_limit) == (TOKENS[:2], True)


def test_counts_of_streams_that_broke_are_added():
    running = sequence()
    source = pb.SequenceSourceCounts(source="suffix", num_draft_tokens=4, num_accepted_tokens=1)
    running.receive(event(0, 2, num_steps=2, sources=[source]))
    running.stall()
    running.receive(event(2, 4, num_steps=1, sources=[source]))
    total = running.earlier + running.counts
    assert (total.num_steps, total.drafted["suffix"], total.accepted["suffix"]) == (3, 8, 2)


async def test_a_reader_is_woken_by_news_and_by_failure():
    running = sequence()
    running.receive(event(0, 1))
    await running.wait()
    running.fail(Internal("x"))
    await running.wait()
    with pytest.raises(Internal):
        raise running.error or AssertionError


def test_a_submission_is_taken_up_from_the_tokens_so_far():
    submission = sequence(resumed=TOKENS[:2]).submission
    message = submission.to_proto(7, TOKENS[:5], was_accepted=True)
    assert (message.sequence_id, list(message.output_token_ids)) == (7, TOKENS[:5])
    assert not message.HasField("timeout")


def test_a_deadline_that_has_passed_leaves_no_time():
    message = sequence(deadline=0.0).submission.to_proto(1, [], was_accepted=False)
    assert message.HasField("timeout")
    assert message.timeout.ToNanoseconds() == 0


def test_the_rate_leaves_out_the_first_event():
    arrivals = Arrivals(first=10.0, last=12.0, num_first_tokens=5, num_tokens=9)
    assert arrivals.tokens_per_second == 2.0
    assert Arrivals(first=10.0, last=10.0, num_first_tokens=5, num_tokens=5).tokens_per_second == 0.0


@pytest.mark.parametrize(
    ("asked", "limit", "sent"),
    [(None, None, None), (4, None, 4), (None, 2, 2), (4, 2, 2), (1, 2, 1), (4, 0, 0)],
)
def test_a_tenant_s_limit_of_drafts_bounds_what_its_requests_ask_for(asked, limit, sent):
    submission = sequence(asked_drafts=asked, tenant_drafts=limit).submission
    speculation = submission.to_proto(1, (), was_accepted=False).speculation
    assert (speculation.max_draft_tokens if speculation.HasField("max_draft_tokens") else None) == sent


def test_a_submission_says_where_phases_begin():
    marks = sequence().submission.to_proto(1, (), was_accepted=False).phase_marks
    assert {mark.token_id: mark.phase for mark in marks} == {
        7: pb.PHASE_ANSWER,
        9: pb.PHASE_TOOL_ARGUMENTS,
    }
