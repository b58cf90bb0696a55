"""What a gateway foresees of a pair."""

from outrider.params import SamplingParams, SequenceParams
from outrider.v1 import load_pb2
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.auth import Tenant
from services.gateway.messages import Speculation
from services.gateway.outlook import Outlook, Run
from services.gateway.sequence import Sequence
from services.gateway.submission import Submission

PROMPT = tuple(range(20))


def sequence(prompt: tuple[int, ...] = PROMPT) -> Sequence:
    return Sequence(
        Submission(
            request_id="r", tenant=Tenant(name="t"), priority=0, prompt_token_ids=prompt,
            resumed_token_ids=(), numerics_id="", block_size=4, block_hashes=(),
            params=SequenceParams(sampling=SamplingParams(max_tokens=9)), speculation=Speculation(),
            marks={}, deadline=None, traceparent="",
        )
    )  # fmt: skip


def outlook() -> Outlook:
    new = Outlook(max_num_known_blocks=100)
    new.begin(4)
    new.report(load_pb2.Load(has_group=True, num_groups=1, num_blocks=50))
    return new


def run_to_end(pair: Outlook, asked: Sequence, *, num_cached_tokens: int = 0) -> Run:
    run = pair.send(asked)
    pair.start(run, num_cached_tokens)
    asked.receive(pb.SequenceEvent(token_ids=[7, 7, 7]))
    pair.compute(run)
    pair.end(run)
    return run


def own_tokens(pair: Outlook, prompt: tuple[int, ...] = PROMPT) -> int:
    return pair.prospect(sequence(prompt), num_sequences=0).num_own_tokens


def test_what_was_computed_is_foreseen_with_its_output_and_but_for_the_last_token() -> None:
    pair = outlook()
    assert own_tokens(pair) == 20
    run_to_end(pair, sequence())
    # Of the prompt's five blocks the last ends with it, and one token has to be computed in any case.
    assert own_tokens(pair) == 4
    # The third output token was never computed.
    assert own_tokens(pair, (*PROMPT, 7, 7, 7, 1)) == 4


def test_a_prompt_is_not_foreseen_before_it_is_computed() -> None:
    pair = outlook()
    run = pair.send(sequence())
    pair.start(run, 0)
    assert own_tokens(pair) == 20


def test_what_the_group_had_no_more_is_forgotten() -> None:
    pair = outlook()
    run_to_end(pair, sequence(tuple(range(50, 70))))
    run_to_end(pair, sequence())
    run = pair.send(sequence())
    pair.start(run, 8)
    assert own_tokens(pair) == 12
    assert own_tokens(pair, tuple(range(50, 70))) == 20


def test_what_is_found_as_foreseen_is_kept() -> None:
    pair = outlook()
    run_to_end(pair, sequence())
    run_to_end(pair, sequence(), num_cached_tokens=16)
    assert own_tokens(pair) == 4


def test_another_group_or_scheduler_has_an_empty_cache() -> None:
    for change in (lambda p: p.report(load_pb2.Load(has_group=True, num_groups=2)), lambda p: p.begin(4)):
        pair = outlook()
        run_to_end(pair, sequence())
        change(pair)
        assert (own_tokens(pair), pair.num_known_blocks) == (20, 0)


def test_no_more_blocks_are_taken_to_be_cached_than_there_are() -> None:
    pair = outlook()
    run_to_end(pair, sequence())
    pair.report(load_pb2.Load(has_group=True, num_groups=1, num_blocks=3))
    assert pair.num_known_blocks == 3


def test_what_was_sent_since_the_report_counts_until_it_is_computed_or_over() -> None:
    pair = outlook()
    load = load_pb2.Load(has_group=True, num_groups=1, num_requests_running=2, num_waiting_tokens=30)
    pair.report(load)
    first, second = pair.send(sequence()), pair.send(sequence())
    found = pair.prospect(sequence(), num_sequences=2)
    assert (found.num_requests, found.num_waiting_tokens) == (4, 70)
    first.sequence.receive(pb.SequenceEvent(token_ids=[7]))
    pair.compute(first)
    pair.end(first)
    pair.end(second)
    found = pair.prospect(sequence(), num_sequences=0)
    assert (found.num_requests, found.num_waiting_tokens) == (2, 30)


def test_a_group_is_away_since_the_first_report_without_one() -> None:
    pair = outlook()
    pair.report(load_pb2.Load(num_groups=1))
    since = pair.group_away_since
    pair.report(load_pb2.Load(num_groups=1))
    assert since is not None
    assert pair.group_away_since == since
    pair.report(load_pb2.Load(num_groups=2, has_group=True))
    assert pair.group_away_since is None
