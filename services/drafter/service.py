"""The drafter's gRPC service."""

import asyncio
from collections.abc import AsyncIterator

import grpc
from prometheus_client import REGISTRY

from outrider.rpc.server import RpcServer
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import drafter_pb2_grpc
from services.drafter.config import Config
from services.drafter.memory import SuffixMemory
from services.drafter.messages import News
from services.drafter.metrics import MemoryCollector
from services.drafter.sequences import Sequences

SERVICE = "outrider.v1.DrafterService"


class DrafterServicer(drafter_pb2_grpc.DrafterServiceServicer):
    """Guesses for many schedulers, each with a stream of its own, out of one memory."""

    def __init__(self, memory: SuffixMemory) -> None:
        self._memory = memory

    async def Propose(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProposeRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """Answers each message that wants drafts with one; forgets the sequences of a broken stream."""
        sequences = Sequences(self._memory)
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(sequences.index()), tasks.create_task(sequences.remember())]
                async for message in request_iterator:
                    drafts = await sequences.follow(News.from_proto(message))
                    if drafts:
                        await context.write(pb.ProposeResponse(drafts=[draft.to_proto() for draft in drafts]))
                await sequences.finish()
                for task in beside:
                    task.cancel()
        finally:
            sequences.forget()


async def serve() -> None:
    """Runs the drafter until it is told to stop."""
    config = Config.from_env()
    memory = SuffixMemory(config.memory_bytes)
    REGISTRY.register(MemoryCollector(lambda: memory.bytes_by_tenant))
    async with RpcServer(config.listen, service=SERVICE) as server:
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(memory), server.grpc)
        await server.start()
        server.set_serving(True)
        await server.wait_for_shutdown()
