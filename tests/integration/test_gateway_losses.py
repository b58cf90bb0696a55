"""What the gateway does when schedulers or clients are lost."""

import asyncio
import re

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from outrider.v1 import gateway_pb2 as gw
from outrider.v1 import gateway_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.config import Limits
from tests.integration.gateway_peers import (
    Answer,
    PlannedScheduler,
    chat,
    collect,
    running_gateway,
    running_scheduler,
    take,
    text_tokens,
    until_read,
)

ANSWER = "I see €.</think>It is 42, and not 41."


def planned(**fields) -> PlannedScheduler:
    return PlannedScheduler(lambda submit: text_tokens(ANSWER), **fields)


def paused() -> PlannedScheduler:
    """Returns a scheduler that stops in the middle of every answer."""
    scheduler = planned()
    scheduler.pause_after = 9
    scheduler.flowing.clear()
    return scheduler


async def read(call, answer: Answer) -> None:
    async for response in call:
        take(answer, response)


async def read_on(call) -> None:
    while await call.read() != grpc.aio.EOF:
        pass


async def test_a_broken_stream_is_opened_again_and_the_answer_goes_on():
    scheduler = paused()
    async with running_scheduler(scheduler) as address, running_gateway(address) as gateway:
        answer = Answer()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(gateway.stub.Chat(chat()), answer))
            await until_read(answer, 8)
            scheduler.break_streams()
            await scheduler.until(lambda: len(scheduler.submits) == 2)
            scheduler.flowing.set()
        assert (answer.reasoning, answer.text) == ("I see €.", "It is 42, and not 41.")
        assert answer.token_ids == text_tokens(ANSWER)
    first, second = scheduler.submits
    assert list(second.output_token_ids) == text_tokens(ANSWER)[: len(second.output_token_ids)] != []
    assert second.params == first.params


async def test_an_answer_moves_to_another_scheduler_with_the_same_numerics():
    lost, other = paused(), planned()
    async with (
        running_scheduler(other) as other_address,
        running_scheduler(lost) as address,
        running_gateway(address, other_address) as gateway,
    ):
        await gateway.until_connected([True, True])
        answer = Answer()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(gateway.stub.Chat(chat()), answer))
            await until_read(answer, 8)
            lost.break_streams()
        assert answer.token_ids == text_tokens(ANSWER)
    assert (len(lost.submits), len(other.submits)) == (1, 1)


async def test_an_answer_does_not_move_to_where_it_has_no_room():
    lost, other = paused(), planned()
    other.max_model_len = 64
    async with (
        running_scheduler(other) as other_address,
        running_scheduler(lost) as address,
        running_gateway(address, other_address) as gateway,
    ):
        await gateway.until_connected([True, True])
        answer, call = Answer(), gateway.stub.Chat(chat())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(call, answer))
            await until_read(answer, 8)
            lost.break_streams()
            await lost.until(lambda: len(lost.submits) == 2)
            lost.flowing.set()
        assert answer.token_ids == text_tokens(ANSWER)
    assert other.submits == []


async def test_what_waits_for_a_scheduler_is_sent_in_messages_of_a_bounded_size(monkeypatch):
    scheduler = paused()
    async with running_scheduler(scheduler) as address, running_gateway(address) as gateway:
        asking = [asyncio.create_task(collect(gateway.stub.Chat(chat()))) for _ in range(5)]
        await scheduler.until(lambda: len(scheduler.submits) == 5)
        monkeypatch.setattr(
            "services.gateway.scheduler_client._MAX_MESSAGE_BYTES", 2 * scheduler.submits[0].ByteSize() + 90
        )
        scheduler.message_sizes.clear()
        scheduler.break_streams()
        await scheduler.until(lambda: len(scheduler.submits) == 10)
        scheduler.flowing.set()
        for answer in asking:
            assert (await answer).token_ids == text_tokens(ANSWER)
    assert scheduler.message_sizes == [2, 2, 1]


def resumed(numerics_id: str) -> gw.ChatRequest:
    known = text_tokens(ANSWER)[:4]
    resume = gw.Resume(token_ids=known, seed=1, request_id="r", numerics_id=numerics_id)
    return chat(options=gw.GenerationOptions(resume=resume))


async def test_a_resumed_answer_goes_on_only_under_its_own_arithmetic():
    first, second = planned(), planned()
    second.numerics_id = "n2"
    async with (
        running_scheduler(first) as first_address,
        running_scheduler(second) as second_address,
        running_gateway(first_address, second_address) as gateway,
    ):
        await gateway.until_connected([True, True])
        for numerics_id in ("n1", "n2"):
            answer = await collect(gateway.stub.Chat(resumed(numerics_id)))
            assert answer.started.numerics_id == numerics_id
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(gateway.stub.Chat(resumed("n3")))
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert (len(first.submits), len(second.submits)) == (1, 1)


async def test_an_answer_moves_when_its_scheduler_waited_too_long_for_a_group():
    without, other = paused(), planned()
    async with (
        running_scheduler(other) as other_address,
        running_scheduler(without) as address,
        running_gateway(address, other_address) as gateway,
    ):
        await gateway.until_connected([True, True])
        answer = Answer()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(gateway.stub.Chat(chat()), answer))
            await until_read(answer, 8)
            error = pb.SequenceError(code=grpc.StatusCode.UNAVAILABLE.value[0], message="no group")
            without.end_sequence(without.submits[0].sequence_id, error)
        assert answer.token_ids == text_tokens(ANSWER)
    assert (len(without.submits), len(other.submits)) == (1, 1)


