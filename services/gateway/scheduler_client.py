"""One scheduler: a stream that is always read, opened again whenever it breaks."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.v1 import load_pb2, scheduler_pb2_grpc
from outrider.v1 import scheduler_pb2 as pb
from services.gateway import metrics
from services.gateway.sequence import Sequence

log = structlog.get_logger()

_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 1.0
# Far below what a scheduler takes: after a loss all that waits is sent at once.
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_SERVICE = "outrider.v1.SchedulerService"
_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE.value[0]


@dataclass(frozen=True, kw_only=True)
class Group:
    """What the group behind a scheduler is."""

    model: str
    numerics_id: str
    max_model_len: int
    vocab_size: int

    @classmethod
    def from_proto(cls, message: pb.Opened) -> Self:
        """Reads a message."""
        return cls(
            model=message.model,
            numerics_id=message.numerics_id,
            max_model_len=message.max_model_len,
            vocab_size=message.vocab_size,
        )


class SchedulerClient:
    """Carries all sequences that this gateway runs on one scheduler.

    `on_opened` is called when the stream is open, `on_health` when the scheduler's health changes, `on_lost`
    with the sequences of a stream that broke, and `on_refused` with one that the scheduler cannot run now.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        *,
        on_opened: Callable[["SchedulerClient"], None],
        on_health: Callable[[], None],
        on_lost: Callable[["SchedulerClient", list[Sequence]], None],
        on_refused: Callable[["SchedulerClient", Sequence], None],
    ) -> None:
        self.address = address
        self.group: Group | None = None
        self.connected = False
        # Not so while it shuts down, or has had no group for longer than its patience: its stream stays open.
        self.healthy = True
        # On the clock of time.monotonic; None before it first was.
        self.able_until: float | None = None
        # Until when it is not asked, because it has just refused.
        self.refuses_until = 0.0
        self.load = load_pb2.Load()
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)
        self._on_opened = on_opened
        self._on_health = on_health
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._sequences: dict[int, Sequence] = {}
        self._ids: dict[Sequence, int] = {}
        self._last_id = 0
        # The next messages, the last of them still growing. Bounded by the requests in flight.
        self._outbox = [pb.ServeRequest()]
        self._num_outbox_bytes = 0
        self._has_mail = asyncio.Event()

    @property
    def num_sequences(self) -> int:
        """Returns how many sequences this gateway runs on it."""
        return len(self._sequences)

    @property
    def able(self) -> bool:
        """Returns whether it can run sequences."""
        return self.connected and self.healthy

    def submit(self, sequence: Sequence) -> None:
        """Runs a sequence from the tokens it has."""
        assert self.connected
        self._last_id += 1
        self._sequences[self._last_id] = sequence
        self._ids[sequence] = self._last_id
        submit = sequence.submission.to_proto(self._last_id, sequence.token_ids)
        if self._num_outbox_bytes + submit.ByteSize() > _MAX_MESSAGE_BYTES:
            self._outbox.append(pb.ServeRequest())
            self._num_outbox_bytes = 0
        self._outbox[-1].submits.append(submit)
        self._num_outbox_bytes += submit.ByteSize()
        self._has_mail.set()

    def abort(self, sequence: Sequence) -> None:
        """Ends a sequence; nothing to do if it has ended or was lost."""
        sequence_id = self._ids.pop(sequence, None)
        if sequence_id is not None:
            del self._sequences[sequence_id]
            self._outbox[-1].aborts.add(sequence_id=sequence_id)
            self._has_mail.set()

    async def run(self) -> None:
        """Keeps a stream open until cancelled."""
        delay = _FIRST_RETRY_SECONDS
        while True:
            reason = await self._serve()
            delay = _FIRST_RETRY_SECONDS if self.connected else min(2 * delay, _LAST_RETRY_SECONDS)
            if self.connected:
                self._lose(reason)
            await asyncio.sleep(delay)

    async def _serve(self) -> str:
        """Reads one stream until it breaks; returns why it did."""
        call, reason = self._stub.Serve(), "the scheduler ended the stream"
        self.healthy = True
        try:
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(self._write(call)), tasks.create_task(self._watch())]
                async for response in call:
                    self._receive(response)
                for task in others:
                    task.cancel()
        except* (grpc.aio.AioRpcError, asyncio.InvalidStateError) as errors:
            reason = _reason(errors.exceptions[0])
        finally:
            call.cancel()
        return reason

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            for message in self._take_outbox():
                await call.write(message)

    def _take_outbox(self) -> list[pb.ServeRequest]:
        messages, self._outbox, self._num_outbox_bytes = self._outbox, [pb.ServeRequest()], 0
        return messages

    async def _watch(self) -> None:
        request = health_pb2.HealthCheckRequest(service=_SERVICE)
        async for response in self._health.Watch(request):
            if self.able:
                self.able_until = time.monotonic()
            self.healthy = response.status == health_pb2.HealthCheckResponse.SERVING
            self._on_health()

    def _receive(self, response: pb.ServeResponse) -> None:
        if response.HasField("opened"):
            self._open(Group.from_proto(response.opened))
        if response.HasField("load"):
            self.load = response.load
        for event in response.events:
            if (sequence := self._sequences.get(event.sequence_id)) is not None:
                self._receive_event(sequence, event)

    def _receive_event(self, sequence: Sequence, event: pb.SequenceEvent) -> None:
        if event.WhichOneof("end") is not None:
            del self._sequences[event.sequence_id], self._ids[sequence]
        if event.HasField("error") and event.error.code == _UNAVAILABLE:
            self._on_refused(self, sequence)
            return
        num_tokens = len(sequence.token_ids)
        seconds = sequence.receive(event)
        if seconds is not None:
            metrics.INTER_TOKEN_LATENCY.observe(seconds / (len(sequence.token_ids) - num_tokens))

    def _open(self, group: Group) -> None:
        log.info(
            "scheduler_connected", address=self.address, model=group.model, numerics_id=group.numerics_id
        )
        self.group, self.connected = group, True
        self.refuses_until = 0.0
        self._on_opened(self)

    def _lose(self, reason: str) -> None:
        lost = list(self._sequences.values())
        log.warning("scheduler_lost", address=self.address, reason=reason, num_sequences=len(lost))
        if self.able:
            self.able_until = time.monotonic()
        self.connected = False
        self._sequences.clear()
        self._ids.clear()
        self._take_outbox()
        self._on_lost(self, lost)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
