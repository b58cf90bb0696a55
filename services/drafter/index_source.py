"""Drafts from what was said before: in the running text and in the tenant's memory."""

from collections.abc import Sequence
from functools import partial

from services.drafter.guess import Guess
from services.drafter.memory import SuffixMemory
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question
from services.drafter.suffix_index import MAX_MATCH_LENGTH, SuffixIndex


class IndexSource:
    """Asks the index of the sequence and that of its tenant."""

    name = "suffix"

    def __init__(self, memory: SuffixMemory) -> None:
        self._memory = memory
        self._indexes: dict[RunningSequence, SuffixIndex] = {}

    def open(self, sequence: RunningSequence) -> None:
        """Indexes what there is of a sequence."""
        index = self._indexes[sequence] = SuffixIndex()
        self._memory.open(sequence.tenant, index, partial(self._indexes.__delitem__, sequence))
        self.extend(sequence, len(sequence.token_ids))

    def extend(self, sequence: RunningSequence, num_tokens: int) -> None:
        """Indexes more of it."""
        index = self._indexes.get(sequence)
        if index is not None and num_tokens:
            self._memory.extend(index, sequence.token_ids[-num_tokens:])

    async def guess(self, questions: Sequence[Question]) -> list[Guess]:
        """Takes the better of what the sequence's own text and its tenant's memory suggest."""
        return [self._guess(question) for question in questions]

    async def close(self, sequence: RunningSequence, *, finished: bool) -> None:
        """Adds a finished text to the tenant's memory."""
        if (index := self._indexes.pop(sequence, None)) is not None:
            self._memory.close(index)
        if finished:
            await self._memory.remember(sequence.tenant, sequence.token_ids)

    def _guess(self, question: Question) -> Guess:
        sequence = question.sequence
        own, memory = self._indexes.get(sequence), self._memory.memory_of(sequence.tenant)
        context = question.token_ids[-MAX_MATCH_LENGTH:]
        guesses = [
            index.guess(context, question.max_num_tokens) for index in (own, memory) if index is not None
        ]
        return max(guesses, key=lambda guess: guess.num_expected, default=Guess())