async def test_health_follows_schedulers_that_are_connected_but_have_no_group():
    scheduler = planned()
    async with (
        running_scheduler(scheduler) as address,
        running_gateway(address, grace_seconds=1.0) as gateway,
    ):
        scheduler.set_serving(False)
        await gateway.until_health(HealthCheckResponse.NOT_SERVING)
        await gateway.until_connected([True])
        scheduler.set_serving(True)
        await gateway.until_health(HealthCheckResponse.SERVING)
        assert (await collect(gateway.stub.Chat(chat()))).token_ids == text_tokens(ANSWER)


async def test_requests_count_while_they_wait_for_a_scheduler():
    scheduler = planned()
    async with running_scheduler(scheduler) as address:
        port = int(address.rpartition(":")[2])
        gateway_running = running_gateway(address, limits=Limits(max_num_requests=1))
        gateway = await gateway_running.__aenter__()
    await gateway.until_connected([False])
    asking = [asyncio.create_task(collect(gateway.stub.Chat(chat()))) for _ in range(2)]
    refused, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    (error,) = (task.exception() for task in refused)
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    async with running_scheduler(scheduler, port):
        assert (await waiting.pop()).token_ids == text_tokens(ANSWER)
        await gateway_running.__aexit__(None, None, None)


async def test_other_arithmetic_ends_the_answer_and_says_so():
    scheduler = paused()
    async with running_scheduler(scheduler) as address, running_gateway(address) as gateway:
        answer, call = Answer(), gateway.stub.Chat(chat())
        reading = asyncio.create_task(read(call, answer))
        await until_read(answer, 8)
        scheduler.numerics_id = "n2"
        scheduler.break_streams()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reading
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert re.search("numerics id changed from n1 to n2", caught.value.details() or "")
    assert len(scheduler.submits) == 1


async def test_a_scheduler_lost_for_good_ends_the_answer_so_that_the_client_resumes():
    scheduler = paused()
    async with running_scheduler(scheduler) as address:
        gateway_running = running_gateway(address, grace_seconds=1.0)
        gateway = await gateway_running.__aenter__()
        answer, call = Answer(), gateway.stub.Chat(chat())
        reading = asyncio.create_task(read(call, answer))
        await until_read(answer, 8)
    # The scheduler is gone; what was read stays with the client.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await reading
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "resume" in (caught.value.details() or "")
    await gateway.until_health(HealthCheckResponse.NOT_SERVING)
    await gateway_running.__aexit__(None, None, None)


async def test_a_gateway_serves_while_its_scheduler_may_come_back():
    scheduler = planned()
    async with running_scheduler(scheduler) as address:
        port = int(address.rpartition(":")[2])
        gateway_running = running_gateway(address)
        gateway = await gateway_running.__aenter__()
    await gateway.until_connected([False])
    await gateway.until_health(HealthCheckResponse.SERVING)
    asking = asyncio.create_task(collect(gateway.stub.Chat(chat())))
    async with running_scheduler(scheduler, port):
        assert (await asking).token_ids == text_tokens(ANSWER)
        await gateway_running.__aexit__(None, None, None)


async def test_a_client_that_reads_nothing_is_cancelled():
    scheduler = PlannedScheduler(lambda submit: text_tokens("</think>" + "abcdefgh " * 400), step=1)
    scheduler.max_model_len = 100_000
    async with (
        running_scheduler(scheduler) as address,
        running_gateway(address, unread_seconds=0.5) as gateway,
    ):
        # Windows so small that the gateway's writes wait for the reader.
        options = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
        address = f"127.0.0.1:{gateway.server.grpc_port}"
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            call = gateway_pb2_grpc.GatewayServiceStub(channel).Chat(chat("x" * 20))
            await call.read()
            await scheduler.until(lambda: scheduler.aborted == [1])
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await read_on(call)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        answer = await collect(gateway.stub.Chat(chat()))
        assert answer.finished.reason == gw.FINISH_REASON_STOP


async def test_a_request_refused_by_a_scheduler_that_shuts_down_goes_to_another():
    leaving, other = planned(), planned()
    leaving.error = pb.SequenceError(code=grpc.StatusCode.UNAVAILABLE.value[0], message="shutting down")
    async with (
        running_scheduler(other) as other_address,
        running_scheduler(leaving) as address,
        running_gateway(address, other_address) as gateway,
    ):
        await gateway.until_connected([True, True])
        answers = [await collect(gateway.stub.Chat(chat())) for _ in range(2)]
    assert all(answer.token_ids == text_tokens(ANSWER) for answer in answers)
    assert len(other.submits) == 2


async def test_a_request_waits_for_a_scheduler_that_has_no_group_for_a_while():
    scheduler = planned()
    scheduler.error = pb.SequenceError(code=grpc.StatusCode.UNAVAILABLE.value[0], message="no group")
    async with running_scheduler(scheduler) as address, running_gateway(address) as gateway:
        asking = asyncio.create_task(collect(gateway.stub.Chat(chat())))
        await scheduler.until(lambda: len(scheduler.submits) == 1)
        scheduler.error = None
        assert (await asking).token_ids == text_tokens(ANSWER)


async def test_a_scheduler_that_refuses_for_good_ends_the_request():
    scheduler = planned()
    scheduler.error = pb.SequenceError(code=grpc.StatusCode.UNAVAILABLE.value[0], message="no group")
    async with (
        running_scheduler(scheduler) as address,
        running_gateway(address, grace_seconds=2.5) as gateway,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(gateway.stub.Chat(chat()))
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert len(scheduler.submits) > 1
