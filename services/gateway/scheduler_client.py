"""One scheduler: a stream that is always read, opened again whenever it breaks or falls silent."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.rpc.errors import DeadlineExceeded, OutriderError, ResourceExhausted, Unavailable
from outrider.v1 import scheduler_pb2 as pb
from outrider.v1 import scheduler_pb2_grpc
from services.gateway import metrics
from services.gateway.choice import Prospect
from services.gateway.outlook import Group, Outlook, Run
from services.gateway.sequence import Sequence, error_of

log = structlog.get_logger()

_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 0.25
# Silence is counted in so many waits, so that a stop of this process itself counts for one.
_NUM_WAITS = 8
# Far below what a scheduler takes: after a loss all that waits is sent at once.
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_SERVICE = "outrider.v1.SchedulerService"


class SchedulerClient:
    """Carries all sequences that this gateway runs on one scheduler.

    `on_opened` is called when the stream is open, `on_health` when the scheduler's health changes, `on_lost`
    with the sequences of a stream that broke, and `on_refused` with one that ended before its end.
    """

    def __init__(
        self,
        address: str,
        channel: grpc.aio.Channel,
        *,
        on_opened: Callable[["SchedulerClient"], None],
        on_health: Callable[[], None],
        on_lost: Callable[["SchedulerClient", list[Sequence]], None],
        on_refused: Callable[["SchedulerClient", Sequence, OutriderError], None],
        silence_seconds: float,
        max_num_known_blocks: int,
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
        self.outlook = Outlook(max_num_known_blocks=max_num_known_blocks)
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)
        self._on_opened = on_opened
        self._on_health = on_health
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._silence_seconds = silence_seconds
        self._has_heard = False
        self._runs: dict[int, Run] = {}
        self._ids: dict[Sequence, int] = {}
        self._last_id = 0
        # The next messages, the last of them still growing. Bounded by the requests in flight.
        self._outbox = [pb.ServeRequest()]
        self._num_outbox_bytes = 0
        self._has_mail = asyncio.Event()

    @property
    def sequences(self) -> list[Sequence]:
        """Returns the sequences that this gateway runs on it."""
        return [run.sequence for run in self._runs.values()]

    @property
    def num_sequences(self) -> int:
        """Returns how many these are."""
        return len(self._runs)

    @property
    def able(self) -> bool:
        """Returns whether it can run sequences."""
        return self.connected and self.healthy

    @property
    def has_group(self) -> bool:
        """Returns whether there is a group behind it now."""
        return self.outlook.group_away_since is None

    @property
    def group_away_seconds(self) -> float:
        """Returns for how long its group has been away."""
        since = self.outlook.group_away_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def takes_requests(self) -> bool:
        """Returns whether it would begin with a new sequence at once."""
        return self.able and self.has_group and self.refuses_until < time.monotonic()

    def prospect(self, sequence: Sequence) -> Prospect:
        """Returns what a sequence would meet here."""
        return self.outlook.prospect(sequence, num_sequences=self.num_sequences)

    def submit(self, sequence: Sequence) -> None:
        """Runs a sequence from the tokens it has."""
        assert self.connected
        self._last_id += 1
        self._runs[self._last_id] = self.outlook.send(sequence)
        self._ids[sequence] = self._last_id
        submit = sequence.submission.to_proto(
            self._last_id, sequence.token_ids, was_accepted=sequence.was_accepted
        )
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
            self.outlook.end(self._runs.pop(sequence_id))
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
                others = [
                    tasks.create_task(self._write(call)),
                    tasks.create_task(self._watch()),
                    tasks.create_task(self._listen()),
                ]
                async for response in call:
                    self._has_heard = True
                    self._receive(response)
                for task in others:
                    task.cancel()
        except* (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as errors:
            reason = _reason(errors.exceptions[0])
        finally:
            call.cancel()
        return reason

    async def _listen(self) -> None:
        """Raises TimeoutError when an open stream falls silent: a stopped process sends no reset."""
        num_silent = 0
        while num_silent < _NUM_WAITS:
            self._has_heard = False
            await asyncio.sleep(self._silence_seconds / _NUM_WAITS)
            num_silent = 0 if self._has_heard or not self.connected else num_silent + 1
        raise TimeoutError(f"the scheduler sent nothing for {self._silence_seconds:g} s")

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
        if response.HasField("load"):
            self.outlook.report(response.load)
        if response.HasField("opened"):
            self._open(Group.from_proto(response.opened))
        for event in response.events:
            if (run := self._runs.get(event.sequence_id)) is not None:
                self._receive_event(run, event)

    def _receive_event(self, run: Run, event: pb.SequenceEvent) -> None:
        sequence, error = run.sequence, error_of(event.error) if event.HasField("error") else None
        if event.HasField("started"):
            self.outlook.start(run, event.started.num_cached_tokens)
        refusal = error if error is not None and _is_refusal(sequence, error) else None
        if refusal is None:
            self._receive_tokens(run, event)
        if event.WhichOneof("end") is not None:
            del self._runs[event.sequence_id], self._ids[sequence]
            self.outlook.end(run)
        if refusal is not None:
            self._on_refused(self, sequence, refusal)

    def _receive_tokens(self, run: Run, event: pb.SequenceEvent) -> None:
        sequence, num_before = run.sequence, len(run.sequence.token_ids)
        seconds = sequence.receive(event)
        num_new = len(sequence.token_ids) - num_before
        if seconds is not None:
            metrics.INTER_TOKEN_LATENCY.observe(seconds / num_new)
        if num_new and num_before == run.num_tokens:
            self.outlook.compute(run)

    def _open(self, group: Group) -> None:
        log.info(
            "scheduler_connected", address=self.address, model=group.model, numerics_id=group.numerics_id
        )
        self.group, self.connected = group, True
        self.outlook.begin(group.block_size)
        self.refuses_until = 0.0
        self._on_opened(self)

    def _lose(self, reason: str) -> None:
        lost = self.sequences
        log.warning("scheduler_lost", address=self.address, reason=reason, num_sequences=len(lost))
        if self.able:
            self.able_until = time.monotonic()
        self.connected = False
        self._runs.clear()
        self._ids.clear()
        self._take_outbox()
        self._on_lost(self, lost)


def _is_refusal(sequence: Sequence, error: OutriderError) -> bool:
    """Returns whether another may still run it: this one has no group, no room, or no time."""
    if isinstance(error, DeadlineExceeded):
        deadline = sequence.submission.deadline
        return not sequence.started and deadline is not None and time.monotonic() < deadline
    return isinstance(error, Unavailable | ResourceExhausted)


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
