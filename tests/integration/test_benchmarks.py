"""What benchmarks do to running services: they watch, force texts, and leave nothing behind."""

import asyncio

import grpc
import pytest

from benchmarks.agent import Conversation, Session
from benchmarks.answers import Meter, asker
from benchmarks.edits import encode, recorded
from benchmarks.relay import StepRelay
from benchmarks.runs import Cell, measure_run
from benchmarks.workloads import Place, unpredictable
from outrider import AsyncClient
from outrider.rpc.channel import connect
from outrider.v1 import sampling_pb2, worker_pb2_grpc
from outrider.v1 import worker_pb2 as pb
from tests.stack import RunningStack
from tests.unit.scheduler.group_server import GroupServer
from tests.unit.scheduler.reference_group import ReferenceGroup, alone

SHORTEST = min(recorded(), key=lambda edit: len(encode(edit.after)))
GONE_SECONDS = 20


def steps(prompt: list[int], seed: int, num_tokens: int) -> list[pb.Batch]:
    """Returns the batches that compute a sequence without drafts, and the one that lets it go."""
    start = pb.SequenceStart(
        token_ids=prompt, num_prompt_tokens=len(prompt), params=sampling_pb2.SequenceParams(seed=seed)
    )
    first = pb.SequenceStep(sequence_id=7, start=start, num_new_tokens=len(prompt), new_block_ids=range(8))
    later = [
        pb.SequenceStep(sequence_id=7, num_computed_tokens=len(prompt) + n, num_new_tokens=1)
        for n in range(num_tokens - 1)
    ]
    batches = [pb.Batch(step_id=n, sequences=[step]) for n, step in enumerate([first, *later], 1)]
    return [*batches, pb.Batch(step_id=len(batches) + 1, released_sequence_ids=[7])]


async def test_a_relay_passes_on_what_the_group_says_and_keeps_its_texts() -> None:
    group = ReferenceGroup()
    prompt, num_tokens = [1, 2, 3, 4, 5], 9
    server, relay_server = grpc.aio.server(), grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(GroupServer(group), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}") as worker:
        relay = StepRelay(worker)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(relay, relay_server)
        relay_port = relay_server.add_insecure_port("127.0.0.1:0")
        await relay_server.start()
        async with connect(f"127.0.0.1:{relay_port}") as channel:
            call = worker_pb2_grpc.WorkerServiceStub(channel).Step()
            await call.write(pb.StepRequest(session=5, open=pb.OpenSession()))
            opened = await call.read()
            assert isinstance(opened, pb.StepResponse)
            assert opened.opened == group.opened
            said: list[int] = []
            for batch in steps(prompt, 3, num_tokens):
                assert relay.take() == []
                await call.write(pb.StepRequest(session=5, epoch=opened.epoch, batch=batch))
                answer = await call.read()
                assert isinstance(answer, pb.StepResponse)
                said += [token for item in answer.output.outputs for token in item.tokens.token_ids]
            call.cancel()
    await relay_server.stop(None)
    await server.stop(None)
    (written,) = relay.take()
    assert (written.prompt, written.params.seed) == (prompt, 3)
    whole = alone(prompt, 3, num_tokens=len(prompt) + num_tokens, stop=frozenset(), vocab_size=11)
    assert prompt + written.output == prompt + said == whole


@pytest.mark.parametrize("drafts", [True, False])
async def test_a_recorded_edit_is_what_the_agent_writes(stack: RunningStack, drafts: bool) -> None:
    async with AsyncClient(stack.target) as client:
        conversation = Conversation(asker(client, Meter(), speculation=drafts))
        (answer,) = await conversation.play(Session(turns=(SHORTEST,)))
    assert answer.text == SHORTEST.after
    assert list(answer.token_ids) == encode(SHORTEST.after)
    assert (answer.stats.num_steps < len(answer.token_ids)) == drafts


async def test_a_run_counts_tokens_and_leaves_no_stream_behind(stack: RunningStack) -> None:
    async with AsyncClient(stack.target) as client:
        cell = Cell(kind="unpredictable", play=unpredictable, num_streams=3)
        run = await measure_run(client, cell, Place(cell="test"), 1.0, speculation=False)
        for _ in range(10 * GONE_SECONDS):
            if not any(one.load.num_requests_running for one in await client.stats()):
                break
            await asyncio.sleep(0.1)
        else:
            pytest.fail("streams are still running")
    assert run.tokens_per_second > 0
    assert run.tokens_per_event == 1
