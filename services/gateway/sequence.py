"""One request's tokens in flight, as the schedulers' events bring them."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from outrider.rpc.errors import Internal, OutriderError, Unavailable, from_code
from outrider.v1 import sampling_pb2
from outrider.v1 import scheduler_pb2 as pb
from services.gateway.prefixes import block_hashes
from services.gateway.submission import Submission


@dataclass(slots=True)
class Arrivals:
    """When tokens came, on the clock of time.monotonic; 0 before the first."""

    first: float = 0.0
    last: float = 0.0
    num_first_tokens: int = 0
    num_tokens: int = 0

    def add(self, num_tokens: int) -> float | None:
        """Notes an event with tokens; returns the time since the one before, if there was one."""
        now, before = time.monotonic(), self.last
        if not self.num_tokens:
            self.first, self.num_first_tokens = now, num_tokens
        self.last = now
        self.num_tokens += num_tokens
        return now - before if before else None

    @property
    def tokens_per_second(self) -> float:
        """Returns the tokens after the first event by the time from the first to the last; 0 without."""
        seconds = self.last - self.first
        return (self.num_tokens - self.num_first_tokens) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class End:
    """How a sequence ended as it should: at a stop token or a complete grammar, or at a limit."""

    reached_limit: bool
    num_preemptions: int = 0


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Steps taken part in, and drafts verified and right, by source."""

    num_steps: int = 0
    drafted: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)

    @classmethod
    def from_proto(cls, num_steps: int, sources: Iterable[pb.SequenceSourceCounts]) -> Self:
        """Reads what an event says so far."""
        sources = list(sources)
        return cls(
            num_steps=num_steps,
            drafted=Counter({source.source: source.num_draft_tokens for source in sources}),
            accepted=Counter({source.source: source.num_accepted_tokens for source in sources}),
        )

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            num_steps=self.num_steps + other.num_steps,
            drafted=self.drafted + other.drafted,
            accepted=self.accepted + other.accepted,
        )


@dataclass(slots=True, eq=False)
class Sequence:
    """The output of a submission, resumed tokens first. A scheduler's stream writes it, its request reads it.

    The buffer is bounded by the submission's `max_tokens`; the stream never waits for the reader.
    """

    submission: Submission
    # Of the group that runs it or ran it last; from its start on only groups with this one run it.
    numerics_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    # One entry per token after the resumed ones, if asked for.
    logprobs: list[sampling_pb2.TokenLogprobs] = field(default_factory=list)
    started: bool = False
    # Whether a scheduler has taken it in: then it is not refused for load any more.
    was_accepted: bool = False
    num_cached_tokens: int = 0
    # Of the stream it runs on; those of streams that broke are in `earlier`.
    counts: Counts = field(default_factory=Counts)
    earlier: Counts = field(default_factory=Counts)
    arrivals: Arrivals = field(default_factory=Arrivals)
    end: End | None = None
    error: OutriderError | None = None
    # Since when no scheduler has sent anything of it, on the clock of time.monotonic; None: one runs it.
    stalled_since: float | None = None
    _hashes: tuple[bytes, ...] = ()
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.numerics_id = self.submission.numerics_id
        self.token_ids.extend(self.submission.resumed_token_ids)
        self._hashes = self.submission.block_hashes

    @property
    def num_tokens(self) -> int:
        """Returns the tokens of prompt and output."""
        return len(self.submission.prompt_token_ids) + len(self.token_ids)

    @property
    def ended(self) -> bool:
        """Returns whether nothing more will come."""
        return self.end is not None or self.error is not None

    async def wait(self) -> None:
        """Returns when something has changed since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def block_hashes(self, block_size: int) -> tuple[bytes, ...]:
        """Returns the hashes of its full blocks so far."""
        submission = self.submission
        if block_size == submission.block_size and len(self._hashes) == self.num_tokens // block_size:
            return self._hashes
        text, tenant = (*submission.prompt_token_ids, *self.token_ids), submission.tenant.name
        if block_size != submission.block_size:
            return block_hashes(tenant, text, block_size)
        self._hashes = block_hashes(tenant, text, block_size, known=self._hashes)
        return self._hashes

    def stall(self) -> None:
        """Notes that no scheduler runs it any more: another run's counts begin at zero."""
        if not self.started:
            self.numerics_id = self.submission.numerics_id
        self.earlier, self.counts = self.earlier + self.counts, Counts()
        if self.stalled_since is None:
            self.stalled_since = time.monotonic()

    def fail(self, error: OutriderError) -> None:
        """Ends it with an error, unless it has ended."""
        if not self.ended:
            self.error = error
            self._changed.set()

    def receive(self, event: pb.SequenceEvent) -> float | None:
        """Takes an event; tokens it has already are passed over. Returns the time since the tokens before."""
        if self.ended:
            return None
        self.stalled_since = None
        if event.HasField("started") and not self.started:
            self.started, self.num_cached_tokens = True, event.started.num_cached_tokens
            self.was_accepted = True
        num_known = len(self.token_ids) - event.offset
        if num_known < 0 or event.offset + len(event.token_ids) > self.submission.max_tokens:
            self.fail(Internal(f"tokens at {event.offset} do not follow the {len(self.token_ids)} before"))
            return None
        new = event.token_ids[num_known:]
        self.token_ids.extend(new)
        self.logprobs.extend(event.logprobs[num_known:])
        self._read_counts(event)
        self._read_end(event)
        self._changed.set()
        return self.arrivals.add(len(new)) if new else None

    def _read_counts(self, event: pb.SequenceEvent) -> None:
        news = event.finished if event.HasField("finished") else event
        if news.num_steps >= self.counts.num_steps:
            self.counts = Counts.from_proto(news.num_steps, news.sources)

    def _read_end(self, event: pb.SequenceEvent) -> None:
        if event.HasField("finished"):
            self.end = End(
                reached_limit=event.finished.reason == pb.SEQUENCE_FINISH_REASON_LENGTH,
                num_preemptions=event.finished.num_preemptions,
            )
        elif event.HasField("error"):
            self.error = error_of(event.error)


def error_of(error: pb.SequenceError) -> OutriderError:
    """Reads the error of a sequence."""
    delay = error.retry_delay.ToTimedelta() if error.HasField("retry_delay") else None
    return from_code(error.code, error.message, field=error.field, retry_delay=delay)


def numerics_changed(sequence: Sequence, numerics_id: str) -> Unavailable:
    """Returns the error of a sequence whose group came back with other arithmetic."""
    return Unavailable(
        f"the group's numerics id changed from {sequence.numerics_id} to {numerics_id}: "
        "the answer would go on with other tokens"
    )
