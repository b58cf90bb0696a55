"""To which of several schedulers the gateway turns when one is silent, full, without a group or different."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from outrider.client.status import error_of
from outrider.v1 import gateway_pb2 as gw
from outrider.v1 import load_pb2
from outrider.v1 import scheduler_pb2 as pb
from tests.integration.gateway_peers import (
    Answer,
    PlannedScheduler,
    RunningGateway,
    chat,
    collect,
    running_gateway,
    running_scheduler,
    take,
    text_tokens,
    until_read,
)

ANSWER = "I see €.</think>It is 42, and not 41."
TOKENS = text_tokens(ANSWER)
WITH_LOGPROBS = gw.GenerationOptions()
WITH_LOGPROBS.sampling.num_logprobs = 0


def planned(*, pause: bool = False) -> PlannedScheduler:
    """Returns a scheduler; it stops in the middle of every answer if it is to pause."""
    scheduler = PlannedScheduler(lambda submit: TOKENS)
    scheduler.load_seconds = 0.05
    if pause:
        scheduler.pause_after = 9
        scheduler.flowing.clear()
    return scheduler


@asynccontextmanager
async def gateway_of(*schedulers: PlannedScheduler, **settings: Any) -> AsyncIterator[RunningGateway]:
    """Serves a gateway before schedulers, all of them connected."""
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(running_scheduler(one)) for one in schedulers]
        gateway = await stack.enter_async_context(running_gateway(*addresses, **settings))
        await gateway.until_connected([True] * len(addresses))
        yield gateway


@asynccontextmanager
async def half_an_answer(gateway: RunningGateway, answer: Answer) -> AsyncIterator[None]:
    """Asks, reads until the scheduler pauses, and at the end reads the rest."""

    async def read() -> None:
        async for response in gateway.stub.Chat(chat(options=WITH_LOGPROBS)):
            take(answer, response)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        await until_read(answer, 8)
        yield


def busy_first(one: PlannedScheduler, other: PlannedScheduler) -> tuple[PlannedScheduler, PlannedScheduler]:
    """Returns the two, that which was asked first."""
    return (one, other) if one.submits else (other, one)


def assert_whole(answer: Answer) -> None:
    """Holds that every token came once, with its own logprobs."""
    assert answer.token_ids == TOKENS
    assert [-entry.logprob for delta in answer.deltas for entry in delta.logprobs] == TOKENS


async def test_an_answer_leaves_a_scheduler_that_falls_silent():
    one, other = planned(pause=True), planned(pause=True)
    async with gateway_of(one, other, scheduler_silence_seconds=0.4) as gateway:
        answer = Answer()
        async with half_an_answer(gateway, answer):
            silent, talking = busy_first(one, other)
            # As one that is stopped: its stream stays open and nothing comes.
            silent.load_seconds = 1000.0
            talking.flowing.set()
    assert_whole(answer)
    assert len(talking.submits) == 1
    assert talking.submits[0].was_accepted


async def test_an_answer_leaves_a_scheduler_whose_group_stays_away():
    one, other = planned(pause=True), planned(pause=True)
    async with gateway_of(one, other, group_absence_seconds=0.2) as gateway:
        answer = Answer()
        async with half_an_answer(gateway, answer):
            without, having = busy_first(one, other)
            having.flowing.set()
            without.load = load_pb2.Load(has_group=False)
        assert_whole(answer)
        assert without.aborted == [without.submits[0].sequence_id]
        # Nor does anything new go there.
        assert (await collect(gateway.stub.Chat(chat()))).token_ids == TOKENS
    assert (len(without.submits), len(having.submits)) == (1, 2)


async def test_an_answer_stays_where_no_other_pair_has_a_group():
    one, other = planned(pause=True), planned(pause=True)
    async with gateway_of(one, other, group_absence_seconds=0.2) as gateway:
        answer = Answer()
        async with half_an_answer(gateway, answer):
            one.load = other.load = load_pb2.Load(has_group=False)
            await asyncio.sleep(1.0)
            one.flowing.set()
            other.flowing.set()
        assert_whole(answer)
    assert len(one.submits) + len(other.submits) == 1


def full(seconds: int) -> pb.SequenceError:
    delay = duration_pb2.Duration(seconds=seconds)
    return pb.SequenceError(
        code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="full", retry_delay=delay
    )


async def test_a_request_that_one_scheduler_has_no_room_for_goes_to_another():
    one, other = planned(), planned()
    one.error = full(9)
    async with gateway_of(one, other) as gateway:
        for _ in range(3):
            assert (await collect(gateway.stub.Chat(chat()))).token_ids == TOKENS
    assert len(other.submits) == 3


async def test_a_request_that_none_has_room_for_is_told_the_shortest_time_to_wait():
    one, other = planned(), planned()
    one.error, other.error = full(9), full(4)
    async with gateway_of(one, other) as gateway:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await collect(gateway.stub.Chat(chat()))
            error = error_of(caught.value)
            assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert error.retry_delay is not None
            assert error.retry_delay.total_seconds() == 4
    assert (len(one.submits), len(other.submits)) == (2, 2)


async def test_what_was_accepted_waits_for_room_when_its_scheduler_is_lost():
    one, other = planned(pause=True), planned(pause=True)
    async with gateway_of(one, other) as gateway:
        answer = Answer()
        async with half_an_answer(gateway, answer):
            lost, crowded = busy_first(one, other)
            lost.error = crowded.error = full(9)
            lost.break_streams()
            await crowded.until(lambda: len(crowded.submits) == 2)
            crowded.error = None
            crowded.flowing.set()
        assert_whole(answer)


async def test_a_deadline_that_one_scheduler_cannot_meet_may_be_met_by_another():
    one, other = planned(), planned()
    one.error = pb.SequenceError(code=grpc.StatusCode.DEADLINE_EXCEEDED.value[0], message="too late")
    async with gateway_of(one, other) as gateway:
        for _ in range(2):
            answer = await collect(gateway.stub.Chat(chat(), timeout=60))
            assert answer.token_ids == TOKENS


async def test_an_answer_never_goes_on_under_other_arithmetic():
    one, other = planned(pause=True), planned(pause=True)
    async with gateway_of(one, other) as gateway:
        answer = Answer()
        async with half_an_answer(gateway, answer):
            lost, different = busy_first(one, other)
            different.numerics_id = "n2"
            different.break_streams()
            await gateway.until_connected([True, True])
            lost.break_streams()
            await lost.until(lambda: len(lost.submits) == 2)
            lost.flowing.set()
        assert_whole(answer)
    assert different.submits == []


async def test_a_request_that_was_not_begun_may_go_to_a_group_of_other_arithmetic():
    one, other = planned(), planned()
    one.error = full(9)
    other.numerics_id = "n2"
    async with gateway_of(one, other) as gateway:
        for _ in range(2):
            answer = await collect(gateway.stub.Chat(chat()))
            assert (answer.token_ids, answer.started.numerics_id) == (TOKENS, "n2")


async def test_requests_with_one_beginning_go_where_it_was_computed_and_others_take_turns():
    one, other = planned(), planned()
    async with gateway_of(one, other) as gateway:
        contents = [f"{letter} " + "a long question " * 20 for letter in "ABCD"]
        for content in contents:
            await collect(gateway.stub.Chat(chat(content)))
        assert (len(one.submits), len(other.submits)) == (2, 2)
        places = {
            tuple(s.prompt_token_ids[:40]): scheduler for scheduler in (one, other) for s in scheduler.submits
        }
        for content in contents:
            await collect(gateway.stub.Chat(chat(content + "once more")))
    for scheduler in (one, other):
        assert all(places[tuple(s.prompt_token_ids[:40])] is scheduler for s in scheduler.submits)


async def test_stats_tell_who_takes_requests():
    one, other = planned(), planned()
    other.load = load_pb2.Load(has_group=False, num_requests_waiting=3)
    async with gateway_of(one, other) as gateway:
        await collect(gateway.stub.Chat(chat()))
        found = (await gateway.stub.GetStats(gw.GetStatsRequest())).schedulers
    assert [scheduler.takes_requests for scheduler in found] == [True, False]
    assert [scheduler.num_requests for scheduler in found] == [0, 0]
    assert found[0].num_known_blocks > 0
    assert found[1].load.num_requests_waiting == 3
