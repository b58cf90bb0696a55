"""A scheduler beside drafters of all manners: tokens are what they were, and good drafts save steps."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.scheduler.metrics import SchedulerCollector
from tests.integration.oracle_drafter import HEAD, MODEL, SUFFIX, Deliver, OracleDrafter, Spoil
from tests.integration.scheduler_stack import PROMPT, VOCAB_SIZE, Stack, expected, serving, stack, until

NUM_SEQUENCES = 3
NUM_TOKENS = 40


@asynccontextmanager
async def drafted(oracle: OracleDrafter, **settings: Any) -> AsyncIterator[Stack]:
    """A stack whose steps take long enough for a draft to be worth waiting for, beside a drafter."""
    add = lambda server: drafter_pb2_grpc.add_DrafterServiceServicer_to_server(oracle, server)  # noqa: E731
    # A long limit: the machine that runs the tests may be slow, and an answer should be waited for.
    settings = {"max_draft_wait_ms": 5000, **settings}
    async with serving(add) as (port, _), stack(drafter_port=port, **settings) as s:
        s.group.step_seconds = 0.02
        await until(lambda: s.scheduler.load().drafter_connected)
        yield s


async def ask(s: Stack, *, first: int = 0, **fields: Any) -> None:
    """Has sequences run to their end, and checks their tokens."""
    numbers = range(first, first + NUM_SEQUENCES)
    for number in numbers:
        await s.client.submit(number, PROMPT, seed=number, max_tokens=NUM_TOKENS, **fields)
    await s.client.read_to_end(*numbers)
    for number in numbers:
        assert s.client.tokens[number] == expected(PROMPT, seed=number, max_tokens=NUM_TOKENS)
    await s.until_idle()


async def run(oracle: OracleDrafter) -> Stack:
    async with drafted(oracle) as s:
        await ask(s)
        await until(lambda: len(oracle.closed) == NUM_SEQUENCES)
        return s


async def test_right_drafts_save_steps_and_change_no_token() -> None:
    oracle = OracleDrafter()
    counters = (await run(oracle)).scheduler.counters
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 0
    assert counters.num_steps < NUM_TOKENS
    assert all(closed.finished for closed in oracle.closed)


def spoil_last(draft: pb.Draft) -> None:
    draft.token_ids[-1] = (draft.token_ids[-1] + 1) % VOCAB_SIZE


def spoil_first(draft: pb.Draft) -> None:
    draft.token_ids[0] = (draft.token_ids[0] + 1) % VOCAB_SIZE


async def test_half_right_drafts_change_no_token() -> None:
    counters = (await run(OracleDrafter(spoil=spoil_last))).scheduler.counters
    assert 0 < counters.num_accepted_tokens < counters.num_draft_tokens


async def test_the_rest_of_a_late_draft_is_as_good_as_a_new_one() -> None:
    counters = (await run(OracleDrafter(num_late=2))).scheduler.counters
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 0


async def test_a_late_draft_whose_beginning_was_wrong_is_never_verified() -> None:
    counters = (await run(OracleDrafter(spoil=spoil_first, num_late=2))).scheduler.counters
    assert counters.num_draft_tokens == 0


def spoil_hash(draft: pb.Draft) -> None:
    draft.base_hash += 1


def spoil_tokens(draft: pb.Draft) -> None:
    draft.token_ids[:] = [VOCAB_SIZE + 5] * len(draft.token_ids)


def spoil_length(draft: pb.Draft) -> None:
    draft.token_ids.extend([1] * 1000)
    draft.confidences.extend([0.9] * 1000)


def spoil_confidences(draft: pb.Draft) -> None:
    draft.confidences[0] = math.nan


def spoil_count(draft: pb.Draft) -> None:
    del draft.confidences[:]


def spoil_sequence(draft: pb.Draft) -> None:
    draft.sequence_id += 1_000_000


@pytest.mark.parametrize(
    "spoil", [spoil_hash, spoil_tokens, spoil_length, spoil_confidences, spoil_count, spoil_sequence]
)
async def test_drafts_that_cannot_be_right_are_never_verified(spoil: Spoil) -> None:
    counters = (await run(OracleDrafter(spoil=spoil))).scheduler.counters
    assert counters.num_draft_tokens == 0
    assert counters.num_draft_questions > 0


def deliver_twice(responses: list[pb.ProposeResponse]) -> list[pb.ProposeResponse]:
    return [*responses, *responses]


def deliver_under_another_name(responses: list[pb.ProposeResponse]) -> list[pb.ProposeResponse]:
    for response in responses:
        response.request_id += 7
    return responses


def deliver_without_an_end(responses: list[pb.ProposeResponse]) -> list[pb.ProposeResponse]:
    for response in responses:
        response.complete = False
    return responses


def deliver_a_flood(responses: list[pb.ProposeResponse]) -> list[pb.ProposeResponse]:
    for response in responses:
        junk = pb.Draft(sequence_id=1, base_length=5, token_ids=[1], confidences=[1.0], source=SUFFIX)
        response.drafts.extend([junk] * 5000)
    return responses


def deliver_nothing(responses: list[pb.ProposeResponse]) -> list[pb.ProposeResponse]:
    return []


@pytest.mark.parametrize(
    "deliver",
    [deliver_twice, deliver_under_another_name, deliver_without_an_end, deliver_a_flood, deliver_nothing],
)
async def test_answers_out_of_order_change_no_token_and_hold_up_no_step(deliver: Deliver) -> None:
    oracle = OracleDrafter(deliver=deliver)
    add = lambda server: drafter_pb2_grpc.add_DrafterServiceServicer_to_server(oracle, server)  # noqa: E731
    async with serving(add) as (port, _), stack(drafter_port=port) as s:
        await until(lambda: s.scheduler.load().drafter_connected)
        await ask(s)


async def test_drafts_made_ahead_are_there_when_the_step_is_done() -> None:
    oracle = OracleDrafter(drafts_ahead=True)
    counters = (await run(oracle)).scheduler.counters
    assert counters.num_draft_hits > counters.num_draft_questions
    assert counters.draft_wait_saved_seconds > 0
    assert counters.num_steps < NUM_TOKENS / 2


async def test_the_best_of_several_sources_wins_and_is_named() -> None:
    def spoil_suffix(draft: pb.Draft) -> None:
        if draft.source == SUFFIX:
            draft.confidences[:] = [0.2] * len(draft.confidences)
            spoil_first(draft)

    s = await run(OracleDrafter(sources=(SUFFIX, MODEL), spoil=spoil_suffix))
    by_source = s.scheduler.counters.drafts_by_source
    assert sum(by_source["model"].num_accepted_tokens_by_position) > 0
    named = [
        {item.source: item.num_accepted_tokens for item in end.sources} for end in s.client.ends.values()
    ]
    assert sum(counts.get("model", 0) for counts in named) == s.scheduler.counters.num_accepted_tokens


async def test_a_source_that_does_better_is_asked_though_another_has_drafted_ahead() -> None:
    def spoil_suffix(draft: pb.Draft) -> None:
        if draft.source == SUFFIX:
            spoil_first(draft)

    oracle = OracleDrafter(sources=(SUFFIX, MODEL), spoil=spoil_suffix, drafts_ahead=True, not_ahead=(MODEL,))
    counters = (await run(oracle)).scheduler.counters
    assert counters.num_steps < NUM_TOKENS / 2
    assert counters.num_draft_hits > 0


async def test_a_sequence_that_may_not_be_guessed_ahead_is_never_spoken_of() -> None:
    oracle = OracleDrafter()
    async with drafted(oracle) as s:
        await ask(s, max_draft_tokens=0)
    assert oracle.requests == []


async def test_a_text_that_no_draft_was_asked_for_is_learnt_from_at_its_end() -> None:
    oracle = OracleDrafter()
    async with drafted(oracle) as s:
        # There is no room for a draft before the one token to come.
        await s.client.submit(1, PROMPT, max_tokens=1)
        await s.client.read_to_end(1)
        await until(lambda: len(oracle.closed) == 1)
        assert oracle.closed[0].finished
        assert oracle.told[oracle.closed[0].sequence_id].token_ids == [
            *PROMPT,
            *expected(PROMPT, max_tokens=1),
        ]
        assert not any(request.wanted or request.verifying for request in oracle.requests)


async def test_hidden_vectors_reach_the_draft_head_with_the_tokens_that_they_belong_to() -> None:
    oracle = OracleDrafter(sources=(HEAD,))
    async with drafted(oracle, feature_size=2) as s:
        await ask(s)
        assert len(oracle.told) == NUM_SEQUENCES
        for told in oracle.told.values():
            assert told.num_features >= len(PROMPT)
        assert s.scheduler.counters.num_accepted_tokens > 0


async def test_no_hidden_vectors_are_wanted_for_other_sources() -> None:
    oracle = OracleDrafter()
    async with drafted(oracle, feature_size=2) as s:
        await ask(s)
    assert not any(request.features for request in oracle.requests)


async def test_a_drafter_that_goes_and_comes_back_is_told_everything_anew() -> None:
    oracle = OracleDrafter()
    async with drafted(oracle) as s:
        await s.client.submit(9, PROMPT, seed=9, max_tokens=150)
        await s.client.read_until(lambda: len(s.client.tokens.get(9, [])) > 10)
        oracle.hang_up.set()
        await until(lambda: oracle.num_streams == 2)
        await s.client.read_to_end(9)
        assert s.client.tokens[9] == expected(PROMPT, seed=9, max_tokens=150)


async def test_a_drafter_that_does_not_exist_changes_nothing() -> None:
    async with stack(drafter_port=1) as s:
        await s.client.submit(1, PROMPT)
        await s.client.read_to_end(1)
        assert s.client.tokens[1] == expected(PROMPT)


async def test_what_was_learnt_is_there_after_a_restart(tmp_path) -> None:
    async with drafted(OracleDrafter(), state_dir=tmp_path) as s:
        await ask(s)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    async with drafted(OracleDrafter(), state_dir=tmp_path) as s:
        await until(lambda: bool(s.scheduler.figures()))
        learnt = s.scheduler.schedule.controller.state()
        assert learnt["calibration"]["suffix"]["num_observed"] > 0


async def test_the_metrics_name_sources_places_and_lengths() -> None:
    s = await run(OracleDrafter())
    registry = CollectorRegistry()
    registry.register(SchedulerCollector(s.scheduler.load, s.scheduler.counters, s.scheduler.figures))
    text = generate_latest(registry).decode()
    assert 'outrider_spec_decode_source_accepted_tokens_total{position="0",source="suffix"}' in text
    assert 'outrider_spec_decode_source_drafts_total{length="' in text
    for name in ("num_draft_questions_total", "draft_wait_seconds_total", "controller_step_cost_error"):
        assert f"outrider_{name} " in text
