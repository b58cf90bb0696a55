"""What probably follows, by a vote of the places where the end of the running text occurred before.

After "SuffixDecoding" (arXiv 2411.04975), with two changes: all match lengths vote at once, a longer match
counting more, instead of the best of one vote per length; and a text may be copied beyond its own end, as
LZ77 does for runs.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Self

# Stands between texts; no match and no continuation crosses it.
SEPARATOR = 0xFFFFFFFF
# A match longer by one token counts this many times more.
VOTE_GROWTH = 2.0
# Doubt, in votes of the longest match and divided by its length: so confidences agree with what is accepted.
DOUBT = 2.0
# A guess whose chance to be reached and right is lower ends the draft.
MIN_SURVIVAL = 0.1
NUM_TOKENS_PER_MATCHED = 2


@dataclass(frozen=True, slots=True)
class Occurrence:
    """`match_length` tokens before `offset` agree with the end of the running text."""

    offset: int
    match_length: int


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


def follow(tokens: array, occurrences: Sequence[Occurrence], max_num_tokens: int) -> Guess:
    """Follows the most likely continuation of all occurrences in `tokens`, token by token."""
    if not occurrences:
        return Guess()
    longest = max(occurrence.match_length for occurrence in occurrences)
    voters = [(o.offset, VOTE_GROWTH ** (o.match_length - longest)) for o in occurrences]
    token_ids: list[int] = []
    confidences: list[float] = []
    survival = 1.0
    for position in range(min(max_num_tokens, NUM_TOKENS_PER_MATCHED * longest)):
        choices = [_token(tokens, token_ids, offset + position) for offset, _ in voters]
        winner, confidence = _elect(choices, voters, DOUBT / (longest + position))
        survival *= confidence
        if winner == SEPARATOR or survival < MIN_SURVIVAL:
            break
        token_ids.append(winner)
        confidences.append(confidence)
        voters = [voter for voter, choice in zip(voters, choices, strict=True) if choice == winner]
    return Guess(tuple(token_ids), tuple(confidences), longest if token_ids else 0)


def _token(tokens: array, draft: Sequence[int], offset: int) -> int:
    return tokens[offset] if offset < len(tokens) else draft[offset - len(tokens)]


def _elect(choices: Sequence[int], voters: Sequence[tuple[int, float]], doubt: float) -> tuple[int, float]:
    votes: dict[int, float] = {}
    for choice, (_, weight) in zip(choices, voters, strict=True):
        votes[choice] = votes.get(choice, 0.0) + weight
    winner = max(votes, key=votes.__getitem__)
    return winner, votes[winner] / (sum(votes.values()) + doubt)
