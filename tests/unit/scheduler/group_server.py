"""The reference group behind a real gRPC server, which can be cut off, restarted or held up."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc

from outrider.v1 import worker_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from tests.unit.scheduler.reference_group import ReferenceGroup


class StreamCut(Exception):
    """The way to the group breaks, which is not its fault."""


class GroupServer(worker_pb2_grpc.WorkerServiceServicer):
    """Speaks the worker's protocol: sessions, epochs, and stored answers for repeated steps."""

    def __init__(self, group: ReferenceGroup) -> None:
        self.group = group
        self.epoch = 1
        self.session = 0
        self.old_sessions: set[int] = set()
        self.answered: tuple[int, pb.BatchOutput] | None = None
        self.num_repeats = 0
        self.num_steps = 0
        self.step_seconds = 0.0
        self.has_been_asked = asyncio.Event()
        self.may_step = asyncio.Event()
        self.may_step.set()
        self.before_answer: Callable[[pb.Batch], None] = lambda batch: None

    def lose_everything(self) -> None:
        """Begins a new epoch, as a restarted group does."""
        self.epoch += 1
        self.answered = None
        self.group.void()

    async def Step(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.StepRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.StepResponse]:
        """Answers one scheduler."""
        async for request in request_iterator:
            response = pb.StepResponse(session=request.session, epoch=self.epoch)
            if request.HasField("open"):
                await self._open(request.session, context)
                response.opened.CopyFrom(self.group.opened)
            else:
                if (request.session, request.epoch) != (self.session, self.epoch):
                    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "stale")
                self.has_been_asked.set()
                await self.may_step.wait()
                await asyncio.sleep(self.step_seconds)
                response.output.CopyFrom(self._answer(request.batch))
                try:
                    self.before_answer(request.batch)
                except StreamCut as cut:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, str(cut))
            yield response

    async def _open(self, session: int, context: grpc.aio.ServicerContext) -> None:
        if session in self.old_sessions:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "superseded")
        if session != self.session:
            self.old_sessions.add(self.session)
            self.session, self.answered = session, None
            self.group.void()

    def _answer(self, batch: pb.Batch) -> pb.BatchOutput:
        if self.answered is not None and self.answered[0] == batch.step_id:
            self.num_repeats += 1
            return self.answered[1]
        assert self.answered is None or batch.step_id == self.answered[0] + 1
        self.num_steps += 1
        self.answered = (batch.step_id, self.group.step(batch))
        return self.answered[1]
