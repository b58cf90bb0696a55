"""The running sequences of one scheduler, as its messages tell of them."""

import asyncio
from array import array
from collections.abc import Sequence

from outrider.rpc.telemetry import context_from, tracer
from services.drafter import metrics
from services.drafter.lane import Lane
from services.drafter.messages import Closed, Committed, NewFeatures, News, Opened
from services.drafter.sequence import RunningSequence

# Tokens taken in before others get their turn: a millisecond or so.
PIECE = 2048
# Tokens taken in before the drafts that a message wants; those of longer texts are taken in beside.
MAX_NUM_TOKENS_AT_ONCE = 8192
# Sequences whose texts are taken in to the end; one more waits, and so does its message.
MAX_NUM_CLOSING = 64


class Sequences:
    """Follows the sequences of one stream. What does not fit costs drafts, never an error.

    `run` takes in long texts and closes sequences beside, so that neither holds up drafts for others. A
    source that is slow to let go, or hangs, keeps no other waiting.
    """

    def __init__(self, lanes: Sequence[Lane], feature_size: int = 0) -> None:
        """A `feature_size` of 0: nobody here wants hidden vectors."""
        self._lanes = lanes
        self._row_bytes = 2 * feature_size  # bf16
        self._running: dict[int, RunningSequence] = {}
        self._behind: dict[RunningSequence, array] = {}  # tokens to be taken in, in the order they came
        self._is_behind = asyncio.Event()
        self._closing: asyncio.Queue[tuple[RunningSequence, bool]] = asyncio.Queue(MAX_NUM_CLOSING)
        self._known: set[RunningSequence] = set()  # running or closing
        self._has_ended = {lane: asyncio.Event() for lane in lanes}

    def get(self, sequence_id: int, base_length: int) -> RunningSequence | None:
        """Returns a sequence if it has just so many tokens, all of them taken in."""
        sequence = self._running.get(sequence_id)
        if sequence is None or sequence in self._behind or len(sequence.token_ids) != base_length:
            return None
        return sequence

    async def follow(self, news: News) -> None:
        """Takes in what a message tells, save long texts."""
        for opened in news.opened:
            self._open(opened)
        for committed in news.committed:
            await self._commit(committed)
        for closed in news.closed:
            await self._close(closed)
        await self._catch_up()
        for features in news.features:
            self._add_features(features)

    async def run(self) -> None:
        """Does what is done beside, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_in_long_texts())
            tasks.create_task(self._end_for_ever())
            for lane in self._lanes:
                tasks.create_task(self._close_for_ever(lane))

    async def finish(self) -> None:
        """Returns when all closed sequences have been learnt from."""
        await self._closing.join()
        for lane in self._lanes:
            await lane.close_ended()

    async def forget(self) -> None:
        """Lets go of all sequences: the stream is gone, and none that still runs has finished."""
        for sequence in list(self._running.values()):
            self._end(sequence)
        for lane in self._lanes:
            for sequence in self._known:
                lane.end(sequence, finished=False)
        for lane in self._lanes:
            await lane.close_ended()

    def _open(self, opened: Opened) -> None:
        if opened.sequence_id in self._running:
            return
        span = tracer(__name__).start_span("draft", context_from(opened.traceparent))
        span.set_attribute("outrider.num_prompt_tokens", opened.num_prompt_tokens)
        sequence = RunningSequence(
            id=opened.sequence_id,
            tenant=opened.tenant,
            num_prompt_tokens=opened.num_prompt_tokens,
            params=opened.params,
            span=span,
        )
        self._running[opened.sequence_id] = sequence
        self._known.add(sequence)
        metrics.num_sequences.inc()
        sequence.extend(opened.token_ids[:PIECE])
        for lane in self._lanes:
            lane.open(sequence)
        self._add_tokens(sequence, opened.token_ids[PIECE:])

    async def _commit(self, committed: Committed) -> None:
        sequence = self._running.get(committed.sequence_id)
        if sequence is None:
            return
        num_repeated = self._num_tokens(sequence) - committed.offset
        known = self._tokens(sequence, committed.offset, len(committed.token_ids))
        if num_repeated < 0 or known != committed.token_ids[:num_repeated]:
            # A message was lost: whatever followed would be guessed from a wrong text.
            await self._drop(sequence, "gap")
        else:
            self._add_tokens(sequence, committed.token_ids[num_repeated:])

    def _num_tokens(self, sequence: RunningSequence) -> int:
        return len(sequence.token_ids) + len(self._behind.get(sequence, ()))

    def _tokens(self, sequence: RunningSequence, offset: int, num_tokens: int) -> array:
        """Returns known tokens from an offset on, as many of so many as there are."""
        taken_in = sequence.token_ids[offset : offset + num_tokens]
        start = max(0, offset - len(sequence.token_ids))
        behind = self._behind.get(sequence, array("I"))
        return taken_in + behind[start : start + num_tokens - len(taken_in)]

    def _add_tokens(self, sequence: RunningSequence, token_ids: array) -> None:
        if token_ids:
            self._behind.setdefault(sequence, array("I")).extend(token_ids)
            self._is_behind.set()

    async def _catch_up(self) -> None:
        """Takes in what is short: first of all the sequences that lack least, as running ones do."""
        num_left = MAX_NUM_TOKENS_AT_ONCE
        for sequence in sorted(self._behind, key=lambda sequence: len(self._behind[sequence])):
            while num_left > 0 and sequence in self._behind:
                num_taken = self._take_in_piece(sequence)
                num_left -= num_taken
                if num_taken == PIECE:
                    await asyncio.sleep(0)

    async def _take_in_long_texts(self) -> None:
        while True:
            await self._is_behind.wait()
            if self._behind:
                self._take_in_piece(next(iter(self._behind)))
                await asyncio.sleep(0)
            else:
                self._is_behind.clear()

    def _take_in_piece(self, sequence: RunningSequence) -> int:
        """Takes in some of a sequence's tokens, and returns how many."""
        behind = self._behind[sequence]
        piece = behind[:PIECE]
        del behind[:PIECE]
        if not behind:
            del self._behind[sequence]
        sequence.extend(piece)
        for lane in self._lanes:
            lane.extend(sequence, len(piece))
        return len(piece)

    def _add_features(self, new: NewFeatures) -> None:
        sequence = self._running.get(new.sequence_id)
        if sequence is None or not self._row_bytes or not new.rows:
            return
        num_rows, rest = divmod(len(new.rows), self._row_bytes)
        if rest or new.offset + num_rows > self._num_tokens(sequence):
            sequence.features = None
            metrics.num_wrong_features.inc()
        else:
            sequence.add_features(new.offset, new.rows, self._row_bytes)

    async def _close(self, closed: Closed) -> None:
        sequence = self._running.get(closed.sequence_id)
        if sequence is not None:
            self._end(sequence)
            await self._closing.put((sequence, closed.finished))

    async def _drop(self, sequence: RunningSequence, reason: str) -> None:
        sequence.span.set_attribute("outrider.dropped", reason)
        metrics.num_dropped_sequences.labels(reason).inc()
        self._end(sequence)
        await self._closing.put((sequence, False))

    def _end(self, sequence: RunningSequence) -> None:
        del self._running[sequence.id]
        sequence.has_ended = True
        metrics.num_sequences.dec()
        sequence.span.set_attribute("outrider.num_tokens", self._num_tokens(sequence))
        sequence.span.set_attribute("outrider.num_drafts", sequence.num_drafts)
        sequence.span.set_attribute("outrider.num_draft_tokens", sequence.num_draft_tokens)
        sequence.span.end()

    async def _end_for_ever(self) -> None:
        while True:
            sequence, finished = await self._closing.get()
            while finished and sequence in self._behind:
                self._take_in_piece(sequence)
                await asyncio.sleep(0)
            self._behind.pop(sequence, None)
            for lane in self._lanes:
                lane.end(sequence, finished=finished)
                self._has_ended[lane].set()
            self._known.discard(sequence)
            self._closing.task_done()

    async def _close_for_ever(self, lane: Lane) -> None:
        """Has one source let go of what has ended, when it is free; no other waits for it."""
        while True:
            await self._has_ended[lane].wait()
            self._has_ended[lane].clear()
            await lane.close_ended()
