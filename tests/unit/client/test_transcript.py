from collections.abc import Sequence

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.client import Answer
from outrider.client.question import chat_request, generate_request
from outrider.client.transcript import LONGEST_PAUSE_SECONDS, MAX_NUM_FIRST_ATTEMPTS, Transcript
from outrider.rpc.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
)
from outrider.v1 import gateway_pb2 as pb

STARTED = pb.Started(request_id="r", seed=7, model="tiny", numerics_id="n")
FINISHED = pb.Finished(reason=pb.FINISH_REASON_STOP, usage=pb.Usage(completion_tokens=3))


def broken(code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> grpc.RpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="Socket closed")


def transcript(timeout: float | None = None) -> Transcript:
    return Transcript(chat_request("hello", (), None, {}, {"request_id": "r"}), timeout)


def receive(target: Transcript, *events: pb.Started | pb.Delta | pb.Finished) -> None:
    names = {pb.Started: "started", pb.Delta: "delta", pb.Finished: "finished"}
    for event in events:
        target.receive(pb.ChatResponse(**{names[type(event)]: event}))  # type: ignore[arg-type]


def delta(offset: int, token_ids: Sequence[int], text: str = "") -> pb.Delta:
    return pb.Delta(offset=offset, token_ids=token_ids, text=text)


def test_before_anything_was_received_the_same_question_is_asked_again() -> None:
    target = transcript()
    assert target.request() == chat_request("hello", (), None, {}, {"request_id": "r"})


def test_a_start_without_tokens_fixes_the_seed_and_resumes_nothing() -> None:
    target = transcript()
    receive(target, STARTED)
    options = target.request().options
    assert (options.seed, options.request_id, options.HasField("resume")) == (7, "r", False)


def test_tokens_received_are_sent_back_with_the_seed_and_the_request_id() -> None:
    target = transcript()
    receive(target, STARTED, delta(0, [1, 2]), delta(2, [3]))
    assert target.request().options.resume == pb.Resume(
        token_ids=[1, 2, 3], seed=7, request_id="r", numerics_id="n"
    )


def test_the_last_start_before_the_first_token_counts() -> None:
    target = transcript()
    receive(target, STARTED, pb.Started(request_id="r", seed=7, numerics_id="m"), delta(0, [1]))
    assert target.request().options.resume.numerics_id == "m"


def test_a_delta_that_leaves_a_gap_breaks_the_contract() -> None:
    target = transcript()
    receive(target, STARTED, delta(0, [1]))
    with pytest.raises(Internal, match="begins at token 2, not 1"):
        receive(target, delta(2, [3]))


def test_an_answer_does_not_go_on_where_it_would_be_computed_differently() -> None:
    target = transcript()
    receive(target, STARTED, delta(0, [1]))
    with pytest.raises(FailedPrecondition, match="was n and is now m"):
        receive(target, pb.Started(request_id="r", seed=7, numerics_id="m"))


def test_pauses_grow_to_a_bound_and_end_in_the_error_itself() -> None:
    target = transcript()
    pauses = [target.pause_after(broken()) for _ in range(MAX_NUM_FIRST_ATTEMPTS - 1)]
    assert pauses[0] < pauses[2] < pauses[4] <= LONGEST_PAUSE_SECONDS
    assert max(pauses) <= LONGEST_PAUSE_SECONDS
    with pytest.raises(Unavailable, match="Socket closed"):
        target.pause_after(broken())


def test_attempts_that_take_long_end_in_the_error_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    target = transcript()
    target.pause_after(broken())
    monkeypatch.setattr("outrider.client.transcript.MAX_ATTEMPT_SECONDS", -1.0)
    with pytest.raises(Unavailable):
        target.pause_after(broken())


def test_news_of_the_answer_renews_the_patience() -> None:
    target = transcript()
    receive(target, STARTED)
    first = target.pause_after(broken())
    for position in range(3 * MAX_NUM_FIRST_ATTEMPTS):
        receive(target, delta(position, [position]))
        assert target.pause_after(broken()) <= first / 0.8


def test_no_pause_goes_past_the_deadline() -> None:
    assert 0 < transcript(timeout=0.05).pause_after(broken()) <= 0.05


def test_an_error_that_waiting_does_not_cure_is_raised_at_once() -> None:
    with pytest.raises(InvalidArgument):
        transcript().pause_after(broken(grpc.StatusCode.INVALID_ARGUMENT))


def test_an_answer_without_an_end_is_no_answer() -> None:
    target = transcript()
    receive(target, STARTED, delta(0, [1]))
    with pytest.raises(Internal, match="ended before"):
        target.answer()


def serve(tokens: Sequence[int], request: pb.ChatRequest | pb.GenerateRequest) -> list[pb.Delta]:
    """What a gateway sends: for each token that the client lacks, its text."""
    known = len(request.options.resume.token_ids)
    assert list(request.options.resume.token_ids) == list(tokens[:known])
    return [delta(place, [tokens[place]], f"<{tokens[place]}>") for place in range(known, len(tokens))]


def whole(tokens: Sequence[int], breaks: Sequence[int]) -> Answer:
    target = Transcript(generate_request("x", {}), None)
    for length in breaks:
        receive(target, STARTED, *serve(tokens, target.request())[:length])
        target.pause_after(broken())
    receive(target, STARTED, *serve(tokens, target.request()), FINISHED)
    return target.answer()


@given(tokens=st.lists(st.integers(0, 99), max_size=12), breaks=st.lists(st.integers(0, 4), max_size=6))
def test_an_answer_is_the_same_wherever_its_stream_breaks(tokens: list[int], breaks: list[int]) -> None:
    assert whole(tokens, breaks) == whole(tokens, [])


def test_what_was_cancelled_is_not_asked_again() -> None:
    target = transcript()
    target.pause_after(broken())
    target.cancel()
    with pytest.raises(Cancelled):
        target.request()


def test_past_the_deadline_nothing_is_tried_again() -> None:
    with pytest.raises(DeadlineExceeded, match="Socket closed"):
        transcript(timeout=0).pause_after(broken())
