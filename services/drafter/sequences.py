"""The running sequences of one scheduler, and the drafts for them."""

import asyncio
from array import array
from dataclasses import dataclass, field
from functools import partial

from opentelemetry.trace import Span

from outrider import token_hash
from outrider.rpc.telemetry import context_from, tracer
from services.drafter import metrics
from services.drafter.guess import Guess
from services.drafter.memory import CHUNK, SuffixMemory
from services.drafter.messages import Closed, Committed, Draft, News, Opened, Wanted
from services.drafter.suffix_index import MAX_MATCH_LENGTH, SuffixIndex

MAX_NUM_DRAFT_TOKENS = 64
# Drafts made before others get their turn: about a millisecond.
DRAFTS_PER_TURN = 8
# Tokens taken in before a message is answered, some ten milliseconds; longer texts are taken in beside.
MAX_NUM_TOKENS_AT_ONCE = 2048
# Texts that wait to be remembered; one more waits before its message is answered.
MAX_NUM_FINISHED = 64


@dataclass(slots=True)
class RunningSequence:
    """A sequence: the tokens in its index, whose hash is `hash`, and those behind them that are to go there.

    The latter take a hundredth of what the index will, and are not counted.
    """

    tenant: str
    index: SuffixIndex
    span: Span
    pending: array = field(default_factory=lambda: array("I"))
    hash: int = token_hash.EMPTY
    num_drafts: int = 0
    num_draft_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """All tokens known."""
        return len(self.index) + len(self.pending)

    def tokens_from(self, offset: int) -> array:
        """Returns all tokens known from there on."""
        return self.index.tokens[offset:] + self.pending[max(0, offset - len(self.index)) :]


class Sequences:
    """Follows the sequences of one stream. What does not fit costs drafts, never an error.

    A message is answered before long texts are taken in: `index` and `remember` do that beside, a piece at a
    time. Until then drafts for them are empty.
    """

    def __init__(self, memory: SuffixMemory) -> None:
        self._memory = memory
        self._running: dict[int, RunningSequence] = {}
        self._behind: dict[int, None] = {}  # sequences with pending tokens, in the order they came
        self._is_behind = asyncio.Event()
        self._finished: asyncio.Queue[tuple[str, array]] = asyncio.Queue(MAX_NUM_FINISHED)

    async def follow(self, news: News) -> list[Draft]:
        """Takes in one message and returns the drafts that it wanted, in its order."""
        for opened in news.opened:
            self._open(opened)
        for committed in news.committed:
            self._commit(committed)
        for closed in news.closed:
            await self._close(closed)
        await self._catch_up()
        drafts: list[Draft] = []
        for wanted in news.wanted:
            drafts.append(self._propose(wanted))
            if len(drafts) % DRAFTS_PER_TURN == 0:
                await asyncio.sleep(0)
        return drafts

    async def index(self) -> None:
        """Takes in pending tokens for ever."""
        while True:
            await self._is_behind.wait()
            if self._behind:
                self._index_piece(next(iter(self._behind)))
                await asyncio.sleep(0)
            else:
                self._is_behind.clear()

    async def remember(self) -> None:
        """Adds finished texts to the memory for ever."""
        while True:
            await self._memory.remember(*await self._finished.get())
            self._finished.task_done()

    async def finish(self) -> None:
        """Returns when all finished texts are remembered."""
        await self._finished.join()

    def _open(self, opened: Opened) -> None:
        if opened.sequence_id in self._running:
            return
        span = tracer(__name__).start_span("draft", context_from(opened.traceparent))
        span.set_attribute("outrider.num_prompt_tokens", opened.num_prompt_tokens)
        index = SuffixIndex()
        self._running[opened.sequence_id] = RunningSequence(opened.tenant, index, span)
        metrics.num_sequences.inc()
        self._memory.open(opened.tenant, index, partial(self._drop, opened.sequence_id, "no_room"))
        self._extend(opened.sequence_id, opened.token_ids)

    def _commit(self, committed: Committed) -> None:
        sequence = self._running.get(committed.sequence_id)
        if sequence is None:
            return
        num_repeated = sequence.num_tokens - committed.offset
        known = sequence.tokens_from(committed.offset)[: len(committed.token_ids)]
        if num_repeated < 0 or known != committed.token_ids[:num_repeated]:
            # A message was lost: whatever followed would be guessed from a wrong text.
            self._drop(committed.sequence_id, "gap")
            return
        self._extend(committed.sequence_id, committed.token_ids[num_repeated:])

    def _extend(self, sequence_id: int, token_ids: array) -> None:
        sequence = self._running.get(sequence_id)
        if sequence is not None and token_ids:
            sequence.pending.extend(token_ids)
            self._behind[sequence_id] = None
            self._is_behind.set()

    async def _catch_up(self) -> None:
        """Takes in what is short: first of all the sequences that lack least, as running ones do."""
        num_left = MAX_NUM_TOKENS_AT_ONCE
        for sequence_id in sorted(self._behind, key=lambda name: len(self._running[name].pending)):
            while num_left > 0 and sequence_id in self._behind:
                num_left -= self._index_piece(sequence_id)
                await asyncio.sleep(0)

    def _index_piece(self, sequence_id: int) -> int:
        """Takes in a piece of a sequence's pending tokens, and returns how many."""
        sequence = self._running[sequence_id]
        piece = sequence.pending[:CHUNK]
        del sequence.pending[:CHUNK]
        if not sequence.pending:
            del self._behind[sequence_id]
        sequence.hash = token_hash.extend(sequence.hash, piece)
        self._memory.extend(sequence.index, piece)
        return len(piece)

    async def _close(self, closed: Closed) -> None:
        sequence = self._running.get(closed.sequence_id)
        if sequence is None:
            return
        self._end(closed.sequence_id)
        if closed.finished:
            text = sequence.tokens_from(0)
            if len(text) <= MAX_NUM_TOKENS_AT_ONCE and not self._memory.is_adding:
                await self._memory.remember(sequence.tenant, text)
            else:
                await self._finished.put((sequence.tenant, text))

    def _propose(self, wanted: Wanted) -> Draft:
        sequence = self._running.get(wanted.sequence_id)
        guess, base_hash = Guess(), token_hash.EMPTY
        if sequence is not None and not sequence.pending and len(sequence.index) == wanted.base_length:
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
        self._behind.pop(sequence_id, None)
        self._memory.close(sequence.index)
        metrics.num_sequences.dec()
        sequence.span.set_attribute("outrider.num_tokens", sequence.num_tokens)
        sequence.span.set_attribute("outrider.num_drafts", sequence.num_drafts)
        sequence.span.set_attribute("outrider.num_draft_tokens", sequence.num_draft_tokens)
        sequence.span.end()

    def forget(self) -> None:
        """Forgets all sequences: the stream is gone, and none of them has finished."""
        for sequence_id in list(self._running):
            self._end(sequence_id)
