"""The drafts of one stream, by each source at its pace: what is wanted first, then what may come to be."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from services.drafter import metrics
from services.drafter.ahead import Ahead, InFlight
from services.drafter.lane import Answers, Lane
from services.drafter.messages import Answer, Draft, News, Verifying, Wanted
from services.drafter.sequences import Sequences
from services.drafter.source import Question

MAX_NUM_DRAFT_TOKENS = 64
# Requests that wait for a source; one more, and the oldest is answered without it.
MAX_NUM_WAITING = 4
# Sequences whose outcomes are worked out before others get their turn: about a millisecond.
PLANS_PER_TURN = 8

Send = Callable[[Answer], Awaitable[None]]


@dataclass(slots=True)
class _Request:
    """A message that wants drafts, and how many sources have yet to answer it."""

    id: int
    num_open: int


class _SourceDrafts:
    """What one source drafts for one stream."""

    def __init__(self, lane: Lane, sequences: Sequences, send: Send) -> None:
        self.lane = lane
        self._ahead: Ahead | None = None
        self._sequences = sequences
        self._send = send
        self._waiting: deque[tuple[_Request, Sequence[Wanted]]] = deque()
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()

    async def want(self, request: _Request, wanted: Sequence[Wanted]) -> None:
        """Takes a request."""
        if len(self._waiting) == MAX_NUM_WAITING:
            oldest, _ = self._waiting.popleft()
            await self._answer(oldest, Answers(questions=(), guesses=(), seconds=0.0))
        self._waiting.append((request, wanted))
        self._wake()

    def look_ahead(self, in_flight: Sequence[InFlight], deadline: float) -> None:
        """Drafts from now on for what may come of a step, until the deadline or `stop_ahead`."""
        self._ahead = Ahead(self.lane.name, in_flight, deadline)
        self._wake()

    def stop_ahead(self) -> None:
        """Leaves the rest of an older step's outcomes."""
        self._ahead = None

    def _wake(self) -> None:
        self._is_idle.clear()
        self._has_work.set()

    async def run(self) -> None:
        """Drafts for ever, what is wanted before what may be."""
        while True:
            if self._waiting:
                request, wanted = self._waiting.popleft()
                await self._answer(request, await self.lane.ask(partial(self._questions, wanted)))
            elif self._ahead is not None and not self._ahead.is_done:
                await self._draft_ahead(self._ahead)
            else:
                self._has_work.clear()
                self._is_idle.set()
                await self._has_work.wait()

    async def finish(self) -> None:
        """Returns when all is answered."""
        await self._is_idle.wait()

    def _questions(self, wanted: Sequence[Wanted]) -> list[Question]:
        """Asks what is still of use: a sequence that has grown will have been asked about again."""
        found = [(self._sequences.get(item.sequence_id, item.base_length), item) for item in wanted]
        return [
            Question(sequence=sequence, max_num_tokens=min(item.max_num_tokens, MAX_NUM_DRAFT_TOKENS))
            for sequence, item in found
            if sequence is not None
        ]

    async def _answer(self, request: _Request, answers: Answers) -> None:
        request.num_open -= 1
        await self._send(
            Answer(
                source=self.lane.name,
                drafts=self._drafts(answers),
                num_questions=len(answers.questions),
                seconds=answers.seconds,
                request_id=request.id,
                complete=not request.num_open,
            )
        )

    async def _draft_ahead(self, ahead: Ahead) -> None:
        answers = await self.lane.ask(partial(self._ahead_questions, ahead))
        for question, guess in zip(answers.questions, answers.guesses, strict=True):
            ahead.learn(question, guess)
        drafts = self._drafts(answers)
        metrics.num_ahead_drafts.labels(self.lane.name).inc(len(drafts))
        if answers.questions:
            await self._send(
                Answer(
                    source=self.lane.name,
                    drafts=drafts,
                    num_questions=len(answers.questions),
                    seconds=answers.seconds,
                )
            )

    def _ahead_questions(self, ahead: Ahead) -> list[Question]:
        """Asks nothing if the plan was left while the source was busy: what is wanted comes first."""
        return ahead.next_questions(self.lane.call_time) if ahead is self._ahead else []

    def _drafts(self, answers: Answers) -> list[Draft]:
        """Notes what was guessed, and returns what is worth sending."""
        drafts: list[Draft] = []
        for question, guess in zip(answers.questions, answers.guesses, strict=True):
            draft = Draft(
                sequence_id=question.sequence.id,
                base_length=question.base_length,
                base_hash=question.base_hash,
                guess=guess,
            )
            question.sequence.remember_draft(self.lane.name, draft)
            if guess.token_ids:
                question.sequence.num_drafts += 1
                question.sequence.num_draft_tokens += len(guess.token_ids)
                drafts.append(draft)
        return drafts


class Drafting:
    """Answers one stream's messages; a newer one ends the drafting ahead for an older."""

    def __init__(self, lanes: Sequence[Lane], sequences: Sequences, send: Send) -> None:
        self._sequences = sequences
        self._send = send
        self._sources = [_SourceDrafts(lane, sequences, send) for lane in lanes]

    async def run(self) -> None:
        """Lets every source draft, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for source in self._sources:
                tasks.create_task(source.run())

    async def finish(self) -> None:
        """Returns when all is answered."""
        for source in self._sources:
            await source.finish()

    async def follow(self, news: News) -> None:
        """Takes in a message, and has the sources do what it asks."""
        deadline = time.monotonic() + news.ahead_seconds
        if news.committed or news.wanted or news.verifying:
            for source in self._sources:
                source.stop_ahead()
        await self._sequences.follow(news)
        await self._want(news)
        if news.ahead_seconds:
            await self._look_ahead(news.verifying, deadline)

    async def _want(self, news: News) -> None:
        asked: dict[_SourceDrafts, list[Wanted]] = {}
        for source in self._sources:
            if wanted := [item for item in news.wanted if item.asks(source.lane.name)]:
                asked[source] = wanted
        if news.wanted and not asked:
            await self._send(Answer(request_id=news.request_id, complete=True))
        request = _Request(news.request_id, len(asked))
        for source, wanted in asked.items():
            await source.want(request, wanted)

    async def _look_ahead(self, verifying: Sequence[Verifying], deadline: float) -> None:
        in_flight: list[tuple[Verifying, InFlight]] = []
        for number, item in enumerate(verifying, 1):
            sequence = self._sequences.get(item.sequence_id, item.base_length)
            if sequence is not None:
                max_num_tokens = min(item.max_num_tokens, MAX_NUM_DRAFT_TOKENS)
                guesses = sequence.remaining_guesses()
                in_flight.append((item, InFlight(sequence, item.token_ids, max_num_tokens, guesses)))
            if not number % PLANS_PER_TURN:
                await asyncio.sleep(0)
        for source in self._sources:
            source.look_ahead([flight for item, flight in in_flight if item.asks(source.lane.name)], deadline)
