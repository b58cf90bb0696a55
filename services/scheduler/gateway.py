"""One gateway's stream: its sequences by the names it gives them, their deadlines, and their news."""

import asyncio
from collections.abc import Callable

from outrider.rpc.errors import DeadlineExceeded, InvalidArgument, OutriderError
from services.scheduler.events import Outbox
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import FinishReason, Sequence, SequenceState


class Gateway:
    """The sequences of one stream. Closing it aborts those that have not ended."""

    def __init__(self, schedule: Schedule, wake: Callable[[], None]) -> None:
        self._schedule = schedule
        self._wake = wake
        self._sequences: dict[int, Sequence] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self.outbox = Outbox()
        self.is_closing = False
        self.error: OutriderError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the gateway asks for nothing more and has heard of every end, or is sent away."""
        if self.outbox.has_news:
            return False
        return self.error is not None or (self.is_closing and not self._sequences)

    def add(self, sequence: Sequence, timeout: float | None) -> None:
        """Takes in an admitted sequence, which will end when its time is up."""
        self._sequences[sequence.client_id] = sequence
        if timeout is not None:
            loop = asyncio.get_running_loop()
            self._timers[sequence.client_id] = loop.call_later(timeout, self._expire, sequence)
        self._schedule.add(sequence)
        self._wake()

    def refuse(self, sequence: Sequence, end: FinishReason | OutriderError) -> None:
        """Answers a sequence that does not run: it is at fault, or had all its tokens already."""
        sequence.state, sequence.end = SequenceState.ENDED, end
        sequence.trace.finish(end, sequence.num_tokens - sequence.num_prompt_tokens)
        self.outbox.add(sequence)
        self.outbox.flush()

    def check_unused(self, client_id: int) -> None:
        """Raises InvalidArgument for a name in use, and ends its sequence: nobody could tell them apart."""
        if (sequence := self._sequences.get(client_id)) is not None:
            self._end(sequence, FinishReason.ABORTED)
            raise InvalidArgument(f"{client_id} is the name of a running sequence", field="sequence_id")

    def abort(self, client_id: int) -> None:
        """Ends a sequence of which nothing more is to be sent; an unknown one has just ended."""
        if (sequence := self._sequences.get(client_id)) is not None:
            self._end(sequence, FinishReason.ABORTED)

    def take(self) -> list[Sequence]:
        """Returns the sequences that have news, and forgets those that have ended."""
        changed = self.outbox.take()
        for sequence in changed:
            if sequence.state is SequenceState.ENDED:
                self._forget(sequence)
        return changed

    def close(self) -> None:
        """Ends all sequences: nobody listens any more."""
        for sequence in list(self._sequences.values()):
            self._end(sequence, FinishReason.ABORTED)

    def dismiss(self, error: OutriderError) -> None:
        """Ends the stream with an error once what there is has been sent."""
        self.error = error
        self.outbox.wake()

    def _expire(self, sequence: Sequence) -> None:
        if sequence.state is not SequenceState.ENDED:
            self._schedule.end(sequence, DeadlineExceeded("the deadline has passed"))
            self.outbox.flush()
            self._wake()

    def _end(self, sequence: Sequence, end: FinishReason) -> None:
        if sequence.state is not SequenceState.ENDED:
            self._schedule.end(sequence, end)
        self.outbox.discard(sequence)
        self._forget(sequence)
        self._wake()

    def _forget(self, sequence: Sequence) -> None:
        if self._sequences.get(sequence.client_id) is sequence:
            del self._sequences[sequence.client_id]
            if (timer := self._timers.pop(sequence.client_id, None)) is not None:
                timer.cancel()
