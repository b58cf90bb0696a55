"""What is asked of a source of drafts, and what it must offer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.drafter.guess import Guess
from services.drafter.sequence import RunningSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What follows the tokens of a sequence and those assumed behind them?

    Nothing is assumed where a draft is wanted now; drafts made ahead assume an outcome of the step in flight:
    accepted drafts and a bonus token.
    """

    sequence: RunningSequence
    assumed: tuple[int, ...] = ()
    max_num_tokens: int


class Source(Protocol):
    """One way to guess. It never raises for a sequence it cannot serve: its guess is empty."""

    name: str

    def open(self, sequence: RunningSequence) -> None:
        """Hears of a sequence with all its tokens so far."""
        ...

    def extend(self, sequence: RunningSequence, num_tokens: int) -> None:
        """Hears that the last `num_tokens` tokens of a sequence have become final."""
        ...

    async def guess(self, questions: Sequence[Question]) -> list[Guess]:
        """Answers questions, in their order; several may be about one sequence."""
        ...

    async def close(self, sequence: RunningSequence, *, finished: bool) -> None:
        """Lets go of a sequence; one that finished is worth learning from."""
        ...
