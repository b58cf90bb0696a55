"""The running sequences of one scheduler, and the drafts for them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.trace import Span

from outrider import token_hash
from outrider.rpc.telemetry import context_from, tracer
from services.drafter import metrics
from services.drafter.guess import Guess
from services.drafter.memory import SuffixMemory, pieces
from services.drafter.messages import Closed, Committed, Draft, News, Opened, Wanted
from services.drafter.suffix_index import MAX_MATCH_LENGTH, SuffixIndex

MAX_NUM_DRAFT_TOKENS = 64
# Drafts made before others get their turn: about a millisecond.
DRAFTS_PER_TURN = 8


@dataclass(slots=True)
class RunningSequence:
    """A sequence whose index holds all its tokens; `hash` is theirs."""

    tenant: str
    index: SuffixIndex
    span: Span
    hash: int = token_hash.EMPTY
    num_drafts: int = 0
    num_draft_tokens: int = 0


class Sequences:
    """Follows the sequences of one stream. What does not fit costs drafts, never an error."""

    def __init__(self, memory: SuffixMemory) -> None:
        self._memory = memory
        self._running: dict[int, RunningSequence] = {}

    async def follow(self, news: News) -> list[Draft]:
        """Takes in one message and returns the drafts that it wanted, in its order."""
        for opened in news.opened:
            await self._open(opened)
        for committed in news.committed:
            await self._commit(committed)
        for closed in news.closed:
            await self._close(closed)
        drafts: list[Draft] = []
        for wanted in news.wanted:
            drafts.append(self._propose(wanted))
            if len(drafts) % DRAFTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return drafts

    async def _open(self, opened: Opened) -> None:
        if opened.sequence_id in self._running:
            return
        index = self._memory.open()
        if index is None:
            metrics.num_dropped_sequences.labels("no_room").inc()
            return
        span = tracer(__name__).start_span("draft", context_from(opened.traceparent))
        span.set_attribute("outrider.num_prompt_tokens", opened.num_prompt_tokens)
        self._running[opened.sequence_id] = RunningSequence(opened.tenant, index, span)
        metrics.num_sequences.inc()
        await self._extend(opened.sequence_id, opened.token_ids)

    async def _commit(self, committed: Committed) -> None:
        sequence = self._running.get(committed.sequence_id)
        if sequence is None:
            return
        num_repeated = len(sequence.index) - committed.offset
        known = sequence.index.tokens[committed.offset : committed.offset + len(committed.token_ids)]
        if num_repeated < 0 or known != committed.token_ids[:num_repeated]:
            # A message was lost: whatever followed would be guessed from a wrong text.
            self._drop(committed.sequence_id, "gap")
            return
        await self._extend(committed.sequence_id, committed.token_ids[num_repeated:])

    async def _extend(self, sequence_id: int, token_ids: Sequence[int]) -> None:
        sequence = self._running[sequence_id]
        for piece in pieces(token_ids):
            if not self._memory.extend(sequence.index, piece):
                self._drop(sequence_id, "no_room")
                return
            sequence.hash = token_hash.extend(sequence.hash, piece)
            await asyncio.sleep(0)

    async def _close(self, closed: Closed) -> None:
        sequence = self._running.get(closed.sequence_id)
        if sequence is None:
            return
        self._end(closed.sequence_id)
        if closed.finished:
            await self._memory.remember(sequence.tenant, sequence.index.tokens)

    def _propose(self, wanted: Wanted) -> Draft:
        sequence = self._running.get(wanted.sequence_id)
        guess, base_hash = Guess(), token_hash.EMPTY
        if sequence is not None and len(sequence.index) == wanted.base_length:
            base_hash = sequence.hash
            with metrics.guess_seconds.time():
                guess = self._guess(sequence, min(wanted.max_num_tokens, MAX_NUM_DRAFT_TOKENS))
            sequence.num_drafts += 1
            sequence.num_draft_tokens += len(guess.token_ids)
        metrics.num_drafts.inc()
        metrics.num_draft_tokens.inc(len(guess.token_ids))
        metrics.num_empty_drafts.inc(not guess.token_ids)
        return Draft(
            sequence_id=wanted.sequence_id, base_length=wanted.base_length, base_hash=base_hash, guess=guess
        )

    def _guess(self, sequence: RunningSequence, max_num_tokens: int) -> Guess:
        """Returns the better of what the sequence's own text and its tenant's memory suggest."""
        context = sequence.index.tokens[-MAX_MATCH_LENGTH:]
        own = sequence.index.guess(context, max_num_tokens)
        memory = self._memory.memory_of(sequence.tenant)
        if memory is None:
            return own
        return max(own, memory.guess(context, max_num_tokens), key=lambda guess: guess.num_expected)

    def _drop(self, sequence_id: int, reason: str) -> None:
        self._running[sequence_id].span.set_attribute("outrider.dropped", reason)
        metrics.num_dropped_sequences.labels(reason).inc()
        self._end(sequence_id)

    def _end(self, sequence_id: int) -> None:
        sequence = self._running.pop(sequence_id)
        self._memory.close(sequence.index)
        metrics.num_sequences.dec()
        sequence.span.set_attribute("outrider.num_tokens", len(sequence.index))
        sequence.span.set_attribute("outrider.num_drafts", sequence.num_drafts)
        sequence.span.set_attribute("outrider.num_draft_tokens", sequence.num_draft_tokens)
        sequence.span.end()

    def forget(self) -> None:
        """Forgets all sequences: the stream is gone, and none of them has finished."""
        for sequence_id in list(self._running):
            self._end(sequence_id)
