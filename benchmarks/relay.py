"""Stands between a scheduler and its group, and notes every text that the group writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from benchmarks.stacks import say
from outrider.rpc.channel import connect
from outrider.v1 import sampling_pb2, worker_pb2_grpc
from outrider.v1 import worker_pb2 as pb
from services.local.settings import DEFAULT_MODEL, Settings
from services.local.stack import Stack


@dataclass(slots=True, kw_only=True)
class Written:
    """A prompt, what decided the tokens behind it, and those."""

    prompt: list[int]
    params: sampling_pb2.SequenceParams
    output: list[int] = field(default_factory=list)


class StepRelay(worker_pb2_grpc.WorkerServiceServicer):
    """Passes steps on as they are; keeps the texts of sequences until they are taken."""

    def __init__(self, worker: grpc.aio.Channel) -> None:
        self._stub = worker_pb2_grpc.WorkerServiceStub(worker)
        self._running: dict[int, Written] = {}
        self._finished: list[Written] = []

    async def Step(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Carries one scheduler's stream both ways."""
        call = self._stub.Step()
        try:
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(self._ask(request_iterator, call))
                async for response in call:
                    self._note_output(response.output)
                    await context.write(response)
                asking.cancel()
        finally:
            call.cancel()

    def take(self) -> list[Written]:
        """Returns the texts that were finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    async def _ask(self, requests: AsyncIterator[pb.StepRequest], call: grpc.aio.StreamStreamCall) -> None:
        async for request in requests:
            self._note_batch(request.batch)
            await call.write(request)
        await call.done_writing()

    def _note_batch(self, batch: pb.Batch) -> None:
        for sequence_id in batch.released_sequence_ids:
            if (written := self._running.pop(sequence_id, None)) is not None:
                self._finished.append(written)
        for step in batch.sequences:
            if step.HasField("start"):
                token_ids, num_prompt = list(step.start.token_ids), step.start.num_prompt_tokens
                self._running[step.sequence_id] = Written(
                    prompt=token_ids[:num_prompt], output=token_ids[num_prompt:], params=step.start.params
                )

    def _note_output(self, output: pb.BatchOutput) -> None:
        for item in output.outputs:
            self._running[item.sequence_id].output.extend(item.tokens.token_ids)


@asynccontextmanager
async def watched_stack(
    model: Path = DEFAULT_MODEL, *, drafter: tuple[str, ...]
) -> AsyncIterator[tuple[Stack, StepRelay]]:
    """Yields a stack whose steps pass a relay, once it serves."""
    made = Stack(Settings(model=model, drafter=drafter, grpc_port=0, http_port=0), report=say)
    server = grpc.aio.server()
    async with connect(made.children["worker"].program.address) as channel:
        relay = StepRelay(channel)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(relay, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        scheduler = made.children["scheduler"]
        environment = {**scheduler.program.environment, "OUTRIDER_SCHEDULER_WORKER": address}
        scheduler.program = replace(scheduler.program, environment=environment)
        await server.start()
        try:
            async with made:
                await made.wait_until_ready()
                yield made, relay
        finally:
            await server.stop(None)
