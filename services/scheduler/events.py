"""News of sequences for one gateway: what is not sent in time is merged, so nothing waits for a gateway."""

import asyncio

from google.protobuf import duration_pb2

from outrider.rpc.errors import OutriderError
from outrider.v1 import scheduler_pb2 as pb
from services.scheduler.sequence import FinishReason, Sequence

_REASONS = {
    FinishReason.STOP: pb.SEQUENCE_FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.SEQUENCE_FINISH_REASON_LENGTH,
}


class Outbox:
    """The sequences of one gateway that have news. The tokens stay in the sequences until they are taken."""

    def __init__(self) -> None:
        self._changed: dict[int, Sequence] = {}
        self._ready = asyncio.Event()

    @property
    def has_news(self) -> bool:
        """Whether there is anything to send."""
        return bool(self._changed)

    def add(self, sequence: Sequence) -> None:
        """Notes that a sequence has news, to be sent after the step."""
        self._changed[sequence.id] = sequence

    def discard(self, sequence: Sequence) -> None:
        """Drops the news of a sequence that nobody waits for."""
        self._changed.pop(sequence.id, None)

    def flush(self) -> None:
        """Lets the news go."""
        if self._changed:
            self._ready.set()

    def wake(self) -> None:
        """Lets whoever sends the news look at its stream, though there may be none."""
        self._ready.set()

    async def wait(self) -> None:
        """Returns when there is news to send."""
        await self._ready.wait()

    def take(self) -> list[Sequence]:
        """Returns the sequences that have news and begins anew."""
        self._ready.clear()
        changed, self._changed = self._changed, {}
        return list(changed.values())


def take_event(sequence: Sequence) -> pb.SequenceEvent:
    """Writes all that is new of a sequence since its last event, and counts it as sent."""
    first = sequence.num_announced_tokens
    event = pb.SequenceEvent(
        sequence_id=sequence.client_id,
        offset=first - sequence.num_prompt_tokens,
        token_ids=sequence.token_ids[first:],
        logprobs=sequence.unsent_logprobs,
        num_steps=sequence.num_steps,
    )
    if sequence.drafts_by_source:
        event.sources.extend(_source_counts(sequence))
    if sequence.num_cached_tokens is not None and not sequence.is_announced:
        event.started.num_cached_tokens = sequence.num_cached_tokens
        sequence.is_announced = True
    if isinstance(sequence.end, OutriderError):
        event.error.CopyFrom(_error(sequence.end))
    elif sequence.end is not None:
        event.finished.reason = _REASONS[sequence.end]
        event.finished.num_steps = sequence.num_steps
        event.finished.num_preemptions = sequence.num_preemptions
        event.finished.sources.extend(event.sources)
    sequence.num_announced_tokens = sequence.num_tokens
    sequence.unsent_logprobs.clear()
    return event


def _source_counts(sequence: Sequence) -> list[pb.SequenceSourceCounts]:
    return [
        pb.SequenceSourceCounts(
            source=source,
            num_draft_tokens=counts.num_draft_tokens,
            num_accepted_tokens=counts.num_accepted_tokens,
        )
        for source, counts in sequence.drafts_by_source.items()
    ]


def _error(error: OutriderError) -> pb.SequenceError:
    message = pb.SequenceError(code=error.code.value[0], message=error.message, field=error.field)
    if error.retry_delay is not None:
        delay = duration_pb2.Duration()
        delay.FromTimedelta(error.retry_delay)
        message.retry_delay.CopyFrom(delay)
    return message
