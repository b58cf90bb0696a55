"""The one stream to the group of workers: one step in flight, and a new stream after each break."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable

import grpc
import structlog

from outrider.rpc.errors import Internal
from outrider.v1 import worker_pb2 as pb
from outrider.v1 import worker_pb2_grpc
from services.scheduler.batch import Batch, BatchOutput, GroupFacts
from services.scheduler.presence import GroupPresence

# The channel connects by itself: these are the pauses between questions to a group that is not ready.
FIRST_RETRY_SECONDS = 0.05
MAX_RETRY_SECONDS = 0.2
# A step in flight may hold up the answer to an open.
OPEN_SECONDS = 60.0
# Codes by which the group, rather than the way to it, answers that a step failed; a repeat says the same.
_FAILURES = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)

log = structlog.get_logger()
Call = grpc.aio.StreamStreamCall[pb.StepRequest, pb.StepResponse]


class GroupChanged(Exception):
    """Another session or epoch has begun: blocks and sequences are gone; `facts` say what it is now."""

    def __init__(self, facts: GroupFacts) -> None:
        super().__init__("the group has a new session or epoch")
        self.facts = facts


class Group:
    """Steps the group; a broken stream is opened again, for ever, and the step in flight repeated.

    A stream on which a step is unanswered for `step_patience_seconds` counts as broken, and the group as
    absent until it answers.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        presence: GroupPresence,
        *,
        step_patience_seconds: float,
        on_lost: Callable[[], None],
    ) -> None:
        self._stub = worker_pb2_grpc.WorkerServiceStub(channel)
        self._presence = presence
        self._step_patience_seconds = step_patience_seconds
        self._on_lost = on_lost
        self._session = secrets.randbits(64)
        self._epoch = 0
        self._opened: tuple[int, int] | None = None
        self._step_id = 0
        self._call: Call | None = None
        self._retry_seconds = 0.0
        self._owes_answer = False
        # Groups and incarnations of a group so far.
        self.num_groups = 0
        # Whether the last step was asked for more than once: its time says nothing of the group's speed.
        self.is_repeated = False
        self.is_lost = asyncio.Event()
        self.is_lost.set()

    async def open(self) -> GroupFacts:
        """Opens the session or takes it up again, trying for ever; raises GroupChanged if it is another."""
        while True:
            await self._pause()
            try:
                response = await self._open_once()
            except (grpc.RpcError, TimeoutError, asyncio.InvalidStateError) as error:
                self._note_failure(error)
                continue
            facts = GroupFacts.from_proto(response.opened)
            previous, self._epoch = self._opened, response.epoch
            self._opened = (self._session, self._epoch)
            log.info("group_found", model=facts.model, numerics_id=facts.numerics_id, epoch=response.epoch)
            if previous == self._opened:
                if not self._owes_answer:
                    self._presence.found()
                return facts
            self.num_groups += 1
            self._step_id = 0
            self._note_answer()
            if previous is not None:
                raise GroupChanged(facts)
            return facts

    async def step(self, batch: Batch, *, on_sent: Callable[[], None]) -> BatchOutput:
        """Runs one step. Raises GroupChanged, or Internal if the group failed on this batch.

        `on_sent` is called when the group has the step and computes; again if the step has to be repeated.
        After a failure nobody knows what the group made of the batch, so a new session follows.
        """
        self._step_id += 1
        self.is_repeated = False
        request = pb.StepRequest(
            session=self._session, epoch=self._epoch, batch=batch.to_proto(self._step_id)
        )
        while True:
            try:
                async with asyncio.timeout(self._step_patience_seconds):
                    return await self._exchange(request, on_sent)
            except (grpc.RpcError, TimeoutError, asyncio.InvalidStateError) as error:
                self._owes_answer |= isinstance(error, TimeoutError)
                self._note_failure(error)
                if isinstance(error, grpc.aio.AioRpcError) and error.code() in _FAILURES:
                    self._session = secrets.randbits(64)
                    raise Internal("the group could not run the step") from error
            self.is_repeated = True
            await self.open()

    def close(self) -> None:
        """Ends the stream."""
        if (call := self._call) is not None:
            self._call = None
            call.cancel()

    async def _open_once(self) -> pb.StepResponse:
        if self._call is not None:
            self._call.cancel()
        call = self._call = self._stub.Step(wait_for_ready=True)
        async with asyncio.timeout(OPEN_SECONDS):
            response = await _ask(call, pb.StepRequest(session=self._session, open=pb.OpenSession()))
        if not isinstance(response, pb.StepResponse) or not response.HasField("opened"):
            raise asyncio.InvalidStateError("the stream ended before the session was open")
        self.is_lost.clear()
        # Also while no step is in flight the break is to be noticed.
        call.add_done_callback(lambda _: self._lose(call))
        return response

    async def _exchange(self, request: pb.StepRequest, on_sent: Callable[[], None]) -> BatchOutput:
        call = self._call
        if call is None or call.done():
            raise asyncio.InvalidStateError("the stream is broken")
        response = await _ask(call, request, on_sent)
        if not isinstance(response, pb.StepResponse) or response.output.step_id != request.batch.step_id:
            raise asyncio.InvalidStateError("the stream did not answer the step")
        self._retry_seconds = 0.0
        if self._owes_answer:
            self._note_answer()
        return BatchOutput.from_proto(response.output)

    def _note_answer(self) -> None:
        self._owes_answer = False
        self._presence.found()

    async def _pause(self) -> None:
        """Waits before the next attempt, longer each time until a step succeeds; at first not at all."""
        if self._retry_seconds:
            await asyncio.sleep(self._retry_seconds * random.uniform(0.5, 1.0))
        self._retry_seconds = min(max(FIRST_RETRY_SECONDS, 2 * self._retry_seconds), MAX_RETRY_SECONDS)

    def _note_failure(self, error: Exception) -> None:
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "no answer"
        # One line when a group is lost; the attempts to find it again are no news.
        report = log.debug if self.is_lost.is_set() else log.warning
        report("group_stream_broken", code=code.name if code else "", reason=(reason or "")[:200])
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            # Another scheduler has taken the group over, and the group has forgotten this session.
            self._session = secrets.randbits(64)
        if self._call is not None:
            self._lose(self._call)

    def _lose(self, call: Call) -> None:
        if call is self._call and not self.is_lost.is_set():
            self.is_lost.set()
            self._presence.lost()
            self._on_lost()


async def _ask(call: Call, request: pb.StepRequest, on_sent: Callable[[], None] = lambda: None) -> object:
    """Sends a request and returns the answer, or the end of the stream."""
    # A failed write says nothing of the reason; the read after it does.
    with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
        await call.write(request)
    on_sent()
    return await call.read()
