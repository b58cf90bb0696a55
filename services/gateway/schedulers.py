"""The schedulers behind the gateway: which of them runs a sequence, and when it moves to another."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog

from outrider.rpc.channel import connect
from outrider.rpc.errors import FailedPrecondition, OutriderError, Unavailable
from services.gateway import metrics
from services.gateway.choice import best
from services.gateway.config import Config
from services.gateway.outlook import Group
from services.gateway.scheduler_client import SchedulerClient
from services.gateway.sequence import Sequence, numerics_changed
from services.gateway.submission import Submission

log = structlog.get_logger()

_SWEEP_SECONDS = 0.25
# How long a scheduler that cannot run a sequence is not asked again.
_REFUSAL_SECONDS = 1.0


class Schedulers:
    """Runs sequences on the schedulers that hold the model, and moves them only between equal numerics ids.

    For `grace_seconds` a lost scheduler may come back: its sequences wait if no other can run them, and the
    gateway counts as serving.
    """

    def __init__(self, config: Config, *, on_serving: Callable[[bool], None]) -> None:
        self._config = config
        self._on_serving = on_serving
        self._channels = [connect(address, config.tls) for address in config.schedulers]
        self.clients = [
            SchedulerClient(
                address,
                channel,
                on_opened=self._opened,
                on_health=self._sweep,
                on_lost=self._lost,
                on_refused=self._refused,
                silence_seconds=config.scheduler_silence_seconds,
                max_num_known_blocks=config.max_num_known_blocks,
            )
            for address, channel in zip(config.schedulers, self._channels, strict=True)
        ]
        # The sequences in flight, and where they run or ran last.
        self._running: dict[Sequence, SchedulerClient | None] = {}
        # Sequences that no scheduler runs, in the order in which they lost theirs.
        self._waiting: dict[Sequence, None] = {}
        # Who had no room for a sequence: until when it is not asked again, and what it said.
        self._refusals: dict[Sequence, dict[SchedulerClient, tuple[float, OutriderError]]] = {}
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
        return any(client.able or self._may_return(client) for client in self._with_model())

    async def facts(self, numerics_id: str = "") -> Group:
        """Returns what the groups that may run a request are; of several that with the longest context.

        Waits for lost ones to come back. Raises FailedPrecondition if all are there and none has the numerics
        id, if one is given; raises Unavailable if there is none.
        """
        deadline = time.monotonic() + self._config.grace_seconds
        while True:
            usable = (client.group for client in self._usable())
            groups = [group for group in usable if group and numerics_id in ("", group.numerics_id)]
            if groups:
                return max(groups, key=lambda group: group.max_model_len)
            if numerics_id and all(client.able and client.has_group for client in self.clients):
                raise FailedPrecondition(f"no group here has numerics id {numerics_id}")
            if time.monotonic() > deadline or not any(map(self._may_return, self._with_model(numerics_id))):
                wanted = repr(self._config.name) + (f" and numerics id {numerics_id}" if numerics_id else "")
                raise Unavailable(
                    f"no scheduler with {wanted} is connected", retry_delay=timedelta(seconds=1)
                )
            await self._changed.wait()

    @contextmanager
    def running(self, submission: Submission) -> Iterator[Sequence]:
        """Runs a sequence and aborts it on leaving, in whatever state it is."""
        sequence = Sequence(submission)
        self._running[sequence] = None
        try:
            self._place(sequence)
            yield sequence
        finally:
            client = self._running.pop(sequence)
            if client is not None:
                client.abort(sequence)
            self._waiting.pop(sequence, None)
            self._refusals.pop(sequence, None)

    def _with_model(self, numerics_id: str = "") -> Iterator[SchedulerClient]:
        for client in self.clients:
            group = client.group
            if group and group.model == self._config.name and numerics_id in ("", group.numerics_id):
                yield client

    def _may_return(self, client: SchedulerClient) -> bool:
        """Returns whether it refuses for a moment, or was able so lately that it may be again."""
        return client.able or (client.able_until or 0) > time.monotonic() - self._config.grace_seconds

    def _usable(self) -> Iterator[SchedulerClient]:
        now = time.monotonic()
        return (client for client in self._with_model() if client.able and client.refuses_until < now)

    def _fitting(self, sequence: Sequence) -> list[SchedulerClient]:
        """Returns who can run a sequence: those that have a group now, if there are any."""
        now, refusals = time.monotonic(), self._refusals.get(sequence, {})
        refusing = {client for client, (until, _) in refusals.items() if until > now}
        fitting = [
            client for client in self._usable() if _fits(sequence, client.group) and client not in refusing
        ]
        return [client for client in fitting if client.has_group] or fitting

    def _place(self, sequence: Sequence) -> None:
        """Submits a sequence where its first token is expected soonest, or lets it wait."""
        fitting = self._fitting(sequence)
        if not fitting:
            self._waiting[sequence] = None
            sequence.stalled_since = sequence.stalled_since or time.monotonic()
            return
        client = fitting[best([client.prospect(sequence) for client in fitting])]
        assert client.group is not None
        if self._running[sequence] not in (None, client):
            metrics.MOVES.inc()
        self._running[sequence] = client
        sequence.numerics_id = client.group.numerics_id
        self._waiting.pop(sequence, None)
        client.submit(sequence)

    def _opened(self, client: SchedulerClient) -> None:
        group = client.group
        assert group is not None
        if group.model != self._config.name:
            log.error("wrong_model", address=client.address, model=group.model, expected=self._config.name)
        for sequence in list(self._waiting):
            if self._running[sequence] is client and not any(self._with_model(sequence.numerics_id)):
                del self._waiting[sequence]
                sequence.fail(numerics_changed(sequence, group.numerics_id))
            elif _fits(sequence, group):
                self._place(sequence)
        self._notify()

    def _lost(self, client: SchedulerClient, lost: list[Sequence]) -> None:
        for sequence in lost:
            # What it waited before it was placed here is no part of this wait.
            sequence.stalled_since = None
            sequence.was_accepted = True
            self._move(sequence)
        self._notify()

    def _move(self, sequence: Sequence) -> None:
        """Runs a sequence elsewhere, or at the same scheduler anew."""
        sequence.stall()
        self._place(sequence)

    def _refused(self, client: SchedulerClient, sequence: Sequence, error: OutriderError) -> None:
        """Asks another; a new request that none has room for ends with the shortest time to try again."""
        until = time.monotonic() + _REFUSAL_SECONDS
        if isinstance(error, Unavailable):
            client.refuses_until = until
            self._move(sequence)
            return
        refusals = self._refusals.setdefault(sequence, {})
        refusals[client] = (until, error)
        sequence.stall()
        if sequence.was_accepted or self._fitting(sequence):
            # Whoever refuses for load is there: such a sequence waits as long as it takes.
            sequence.stalled_since = None
            self._place(sequence)
        else:
            sequence.fail(min((said for _, said in refusals.values()), key=_seconds_to_wait))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, self._config.grace_seconds / 2))
            self._leave()
            self._sweep()

    def _sweep(self) -> None:
        """Runs what waits for a scheduler that had refused, and ends what has had none for too long."""
        now = time.monotonic()
        for sequence in list(self._waiting):
            if now - (sequence.stalled_since or now) > self._config.grace_seconds:
                del self._waiting[sequence]
                sequence.fail(
                    Unavailable("the scheduler was lost: resume later", retry_delay=timedelta(seconds=1))
                )
            else:
                self._place(sequence)
        self._notify()

    def _leave(self) -> None:
        """Moves what waits at a pair whose group is away to pairs that have one."""
        for client in self.clients:
            if client.group_away_seconds < self._config.group_absence_seconds:
                continue
            for sequence in client.sequences:
                if any(other.has_group for other in self._fitting(sequence)):
                    client.abort(sequence)
                    sequence.was_accepted = True
                    self._move(sequence)

    def _notify(self) -> None:
        self._on_serving(self.serving)
        self._changed.set()
        self._changed = asyncio.Event()


def _fits(sequence: Sequence, group: Group | None) -> bool:
    if group is None or sequence.numerics_id not in ("", group.numerics_id):
        return False
    num_tokens = len(sequence.submission.prompt_token_ids) + sequence.submission.max_tokens
    return group.max_model_len >= num_tokens


def _seconds_to_wait(error: OutriderError) -> float:
    return error.retry_delay.total_seconds() if error.retry_delay else float("inf")
