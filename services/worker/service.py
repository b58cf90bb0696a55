"""The worker's gRPC service."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

import grpc
import structlog

from outrider.rpc.errors import FailedPrecondition, InvalidArgument, Unavailable
from outrider.rpc.server import RpcServer
from outrider.v1 import worker_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from services.worker.config import Config
from services.worker.group.meeting import Join, Seat
from services.worker.load import LoadingStopped, load
from services.worker.lost import GroupLost, Lost
from services.worker.memory import keep_freed_memory
from services.worker.messages import Batch
from services.worker.session import Sessions

SERVICE = "outrider.v1.WorkerService"
# What it takes at most to send the last answers.
ANSWER_SECONDS = 0.1

log = structlog.get_logger()


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Steps the group for whichever scheduler opened the latest session."""

    def __init__(self) -> None:
        self.sessions: Sessions | None = None

    @property
    def lost(self) -> Lost | None:
        """Why no step can be run any more."""
        return self.sessions.lost if self.sessions else None

    def lose(self, error: Lost) -> None:
        """Answers all who wait for a step with the error."""
        if self.sessions is not None:
            self.sessions.lose(error)
        else:
            log.critical("worker_lost", reason=error.message)

    async def Step(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        """Answers each message with one. A stream that breaks leaves its session as it is."""
        sessions = self.sessions
        if sessions is None:
            raise Unavailable("the model is loading")
        session: int | None = None
        async for request in request_iterator:
            response = pb.StepResponse(session=request.session, epoch=sessions.epoch)
            match request.WhichOneof("request"):
                case "open":
                    session = request.session
                    await sessions.open(session)
                    response.opened.CopyFrom(sessions.facts.to_proto())
                case "batch":
                    if session != request.session:
                        raise FailedPrecondition(
                            "the stream opened another session, or none", field="session"
                        )
                    batch = Batch.from_proto(request.batch)
                    output = await sessions.step(request.session, request.epoch, batch)
                    response.output.CopyFrom(output.to_proto())
                case _:
                    raise InvalidArgument("must be open or batch", field="request")
            yield response


async def serve(config: Config | None = None, seat: Seat | None = None) -> None:
    """Runs the worker until it is told to stop. With a seat it is rank 0 of a group.

    Raises what was lost when no step can be run any more.
    """
    config = config or Config.from_env()
    keep_freed_memory()
    servicer = WorkerServicer()
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="step")
    async with RpcServer(config.listen, service=SERVICE) as server, asyncio.TaskGroup() as tasks:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, server.grpc)
        await server.start()
        stopped = asyncio.Event()
        join = _join_of(config, seat, servicer) if seat is not None else None
        tasks.create_task(load_and_serve(config, server, servicer, thread, stopped, join))
        await server.wait_for_shutdown()
        stopped.set()
        if join is not None:
            join.stop()
        if servicer.lost is not None:
            await asyncio.sleep(ANSWER_SECONDS)
            raise servicer.lost
    if servicer.sessions is not None:
        await asyncio.get_running_loop().run_in_executor(thread, servicer.sessions.end)


async def load_and_serve(
    config: Config,
    server: RpcServer,
    servicer: WorkerServicer,
    thread: Executor,
    stopped: asyncio.Event,
    join: Join | None = None,
) -> None:
    """Loads the model in the step thread, then lets the service answer; gives up once `stopped` is set."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(LoadingStopped):
        stepper = await loop.run_in_executor(thread, load, config, stopped.is_set, join)
        servicer.sessions = Sessions(
            stepper,
            thread,
            step_seconds=config.step_seconds,
            set_alive=server.set_alive,
            on_lost=server.begin_shutdown,
        )
        server.set_serving(True)


def _join_of(config: Config, seat: Seat, servicer: WorkerServicer) -> Join:
    on_lost = partial(_end, asyncio.get_running_loop(), servicer)
    return Join(seat=seat, peer_seconds=config.group.peer_seconds, on_lost=on_lost)


def _end(loop: asyncio.AbstractEventLoop, servicer: WorkerServicer, reason: str) -> None:
    """Ends the process as soon as those who wait for a step have been told, whatever the step waits for."""
    try:
        loop.call_soon_threadsafe(servicer.lose, GroupLost(f"the group is lost: {reason}"))
        time.sleep(ANSWER_SECONDS)
    finally:
        os._exit(1)
