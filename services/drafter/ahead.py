"""Drafting ahead: while the group verifies, drafts for what may come of it, likeliest first, as time allows.

After "Speculative Speculative Decoding" (arXiv 2603.03251). An outcome is the accepted part of the draft and
the bonus token behind it. What a source said of each place of the draft gives its probability:

    P(d1..dj accepted, bonus b) = c1 * ... * cj * P(b at place j + 1)

A draft that goes on behind an outcome serves it already (docs/decisions/0004), unless little is left of it.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from services.drafter.call_time import CallTime
from services.drafter.guess import Guess
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question

# Less likely outcomes are not worth what a draft costs both sides to handle.
MIN_PROBABILITY = 0.05
# Outcomes of one sequence drafted for in one step.
MAX_NUM_OUTCOMES = 8
# Questions asked together; more would keep others waiting.
MAX_BATCH = 32
# The chance that a draft's first token is the bonus token, where nothing is known of that.
UNKNOWN_BONUS = 0.5

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An accepted part of a draft and a bonus token, or without the latter if nothing is known of it."""

    token_ids: Tokens
    probability: float
    has_bonus: bool = True


def outcomes(draft: Tokens, guess: Guess) -> Iterator[Outcome]:
    """Yields what may come of verifying `draft`, a beginning of `guess`, down to what is too unlikely."""
    survival = 1.0
    for place, confidence in enumerate(guess.confidences[: len(draft)]):
        for other, chance in _others(guess, place, 1.0 - confidence):
            yield Outcome((*draft[:place], other), survival * chance)
        survival *= confidence
        if survival < MIN_PROBABILITY:
            return
    behind = list(zip(guess.token_ids, guess.confidences, strict=True))[len(draft) : len(draft) + 1]
    behind += _others(guess, len(draft), 1.0 - sum(chance for _, chance in behind))
    for token_id, chance in behind:
        yield Outcome((*draft, token_id), survival * chance)
    if not behind:
        yield Outcome(draft, survival * UNKNOWN_BONUS, has_bonus=False)


def _others(guess: Guess, place: int, left: float) -> list[tuple[int, float]]:
    """Returns the alternatives at a place, with chances scaled to no more than is left for them."""
    guessed = guess.token_ids[place : place + 1]
    alternatives = guess.alternatives[place] if place < len(guess.alternatives) else ()
    others = [(token_id, chance) for token_id, chance in alternatives if token_id not in guessed]
    total = sum(chance for _, chance in others)
    scale = min(1.0, max(0.0, left) / total) if total > 0 else 0.0
    return [(token_id, chance * scale) for token_id, chance in others]


@dataclass(slots=True)
class InFlight:
    """A sequence, the draft that is verified behind its final tokens, and what the sources guessed there."""

    sequence: RunningSequence
    draft: Tokens
    max_num_tokens: int
    guesses: Mapping[str, Sequence[Guess]] = field(default_factory=dict)

    def best_informed(self) -> Guess:
        """Returns the guess that the draft is from, of several the one that says most of the bonus token."""
        all_guesses = [guess for guesses in self.guesses.values() for guess in guesses]
        fitting = [guess for guess in all_guesses if guess.token_ids[: len(self.draft)] == self.draft]
        # A draft that no source made, such as the grammar's, is forced or nearly so.
        unknown = Guess(self.draft, (1.0,) * len(self.draft))
        return max(
            fitting, key=lambda guess: (len(guess.alternatives), len(guess.token_ids)), default=unknown
        )


@dataclass(slots=True)
class _Plan:
    """What has been asked, or is going to be, for one sequence."""

    sequence: RunningSequence
    max_num_tokens: int
    own_guesses: list[Guess]
    asked: set[Tokens] = field(default_factory=set)

    def serves(self, outcome: Outcome) -> bool:
        """Whether a guess goes on behind the outcome for half of what is useful, or more."""
        num_tokens = len(outcome.token_ids)
        return any(
            guess.token_ids[:num_tokens] == outcome.token_ids
            and 2 * (len(guess.token_ids) - num_tokens) >= self.max_num_tokens
            for guess in self.own_guesses
        )


class Ahead:
    """What one source may draft for a step in flight until `deadline`, when the step should be done."""

    def __init__(
        self,
        source: str,
        in_flight: Sequence[InFlight],
        deadline: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline
        self._clock = clock
        self._order = count()
        # Minus the probability, so that the likeliest is first; then the order of arrival.
        self._heap: list[tuple[float, int, Outcome, _Plan]] = []
        # Questions that are to show what the bonus token may be, with the chance of what they assume.
        self._revealing: dict[tuple[RunningSequence, Tokens], tuple[float, _Plan]] = {}
        for item in in_flight:
            plan = _Plan(item.sequence, item.max_num_tokens, list(item.guesses.get(source, ())))
            self._add(plan, outcomes(item.draft, item.best_informed()))

    @property
    def is_done(self) -> bool:
        """Whether no outcome is left, or no time."""
        return not self._heap or self._clock() >= self._deadline

    def next_questions(self, call_time: CallTime) -> list[Question]:
        """Takes the likeliest outcomes that there is time for. None: it is over."""
        most = min(MAX_BATCH, len(self._heap))
        num_questions = call_time.num_questions_within(self._deadline - self._clock(), most)
        if not num_questions:
            self._heap.clear()
        taken = [heapq.heappop(self._heap) for _ in range(num_questions)]
        return [self._ask(outcome, plan) for _, _, outcome, plan in taken]

    def learn(self, question: Question, guess: Guess) -> None:
        """Plans further where an answer shows what the bonus token may be."""
        probability, plan = self._revealing.pop((question.sequence, question.assumed), (0.0, None))
        if plan is None or not guess.token_ids:
            return
        draft = question.assumed
        known = Guess(
            draft + guess.token_ids,
            (1.0,) * len(draft) + guess.confidences,
            alternatives=((),) * len(draft) + guess.alternatives,
        )
        plan.own_guesses.append(known)
        self._add(plan, outcomes(draft, known), probability)

    def _ask(self, outcome: Outcome, plan: _Plan) -> Question:
        if not outcome.has_bonus:
            probability = outcome.probability / UNKNOWN_BONUS
            self._revealing[plan.sequence, outcome.token_ids] = probability, plan
        return Question(sequence=plan.sequence, assumed=outcome.token_ids, max_num_tokens=plan.max_num_tokens)

    def _add(self, plan: _Plan, found: Iterator[Outcome], probability: float = 1.0) -> None:
        likely = [item for item in found if probability * item.probability >= MIN_PROBABILITY]
        for outcome in sorted(likely, key=lambda item: -item.probability)[:MAX_NUM_OUTCOMES]:
            if outcome.token_ids not in plan.asked and not plan.serves(outcome):
                plan.asked.add(outcome.token_ids)
                rank = -probability * outcome.probability
                heapq.heappush(self._heap, (rank, next(self._order), outcome, plan))
