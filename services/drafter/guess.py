"""What a source thinks will follow."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Self

# No token has this id.
SEPARATOR = 0xFFFFFFFF

Alternatives = tuple[tuple[int, float], ...]
"""Other tokens that a place may turn out to hold, likeliest first, each with its chance."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens guessed to come next, each with the chance that it is right if those before it are.

    `alternatives`, where a source knows any, has an entry for each place of the draft and one for the place
    behind it (the bonus token if all is accepted): the outcomes to draft ahead for.
    """

    token_ids: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    match_length: int = 0
    alternatives: tuple[Alternatives, ...] = ()

    @property
    def num_expected(self) -> float:
        """How many of the tokens will be accepted, on average."""
        return sum(accumulate(self.confidences, mul))

    def after(self, num_tokens: int) -> Self:
        """Returns the guess without its first tokens, which turned out right."""
        if not num_tokens:
            return self
        return type(self)(
            self.token_ids[num_tokens:],
            self.confidences[num_tokens:],
            self.match_length,
            self.alternatives[num_tokens:],
        )

    def until(self, stop_token_ids: Collection[int]) -> Self:
        """Returns the guess as far as its first stop token, behind which nothing follows."""
        if not any(token_id in stop_token_ids for token_id in self.token_ids):
            return self
        end = 1 + next(place for place, token_id in enumerate(self.token_ids) if token_id in stop_token_ids)
        return type(self)(
            self.token_ids[:end],
            self.confidences[:end],
            self.match_length,
            (*self.alternatives[:end], ()) if self.alternatives else (),
        )
