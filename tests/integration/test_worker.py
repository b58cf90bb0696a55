"""The worker's stream: sessions, epochs, step ids and refusals, over a real connection."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc.channel import connect
from outrider.rpc.server import RpcServer
from outrider.v1 import worker_pb2_grpc
from services.worker.service import SERVICE, WorkerServicer
from services.worker.step import Stepper
from tests.groups import Stream, config_of, prompt_of, running_worker, scheduled, write_model

REFUSED = grpc.StatusCode.INVALID_ARGUMENT
STALE = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def channel(model_dir):
    async with running_worker(config_of(model_dir)) as opened_channel:
        yield opened_channel


async def opened(channel, session):
    stream = Stream(channel, session)
    await stream.open()
    return stream


async def code_of(request):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await request
    return caught.value.code()


def health_of(channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


def hold_steps(monkeypatch):
    """Returns an event that is set once a step has begun, and one that lets steps go on."""
    run, loop, began, may_go_on = Stepper.run, asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def run_when_allowed(stepper, batch):
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(may_go_on.wait(), loop).result()
        return run(stepper, batch)

    monkeypatch.setattr(Stepper, "run", run_when_allowed)
    return began, may_go_on


def first_step(index=0, **sampling):
    return scheduled(index, prompt_of(index, 9), temperature=0, **sampling).step()


async def test_opening_tells_what_the_group_is(channel, model_dir):
    facts = await Stream(channel, 1).open()
    assert (facts.model, facts.vocab_size, facts.block_size, facts.num_blocks) == (model_dir.name, 97, 4, 200)
    assert (facts.max_model_len, facts.max_num_batched_tokens) == (1024, 128)
    assert (facts.num_experts, facts.num_experts_per_token, facts.num_moe_layers) == (8, 3, 2)


async def test_a_sequence_runs_step_by_step(channel):
    stream, sequence = await opened(channel, 1), scheduled(0, prompt_of(0, 9), temperature=0, num_logprobs=2)
    for step_id in range(1, 5):
        step = sequence.step(draft=[5] if step_id == 3 else [])
        output = await stream.step(step_id, [step])
        assert output.step_id == step_id
        assert output.forward_us > 0
        assert len(output.num_distinct_experts) == 2
        tokens = output.outputs[0].tokens
        assert len(tokens.logprobs) == len(tokens.token_ids)
        assert all(len(entry.top) == 2 for entry in tokens.logprobs)
        sequence.num_computed += step.num_new_tokens + tokens.num_accepted_tokens
        sequence.tokens += tokens.token_ids
    assert len(sequence.output) >= 4


async def test_a_repeated_step_gets_the_stored_answer(channel):
    stream, step = await opened(channel, 1), first_step()
    first = await stream.step(1, [step])
    # Run again, the start of a running sequence would be refused.
    assert await stream.step(1, [step]) == first


async def test_a_repeat_on_a_new_stream_waits_for_the_step_in_flight(channel, monkeypatch):
    began, may_go_on = hold_steps(monkeypatch)
    step, broken = first_step(), await opened(channel, 1)
    lost = asyncio.ensure_future(broken.step(1, [step]))
    await began.wait()
    broken.call.cancel()
    await asyncio.wait([lost])
    again = await opened(channel, 1)
    answer = asyncio.ensure_future(again.step(1, [step]))
    await asyncio.sleep(0.1)
    assert not answer.done()
    may_go_on.set()
    assert len((await answer).outputs[0].tokens.token_ids) == 1


async def test_health_answers_during_a_step(channel, monkeypatch):
    began, may_go_on = hold_steps(monkeypatch)
    stream = await opened(channel, 1)
    answer = asyncio.ensure_future(stream.step(1, [first_step()]))
    await began.wait()
    health = await health_of(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    assert not answer.done()
    may_go_on.set()
    assert len((await answer).outputs) == 1


async def test_a_new_session_voids_the_old_one_and_its_sequences(channel):
    old, step = await opened(channel, 1), first_step()
    await old.step(1, [step])
    new = await opened(channel, 2)
    assert len((await new.step(1, [step])).outputs) == 1
    assert await code_of(old.step(2, [step])) == STALE
    assert await code_of(Stream(channel, 1).open()) == STALE


async def test_a_stale_epoch_is_refused(channel):
    stream = await opened(channel, 1)
    stream.epoch += 1
    assert await code_of(stream.step(1, [first_step()])) == STALE


async def test_a_session_that_was_not_opened_on_the_stream_is_refused(channel):
    await opened(channel, 1)
    stray = Stream(channel, 1)
    assert await code_of(stray.step(1, [first_step()])) == STALE


async def test_step_ids_grow_by_one(channel):
    stream = await opened(channel, 1)
    await stream.step(7, [first_step()])
    assert await code_of(stream.step(9, [])) == REFUSED
    again = await opened(channel, 1)
    assert await code_of(again.step(6, [])) == REFUSED


async def test_a_refused_batch_changes_nothing(channel):
    stream, sequence = await opened(channel, 1), scheduled(0, prompt_of(0, 9), temperature=0)
    good, bad = sequence.step(), first_step(1)
    assert bad.start is not None
    bad.start.token_ids[0] = 97
    assert await code_of(stream.step(1, [good, bad])) == REFUSED
    again = await opened(channel, 1)
    assert len((await again.step(1, [good])).outputs) == 1


async def test_a_message_without_a_request_is_refused(channel):
    stream = await opened(channel, 1)
    assert await code_of(stream.ask()) == REFUSED


async def test_a_failed_step_is_reported_and_its_session_must_end(channel, monkeypatch):
    def fail(stepper, batch):
        raise RuntimeError("out of luck")

    stream = await opened(channel, 1)
    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "run", fail)
        assert await code_of(stream.step(1, [first_step()])) == grpc.StatusCode.INTERNAL
    again = await opened(channel, 1)
    assert await code_of(again.step(1, [first_step()])) == grpc.StatusCode.INTERNAL
    assert await code_of((await opened(channel, 1)).step(2, [first_step()])) == STALE
    new = await opened(channel, 2)
    assert len((await new.step(1, [first_step()])).outputs) == 1


async def test_a_step_that_is_stuck_ends_the_liveness_and_is_no_sequence_s_fault(model_dir, monkeypatch):
    async with running_worker(config_of(model_dir, step_seconds=1)) as channel:
        watch = health_of(channel).Watch(health_pb2.HealthCheckRequest(service="liveness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        _, may_go_on = hold_steps(monkeypatch)
        stream = await opened(channel, 1)
        assert await code_of(stream.step(1, [first_step()])) == grpc.StatusCode.UNAVAILABLE
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        # Nobody who comes later waits for it either.
        assert await code_of(Stream(channel, 1).open()) == grpc.StatusCode.UNAVAILABLE
        may_go_on.set()
        watch.cancel()


async def test_a_worker_that_loads_is_unavailable_and_not_serving(model_dir):
    async with RpcServer(config_of(model_dir).listen, service=SERVICE) as server:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(WorkerServicer(), server.grpc)
        await server.start()
        async with connect(f"127.0.0.1:{server.grpc_port}") as channel:
            assert await code_of(Stream(channel, 1).open()) == grpc.StatusCode.UNAVAILABLE
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            health = await health_of(channel).Check(request)
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
