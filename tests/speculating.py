"""Worker, scheduler and gateway in this process on the tiny model, beside a drafter that the test brings."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from outrider import AsyncClient
from outrider.rpc.channel import connect
from outrider.rpc.server import Listen, RpcServer
from outrider.v1 import drafter_pb2_grpc, scheduler_pb2_grpc
from services.scheduler import learnt
from services.scheduler.config import Config
from services.scheduler.controller import Controller, Offer, Record, StepShape
from services.scheduler.loop import Scheduler
from services.scheduler.service import SERVICE, SchedulerServicer
from tests.groups import config_of, running_worker
from tests.integration.gateway_peers import MODEL, running_gateway

LISTEN = Listen(grpc_port=0, http_port=0, drain_seconds=0)


@dataclass(kw_only=True)
class Speculating:
    """The stack as its client sees it."""

    client: AsyncClient
    scheduler: Scheduler

    async def until_drafter_is(self, *, connected: bool) -> None:
        """Returns when the scheduler knows that it has a drafter, or has none."""
        while self.scheduler.load().drafter_connected != connected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Reckless(Controller):
    """Asks and waits for every draft, and verifies any length of it that chance will have.

    No decision of a controller may change an answer: so these do as well as any, and leave no draft untried.
    """

    _rng = random.Random(4)

    def sources(self, records: Sequence[Record], available: frozenset[str]) -> list[tuple[str, ...]]:
        """Asks all sources."""
        return [tuple(sorted(available))] * len(records)

    def beats(self, record: Record, source: str, drafts: Mapping[str, Sequence[float]]) -> bool:
        """Asks for another draft half of the time."""
        return self._rng.random() < 0.5

    def wait_seconds(self, records: Sequence[Record], shape: StepShape) -> float:
        """Waits as long as is allowed."""
        return self.settings.max_wait_seconds

    def best(self, choices: Sequence[tuple[Record, Sequence[Offer]]]) -> list[int]:
        """Takes any."""
        return [self._rng.randrange(len(offers)) for _, offers in choices]

    def allocate(
        self, shape: StepShape, drafts: Sequence[tuple[Record, Offer, int]], max_num_rows: int
    ) -> list[int]:
        """Verifies a draft whole half of the time, else a part of it or nothing."""
        lengths = []
        for _, offer, most in drafts:
            length = min(len(offer.confidences), most, max_num_rows)
            lengths.append(length if self._rng.random() < 0.5 else self._rng.randint(0, length))
            max_num_rows -= lengths[-1]
        return lengths


@asynccontextmanager
async def serving_drafter(servicer: drafter_pb2_grpc.DrafterServiceServicer) -> AsyncIterator[int]:
    """Serves a drafter and yields its port."""
    async with RpcServer(LISTEN, service="outrider.v1.DrafterService") as server:
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server.grpc)
        await server.start()
        yield server.grpc_port


@asynccontextmanager
async def serving_scheduler(config: Config, worker: grpc.aio.Channel) -> AsyncIterator[tuple[Scheduler, str]]:
    """Serves a scheduler and yields it with its address."""
    async with RpcServer(LISTEN, service=SERVICE) as server, connect(config.drafter) as drafter:
        scheduler = Scheduler(config, worker=worker, drafter=drafter, set_serving=server.set_serving)
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(SchedulerServicer(scheduler), server.grpc)
        await server.start()
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(scheduler.run())
            yield scheduler, f"127.0.0.1:{server.grpc_port}"
            loop.cancel()


@asynccontextmanager
async def speculating(drafter_port: int, *, head_dir: Path | None = None) -> AsyncIterator[Speculating]:
    """Runs worker, scheduler and gateway; the controller is reckless."""
    worker_config = config_of(MODEL, block_size=16, num_blocks=400, head_dir=head_dir)
    config = Config(
        worker="in this process",
        drafter=f"127.0.0.1:{drafter_port}",
        # Long enough for an answer on a busy machine: what comes later is as good, but saves fewer steps.
        max_draft_wait_ms=50,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learnt, "Controller", Reckless)
        async with (
            running_worker(worker_config) as worker,
            serving_scheduler(config, worker) as (scheduler, address),
            running_gateway(address) as gateway,
            AsyncClient(f"127.0.0.1:{gateway.server.grpc_port}") as client,
        ):
            yield Speculating(client=client, scheduler=scheduler)
