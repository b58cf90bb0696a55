"""A real scheduler between a gateway's stream and a group server whose tokens are a pure function."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf import duration_pb2

from outrider.rpc.channel import connect
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import sampling_pb2, scheduler_pb2_grpc, worker_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from services.scheduler.config import Config
from services.scheduler.loop import Scheduler
from services.scheduler.service import SERVICE, SchedulerServicer
from tests.unit.scheduler.group_server import GroupServer
from tests.unit.scheduler.reference_group import ReferenceGroup, alone

VOCAB_SIZE = 50
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@asynccontextmanager
async def serving(
    add: Callable[[grpc.aio.Server], None], port: int = 0
) -> AsyncIterator[tuple[int, grpc.aio.Server]]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    add(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port, server
    finally:
        await server.stop(None)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Client:
    """What a gateway does: one stream, events gathered per sequence."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = scheduler_pb2_grpc.SchedulerServiceStub(channel).Serve()
        self.tokens: dict[int, list[int]] = {}
        self.first_offset: dict[int, int] = {}
        self.started: dict[int, int] = {}
        self.ends: dict[int, Any] = {}
        self.opened: pb.Opened | None = None

    async def submit(self, sequence_id: int, prompt: list[int], **fields: Any) -> None:
        await self.call.write(pb.ServeRequest(submits=[make_submit(sequence_id, prompt, **fields)]))

    async def read_until(self, done: Callable[[], bool]) -> None:
        while not done():
            response = await self.call.read()
            assert isinstance(response, pb.ServeResponse)
            self.take(response)

    async def read_to_end(self, *sequence_ids: int) -> None:
        await self.read_until(lambda: all(sequence_id in self.ends for sequence_id in sequence_ids))

    def take(self, response: pb.ServeResponse) -> None:
        if response.HasField("opened"):
            self.opened = response.opened
        for event in response.events:
            tokens = self.tokens.setdefault(event.sequence_id, [])
            first = self.first_offset.setdefault(event.sequence_id, event.offset)
            assert event.sequence_id not in self.ends
            assert event.offset == first + len(tokens)
            tokens.extend(event.token_ids)
            if event.HasField("started"):
                assert event.sequence_id not in self.started
                self.started[event.sequence_id] = event.started.num_cached_tokens
            if (end := event.WhichOneof("end")) is not None:
                self.ends[event.sequence_id] = getattr(event, end)


def make_submit(
    sequence_id: int, prompt: list[int], *, seed: int = 0, max_tokens: int = 20, timeout: float | None = None,
    resumed: tuple[int, ...] = (), stop: tuple[int, ...] = (), tenant: str = "a",
    max_draft_tokens: int | None = None,
) -> pb.Submit:  # fmt: skip
    sampling = sampling_pb2.SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
    submit = pb.Submit(
        sequence_id=sequence_id, request_id=f"request-{sequence_id}", tenant=tenant,
        prompt_token_ids=prompt, output_token_ids=resumed,
        params=sampling_pb2.SequenceParams(sampling=sampling, seed=seed),
        speculation=sampling_pb2.Speculation(max_draft_tokens=max_draft_tokens),
    )  # fmt: skip
    if timeout is not None:
        duration = duration_pb2.Duration()
        duration.FromNanoseconds(round(timeout * 1e9))
        submit.timeout.CopyFrom(duration)
    return submit


def expected(prompt: list[int], *, seed: int = 0, max_tokens: int = 20) -> list[int]:
    tokens = alone(prompt, seed, num_tokens=len(prompt) + max_tokens, stop=frozenset(), vocab_size=VOCAB_SIZE)
    return tokens[len(prompt) :]


class Stack:
    """A scheduler, its group and a client."""

    def __init__(
        self,
        group: GroupServer,
        group_server: grpc.aio.Server,
        group_port: int,
        scheduler: Scheduler,
        server: RpcServer,
    ) -> None:
        self.group, self.group_server, self.group_port = group, group_server, group_port
        self.scheduler, self.server = scheduler, server
        self.channel = connect(f"127.0.0.1:{server.grpc_port}")
        self.client = Client(self.channel)

    async def until_idle(self) -> None:
        """Waits until there is nothing to do, all blocks are back, and the group has forgotten all."""
        await until(lambda: not self.scheduler.schedule.has_work)
        self.group.may_step.set()
        await until(
            lambda: not (self.scheduler.schedule.blocks.num_free_blocks < self.group.group.opened.num_blocks)
        )
        await until(lambda: not self.group.group.known)
        self.scheduler.schedule.check()


@asynccontextmanager
async def stack(
    *, drafter_port: int | None = None, num_blocks: int = 64, feature_size: int = 0, **settings: Any
) -> AsyncIterator[Stack]:
    group = GroupServer(
        ReferenceGroup(
            vocab_size=VOCAB_SIZE,
            num_blocks=num_blocks,
            max_num_batched_tokens=32,
            max_model_len=200,
            feature_size=feature_size,
        )
    )
    add = lambda server: worker_pb2_grpc.add_WorkerServiceServicer_to_server(group, server)  # noqa: E731
    listen = Listen(grpc_port=0, http_port=0, drain_seconds=0)
    async with serving(add) as (port, group_server), RpcServer(listen, service=SERVICE) as server:
        config = Config(worker=f"127.0.0.1:{port}", **settings)
        async with connect(config.worker) as worker:
            drafter = connect(f"127.0.0.1:{drafter_port}") if drafter_port else None
            scheduler = Scheduler(config, worker=worker, drafter=drafter, set_serving=server.set_serving)
            scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(
                SchedulerServicer(scheduler), server.grpc
            )
            await server.start()
            async with asyncio.TaskGroup() as tasks:
                loop = tasks.create_task(scheduler.run())
                stacked = Stack(group, group_server, port, scheduler, server)
                try:
                    yield stacked
                finally:
                    group.may_step.set()
                    loop.cancel()
                    await stacked.channel.close()
            if drafter is not None:
                await drafter.close()
