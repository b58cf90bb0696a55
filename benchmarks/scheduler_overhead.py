"""Measures what the scheduler adds to a step: its own work, and the stream to a group that answers at once.

    python -m benchmarks.scheduler_overhead [--num-seqs 1 64] [--num-steps 1000]

The group is a gRPC server in a process of its own; its tokens are arithmetic, its forward pass takes no time.
"""

import argparse
import asyncio
import json
import multiprocessing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection

import grpc
import uvloop

from outrider.rpc.channel import connect
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import sampling_pb2, scheduler_pb2_grpc, worker_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from outrider.v1 import worker_pb2 as worker_pb
from services.scheduler.config import Config
from services.scheduler.loop import Scheduler
from services.scheduler.service import SERVICE, SchedulerServicer

VOCAB_SIZE = 100_000
PROMPT_LENGTH = 512


class ArithmeticGroup(worker_pb2_grpc.WorkerServiceServicer):
    """Answers every step at once: the token at each position is a function of the position."""

    async def Step(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb.StepResponse]:
        """Answers one scheduler."""
        num_tokens: dict[int, int] = {}
        async for request in request_iterator:
            response = worker_pb.StepResponse(session=request.session, epoch=1)
            if request.HasField("open"):
                response.opened.CopyFrom(_opened())
            else:
                response.output.CopyFrom(_answer(request.batch, num_tokens))
            yield response


def _opened() -> worker_pb.SessionOpened:
    return worker_pb.SessionOpened(
        model="arithmetic",
        numerics_id="arithmetic",
        max_model_len=32_768,
        vocab_size=VOCAB_SIZE,
        num_blocks=16_384,
        block_size=16,
        max_num_batched_tokens=2048,
    )


def _answer(batch: worker_pb.Batch, num_tokens: dict[int, int]) -> worker_pb.BatchOutput:
    output = worker_pb.BatchOutput(step_id=batch.step_id)
    for step in batch.sequences:
        if step.HasField("start"):
            num_tokens[step.sequence_id] = len(step.start.token_ids)
        position = step.num_computed_tokens + step.num_new_tokens
        if position == num_tokens[step.sequence_id]:
            token_id = (position * 7919 + step.sequence_id) % VOCAB_SIZE
            output.outputs.add(sequence_id=step.sequence_id).tokens.token_ids.append(token_id)
            num_tokens[step.sequence_id] += 1
    return output


def _run_group(ready: Connection) -> None:
    async def serve() -> None:
        server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(ArithmeticGroup(), server)
        ready.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    uvloop.run(serve())


@asynccontextmanager
async def _scheduler(worker_port: int) -> AsyncIterator[tuple[Scheduler, int]]:
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    config = Config(worker=f"127.0.0.1:{worker_port}", listen=listen)
    async with RpcServer(listen, service=SERVICE) as server, connect(config.worker) as worker:
        scheduler = Scheduler(config, worker=worker, drafter=None, set_serving=server.set_serving)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerServicer(scheduler), server.grpc)
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(scheduler.run())
            yield scheduler, server.grpc_port
            loop.cancel()


def _submits(num_seqs: int, num_steps: int) -> pb.ServeRequest:
    params = sampling_pb2.SequenceParams(sampling=sampling_pb2.SamplingParams(max_tokens=num_steps))
    return pb.ServeRequest(
        submits=[
            pb.Submit(sequence_id=n, prompt_token_ids=[n, *range(1, PROMPT_LENGTH)], params=params)
            for n in range(num_seqs)
        ]
    )


async def _measure(num_seqs: int, num_steps: int, worker_port: int) -> dict[str, float]:
    own, steps = [], []
    async with _scheduler(worker_port) as (scheduler, port), connect(f"127.0.0.1:{port}") as channel:
        call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Serve()
        await call.write(_submits(num_seqs, num_steps))
        num_ended = 0
        while num_ended < num_seqs:
            response = await call.read()
            assert isinstance(response, pb.ServeResponse)
            num_ended += sum(event.HasField("finished") for event in response.events)
            if len(scheduler.schedule.running) == num_seqs:
                own.append(scheduler.times.last_own_seconds)
                steps.append(scheduler.times.last_step_seconds)
        call.cancel()
    return {
        "num_seqs": num_seqs,
        "own_ms": _median_ms(own),
        "own_and_stream_ms": _median_ms([a + b for a, b in zip(own, steps, strict=True)]),
    }


async def _measure_all(num_seqs: list[int], num_steps: int, worker_port: int) -> list[dict[str, float]]:
    return [await _measure(count, num_steps, worker_port) for count in num_seqs]


def _median_ms(seconds: list[float]) -> float:
    return round(1000 * sorted(seconds)[len(seconds) // 2], 4)


def measure(num_seqs: list[int], num_steps: int) -> list[dict[str, float]]:
    """Returns medians in milliseconds per step for each number of running sequences."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_run_group, args=(sender,), daemon=True)
    process.start()
    try:
        return uvloop.run(_measure_all(num_seqs, num_steps, receiver.recv()))
    finally:
        process.terminate()


def main() -> None:
    """Prints one JSON object per number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seqs", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--num-steps", type=int, default=1000)
    arguments = parser.parse_args()
    for row in measure(arguments.num_seqs, arguments.num_steps):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
