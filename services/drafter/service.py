"""The drafter's gRPC service."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import grpc
from prometheus_client import REGISTRY

from outrider.rpc.server import RpcServer
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.drafter.config import Config
from services.drafter.drafting import Drafting
from services.drafter.memory import SuffixMemory
from services.drafter.messages import SOURCES, Answer, News
from services.drafter.metrics import MemoryCollector
from services.drafter.sequences import Sequences
from services.drafter.snapshots import Snapshots
from services.drafter.sources import Sources, load_sources

SERVICE = "outrider.v1.DrafterService"


class DrafterServicer(drafter_pb2_grpc.DrafterServiceServicer):
    """Guesses for many schedulers, each with a stream of its own, out of the same sources."""

    def __init__(self, sources: Sources) -> None:
        self._lanes = sources.lanes
        self._feature_size = sources.feature_size

    async def Propose(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Follows one scheduler's messages; lets go of the sequences of a broken stream."""
        writing = asyncio.Lock()

        async def send(answer: Answer) -> None:
            async with writing:
                await context.write(answer.to_proto())

        await context.write(pb.ProposeResponse(sources=[SOURCES[lane.name] for lane in self._lanes]))
        sequences = Sequences(self._lanes, self._feature_size)
        drafting = Drafting(self._lanes, sequences, send)
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(sequences.run()), tasks.create_task(drafting.run())]
                async for message in request_iterator:
                    await drafting.follow(News.from_proto(message))
                await drafting.finish()
                await sequences.finish()
                for task in beside:
                    task.cancel()
        finally:
            await sequences.forget()


async def serve() -> None:
    """Runs the drafter until it is told to stop."""
    config = Config.from_env()
    memory = None
    if "suffix" in config.sources:
        memory = SuffixMemory(config.memory_bytes, share=config.share_memory)
        REGISTRY.register(MemoryCollector(lambda: memory.bytes_by_tenant))
    sources = load_sources(config, memory)
    async with asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(run()) for run in _memory_work(config, memory)]
        async with RpcServer(config.listen, service=SERVICE) as server:
            drafter_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(sources), server.grpc)
            await server.start()
            server.set_serving(True)
            await server.wait_for_shutdown()
        for task in beside:
            task.cancel()


def _memory_work(
    config: Config, memory: SuffixMemory | None
) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Yields what is done beside for a memory, for ever."""
    if memory is None:
        return
    yield memory.run
    if config.snapshot_dir is not None:
        yield Snapshots(
            memory,
            config.snapshot_dir,
            seconds=config.snapshot_seconds,
            max_age_days=config.snapshot_max_age_days,
        ).run
