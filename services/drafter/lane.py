"""A source as many streams use it: one call at a time, what it takes, and what becomes of its failures."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from services.drafter import metrics
from services.drafter.call_time import CallTime
from services.drafter.guess import Guess
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question, Source

# Sequences that a source has yet to let go of; where there are more, it is told of no new ones.
MAX_NUM_ENDED = 1024

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Questions with their guesses, and the time they took."""

    questions: Sequence[Question]
    guesses: Sequence[Guess]
    seconds: float


class Lane:
    """The way to one source. A source that raises has no guess for that call; all others go on.

    Sources that compute in one thread share their `turn`, so that the time of one is not another's too.
    """

    def __init__(self, source: Source, turn: asyncio.Lock | None = None) -> None:
        self._source = source
        self._turn = turn or asyncio.Lock()
        self._open: set[RunningSequence] = set()
        self._ended: dict[RunningSequence, bool] = {}  # whether each has finished
        self._has_failed = False
        self.name = source.name
        self.call_time = CallTime()

    def open(self, sequence: RunningSequence) -> None:
        """Tells the source of a sequence, unless it is so far behind that it has yet to let go of many."""
        if len(self._ended) < MAX_NUM_ENDED:
            self._open.add(sequence)
            self._tell(lambda: self._source.open(sequence))

    def extend(self, sequence: RunningSequence, num_tokens: int) -> None:
        """Tells the source of new tokens of a sequence that it was told of."""
        if sequence in self._open:
            self._tell(lambda: self._source.extend(sequence, num_tokens))

    def end(self, sequence: RunningSequence, *, finished: bool) -> None:
        """Notes that a sequence is over, for `close_ended` to tell; to say so again does nothing."""
        if sequence in self._open:
            self._open.remove(sequence)
            self._ended[sequence] = finished

    async def close_ended(self) -> None:
        """Tells the source of all sequences that are over, in one turn."""
        async with self._turn:
            while self._ended:
                sequence, finished = next(iter(self._ended.items()))
                del self._ended[sequence]
                await self._call(self._source.close(sequence, finished=finished), None)

    async def ask(self, questions: Callable[[], Sequence[Question]]) -> Answers:
        """Asks the source, when it is free, what is then to be asked of sequences that still run."""
        async with self._turn:
            asked = [question for question in questions() if self._follows(question.sequence)]
            if not asked:
                return Answers(questions=(), guesses=(), seconds=0.0)
            began = time.perf_counter()
            guesses = await self._call(self._source.guess(asked), [Guess()] * len(asked))
            answers = Answers(questions=asked, guesses=guesses, seconds=time.perf_counter() - began)
        self._count(answers)
        return answers

    def _follows(self, sequence: RunningSequence) -> bool:
        """Whether the source may hear of a sequence: of one that is over it would keep what it learns."""
        return sequence in self._open and not sequence.has_ended

    def _tell(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except Exception as error:
            self._note_failure(error)

    async def _call(self, call: Coroutine[Any, Any, T], otherwise: T) -> T:
        """Awaits a call to its end even when cancelled: the next may come only then."""
        task = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(task)
        except Exception as error:
            self._note_failure(error)
            return otherwise
        finally:
            if not task.done():
                await asyncio.wait([task])

    def _note_failure(self, error: Exception) -> None:
        metrics.num_source_failures.labels(self.name).inc()
        if not self._has_failed:
            self._has_failed = True
            log.error("source_failed", source=self.name, exc_info=error)

    def _count(self, answers: Answers) -> None:
        num_questions, num_tokens = len(answers.questions), sum(len(g.token_ids) for g in answers.guesses)
        metrics.num_drafts.labels(self.name).inc(num_questions)
        metrics.num_empty_drafts.labels(self.name).inc(sum(not g.token_ids for g in answers.guesses))
        metrics.num_draft_tokens.labels(self.name).inc(num_tokens)
        metrics.compute_seconds.labels(self.name).inc(answers.seconds)
        metrics.guess_seconds.labels(self.name).observe(answers.seconds / num_questions)
        self.call_time.add(num_questions, answers.seconds)
