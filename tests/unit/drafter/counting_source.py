"""A source that counts: what follows 7 is 8, or perhaps 9. It keeps its own books of what it is told."""

import asyncio
from array import array
from collections.abc import Sequence

from services.drafter.guess import Guess
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question


class CountingSource:
    """Guesses at most `length` tokens, once its `gate` is open."""

    def __init__(self, name: str = "suffix", *, length: int = 4, confidence: float = 0.75) -> None:
        self.name = name
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_broken = False
        self.texts: dict[RunningSequence, array] = {}
        self.closed: list[tuple[int, bool]] = []
        self.asked: list[list[tuple[int, tuple[int, ...]]]] = []
        self._length = length
        self._confidence = confidence
        self._is_busy = False

    def open(self, sequence: RunningSequence) -> None:
        """Notes the first tokens."""
        self.texts[sequence] = sequence.token_ids[:]

    def extend(self, sequence: RunningSequence, num_tokens: int) -> None:
        """Notes the last tokens."""
        self.texts[sequence] += sequence.token_ids[-num_tokens:]

    async def guess(self, questions: Sequence[Question]) -> list[Guess]:
        """Counts on from the last token of each question."""
        assert not self._is_busy
        self._is_busy = True
        self.asked.append([(question.num_final_tokens, question.assumed) for question in questions])
        await self.gate.wait()
        self._is_busy = False
        if self.is_broken:
            raise RuntimeError("broken")
        return [self._count_on(question) for question in questions]

    async def close(self, sequence: RunningSequence, *, finished: bool) -> None:
        """Notes how it ended, and forgets it."""
        assert not self._is_busy
        assert self.texts.pop(sequence) == sequence.token_ids
        self.closed.append((sequence.id, finished))

    def _count_on(self, question: Question) -> Guess:
        last = question.token_ids[-1]
        length = min(self._length, question.max_num_tokens)
        other = (1.0 - self._confidence) / 2
        alternatives = [((last + place + 2, other),) for place in range(length)]
        behind = ((last + length + 1, self._confidence), (last + length + 2, other))
        return Guess(
            tuple(range(last + 1, last + 1 + length)),
            (self._confidence,) * length,
            alternatives=(*alternatives, behind),
        )
