"""The vote of the suffix memory, slow and obvious: what the native one must agree with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LENGTHS = (16, 8, 4, 2)
MAX_MATCH_LENGTH = 32
MAX_NUM_OCCURRENCES = 24
MAX_NUM_STEPS = 32
CHUNK = 32


@dataclass(frozen=True)
class Stored:
    """A stored text: its first tokens but the last of them are not indexed where they are only context."""

    token_ids: Sequence[int]
    num_context_tokens: int = 0
    num_repeats: bytes = b""

    def weight(self, place: int) -> float:
        return 1.0 + (self.num_repeats[place // CHUNK] if self.num_repeats else 0)


@dataclass(frozen=True)
class Occurrence:
    """Tokens of `text` that end at `place` and agree with the end of a running text."""

    text: Stored
    place: int
    match_length: int


def guess(
    texts: Sequence[Stored], context: Sequence[int], max_num_tokens: int, tail: Sequence[int] | None = None
) -> tuple:
    """Returns what follows `context` as the native module does; `tail` goes on the one text that is open."""
    found = list(occurrences(texts, context, is_open=bool(tail)))
    if not found:
        return (), (), 0, ()
    longest = max(occurrence.match_length for occurrence in found)
    voters = [(o, o.text.weight(o.place) * 2.0 ** (o.match_length - longest)) for o in found]
    draft: list[int] = []
    confidences: list[float] = []
    alternatives = []
    survival = 1.0
    while True:
        choices = [_choice(o, len(draft), None if tail is None else [*tail, *draft]) for o, _ in voters]
        voters = [voter for voter, choice in zip(voters, choices, strict=True) if choice is not None]
        choices = [choice for choice in choices if choice is not None]
        votes = _count(choices, [weight for _, weight in voters])
        total = 2.0 / (longest + len(draft)) + sum(votes.values())
        winner, most = next(iter(votes.items()), (0, 0.0))
        survival *= most / total
        if len(draft) == min(max_num_tokens, 2 * longest) or survival < 0.1:
            alternatives.append(_best(votes, total, set()))
            return tuple(draft), tuple(confidences), longest if draft else 0, tuple(alternatives)
        alternatives.append(_best(votes, total, {winner}))
        draft.append(winner)
        confidences.append(most / total)
        voters = [voter for voter, choice in zip(voters, choices, strict=True) if choice == winner]


def occurrences(texts: Sequence[Stored], context: Sequence[int], *, is_open: bool) -> Iterator[Occurrence]:
    """Yields where the end of `context` occurs, longer matches first, of equal ones the latest first."""
    places = [
        (text, place)
        for text in texts
        for place in range(max(text.num_context_tokens - 1, 0), len(text.token_ids))
    ]
    num_found, longest, longer = 0, 0, MAX_MATCH_LENGTH + 1
    for length in LENGTHS:
        if length > len(context):
            longer = length
            continue
        if 4 * length <= longest:
            return
        same = [p for p in reversed(places) if _match_length(*p, context) >= length][:MAX_NUM_STEPS]
        for text, place in same:
            match_length = _match_length(text, place, context)
            is_end = place == len(text.token_ids) - 1
            if match_length < longer and num_found < MAX_NUM_OCCURRENCES and (is_open or not is_end):
                yield Occurrence(text, place, match_length)
                num_found += 1
                longest = max(longest, match_length)
        longer = length


def _match_length(text: Stored, place: int, context: Sequence[int]) -> int:
    length = 0
    while (
        length < min(MAX_MATCH_LENGTH, place + 1, len(context))
        and text.token_ids[place - length] == context[-1 - length]
    ):
        length += 1
    return length


def _choice(occurrence: Occurrence, step: int, beyond: Sequence[int] | None) -> int | None:
    token_ids, at = occurrence.text.token_ids, occurrence.place + 1 + step
    if at < len(token_ids):
        return token_ids[at]
    return None if beyond is None else beyond[at - len(token_ids)]


def _count(choices: Sequence[int], weights: Sequence[float]) -> dict[int, float]:
    votes: dict[int, float] = {}
    for choice, weight in zip(choices, weights, strict=True):
        votes[choice] = votes.get(choice, 0.0) + weight
    return dict(sorted(votes.items(), key=lambda item: -item[1]))


def _best(votes: dict[int, float], total: float, but: set[int]) -> tuple[tuple[int, float], ...]:
    shares = [(token_id, vote / total) for token_id, vote in votes.items() if token_id not in but]
    return tuple(share for share in shares[:3] if share[1] >= 0.02)
