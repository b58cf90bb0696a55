"""What is asked of a source of drafts, and what it must offer."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from outrider import token_hash
from services.drafter.guess import Guess
from services.drafter.sequence import RunningSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What follows the tokens that a sequence has now and those assumed behind them?

    Nothing is assumed where a draft is wanted now; drafts made ahead assume an outcome of the step in flight:
    accepted drafts and a bonus token. Final tokens that come after the question are not part of it.
    """

    sequence: RunningSequence
    assumed: tuple[int, ...] = ()
    max_num_tokens: int
    # Tokens that were final when this was asked, and the hash of these and the assumed ones.
    num_final_tokens: int = field(init=False)
    base_hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_final_tokens", len(self.sequence.token_ids))
        object.__setattr__(self, "base_hash", token_hash.extend(self.sequence.hash, self.assumed))

    @property
    def base_length(self) -> int:
        """Tokens that the answer follows."""
        return self.num_final_tokens + len(self.assumed)

    @property
    def token_ids(self) -> array:
        """A copy of the tokens that the answer follows."""
        return self.sequence.token_ids[: self.num_final_tokens] + array("I", self.assumed)


class Source(Protocol):
    """One way to guess. It never raises for a sequence it cannot serve: its guess is empty.

    All is called on the event loop. One `guess` or `close` runs at a time; `open` and `extend` may come while
    it waits for a thread. `token_ids` of a sequence grows and changes in no other way, so a thread may copy
    slices of it, but must not hold a view: an array that is looked at cannot grow.
    """

    name: str

    def open(self, sequence: RunningSequence) -> None:
        """Hears of a sequence with its first tokens; the rest of a long text follows by `extend`."""
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
