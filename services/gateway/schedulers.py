"""The schedulers behind the gateway: which of them runs a request, and what happens when one is lost."""

import asyncio
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as TypingSequence
from contextlib import contextmanager
from datetime import timedelta

import structlog

from outrider.rpc.channel import ChannelTls, connect
from outrider.rpc.errors import Unavailable
from services.gateway.scheduler_client import SchedulerClient
from services.gateway.sequence import Sequence, Submission, numerics_changed

log = structlog.get_logger()

_SWEEP_SECONDS = 1.0
# How long a scheduler that cannot run a sequence is not asked again.
_REFUSAL_SECONDS = 1.0


class Schedulers:
    """Runs sequences on the schedulers that hold the model, and moves them only between equal numerics ids.

    For `grace_seconds` a lost scheduler may come back: its sequences wait, and the gateway counts as serving.
    """

    def __init__(
        self,
        addresses: TypingSequence[str],
        *,
        model: str,
        tls: ChannelTls | None = None,
        on_serving: Callable[[bool], None],
        grace_seconds: float,
    ) -> None:
        self._model = model
        self._on_serving = on_serving
        self._grace_seconds = grace_seconds
        self._channels = [connect(address, tls) for address in addresses]
        self.clients = [
            SchedulerClient(
                address,
                channel,
                on_opened=self._opened,
                on_health=self._sweep,
                on_lost=self._lost,
                on_refused=self._refused,
            )
            for address, channel in zip(addresses, self._channels, strict=True)
        ]
        # The sequences in flight, and where they run or ran.
        self._running: dict[Sequence, SchedulerClient] = {}
        # Sequences that no scheduler runs, in the order in which they lost theirs.
        self._waiting: dict[Sequence, None] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Keeps the streams open until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for client in self.clients:
                    tasks.create_task(client.run())
                tasks.create_task(self._sweep_forever())
        finally:
            for channel in self._channels:
                await channel.close()

    @property
    def serving(self) -> bool:
        """Returns whether a scheduler is able, or was so lately that it may be again."""
        since = time.monotonic() - self._grace_seconds
        return any(
            client.able or (client.able_until or 0) > since
            for client in self.clients
            if self._has_model(client)
        )

    async def choose(self, numerics_id: str = "") -> SchedulerClient:
        """Returns the scheduler with the least to do; its group has the numerics id, if one is given.

        Waits for lost ones to come back; raises Unavailable if there is none.
        """
        deadline = time.monotonic() + self._grace_seconds
        while not (usable := list(self._usable(numerics_id))):
            if not self.serving or time.monotonic() > deadline:
                wanted = repr(self._model) + (f" and numerics id {numerics_id}" if numerics_id else "")
                raise Unavailable(
                    f"no scheduler with {wanted} is connected", retry_delay=timedelta(seconds=1)
                )
            await self._changed.wait()
        return min(usable, key=_num_requests)

    def _usable(self, numerics_id: str) -> Iterator[SchedulerClient]:
        for client in self.clients:
            group = client.group
            if self._is_usable(client) and group and numerics_id in ("", group.numerics_id):
                yield client

    @contextmanager
    def running(
        self, submission: Submission, client: SchedulerClient, *, numerics_id: str
    ) -> Iterator[Sequence]:
        """Runs a sequence and aborts it on leaving, in whatever state it is."""
        sequence = Sequence(submission, numerics_id=numerics_id)
        self._running[sequence] = client
        try:
            self._place(sequence)
            yield sequence
        finally:
            self._running.pop(sequence).abort(sequence)
            self._waiting.pop(sequence, None)

    def _has_model(self, client: SchedulerClient) -> bool:
        return client.group is not None and client.group.model == self._model

    def _is_usable(self, client: SchedulerClient) -> bool:
        return client.able and self._has_model(client) and client.refuses_until < time.monotonic()

    def _fits(self, sequence: Sequence, client: SchedulerClient) -> bool:
        if not self._is_usable(client):
            return False
        group, submission = client.group, sequence.submission
        assert group is not None
        num_tokens = len(submission.prompt_token_ids) + submission.max_tokens
        return group.numerics_id == sequence.numerics_id and group.max_model_len >= num_tokens

    def _place(self, sequence: Sequence) -> None:
        """Submits a sequence where it was meant to run, else elsewhere, else lets it wait."""
        own = self._running[sequence]
        fitting = [client for client in self.clients if self._fits(sequence, client)]
        if not fitting:
            self._waiting[sequence] = None
            sequence.stalled_since = sequence.stalled_since or time.monotonic()
            return
        client = own if own in fitting else min(fitting, key=_num_requests)
        self._running[sequence] = client
        self._waiting.pop(sequence, None)
        client.submit(sequence)

    def _opened(self, client: SchedulerClient) -> None:
        group = client.group
        assert group is not None
        if group.model != self._model:
            log.error("wrong_model", address=client.address, model=group.model, expected=self._model)
        for sequence in list(self._waiting):
            if self._fits(sequence, client):
                self._place(sequence)
            elif self._running[sequence] is client and group.numerics_id != sequence.numerics_id:
                del self._waiting[sequence]
                sequence.fail(numerics_changed(sequence, group.numerics_id))
        self._notify()

    def _lost(self, client: SchedulerClient, lost: list[Sequence]) -> None:
        for sequence in lost:
            sequence.stall()
            self._place(sequence)
        self._notify()

    def _refused(self, client: SchedulerClient, sequence: Sequence) -> None:
        client.refuses_until = time.monotonic() + _REFUSAL_SECONDS
        sequence.stall()
        self._place(sequence)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._grace_seconds / 2))
            self._sweep()

    def _sweep(self) -> None:
        """Runs what waits for a scheduler that had refused, and ends what has had none for too long."""
        now = time.monotonic()
        for sequence in list(self._waiting):
            if now - (sequence.stalled_since or now) > self._grace_seconds:
                del self._waiting[sequence]
                sequence.fail(
                    Unavailable("the scheduler was lost: resume later", retry_delay=timedelta(seconds=1))
                )
            else:
                self._place(sequence)
        self._notify()

    def _notify(self) -> None:
        self._on_serving(self.serving)
        self._changed.set()
        self._changed = asyncio.Event()


def _num_requests(client: SchedulerClient) -> int:
    """Returns how much a scheduler has to do: by its last report, or by what was submitted since."""
    return max(client.load.num_requests_running + client.load.num_requests_waiting, client.num_sequences)
