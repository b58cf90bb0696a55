"""How a model of the drafter turns logits into drafts: ranked as the target ranks, with its noise.

So its guesses agree with the target's choices as often as they can at any temperature (arXiv 2408.07978).
Only the grammar is left aside: a guess that it forbids is merely wrong. The confidence of a token is its
share against the runner-up alone, p1 / (p1 + p2) of the noised scores.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from torch import Tensor

from outrider.model.sampling import Chain, SamplingState, noised_scores
from outrider.params import SequenceParams
from outrider.rpc.errors import OutriderError
from services.drafter.guess import Alternatives, Guess
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question

# A token that is less likely to be reached and right is not drafted.
MIN_SURVIVAL = 0.2
# The best of each place: the token drafted and its runners-up.
NUM_BEST = 3
NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The tokens that a draft is to follow: a sequence's final ones, then `num_assumed` others."""

    sequence: RunningSequence
    token_ids: array
    num_assumed: int
    max_num_tokens: int

    @classmethod
    def of(cls, question: Question) -> Self:
        """Copies what is asked, in any thread: the sequence grows while one answers."""
        return cls(
            sequence=question.sequence,
            token_ids=question.token_ids,
            num_assumed=len(question.assumed),
            max_num_tokens=question.max_num_tokens,
        )


@dataclass(slots=True, kw_only=True)
class GrowingDraft:
    """A draft that grows token by token, and the state that the text up to its end leads to."""

    state: SamplingState
    max_num_tokens: int
    token_ids: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    alternatives: list[Alternatives] = field(default_factory=list)
    survival: float = 1.0

    @property
    def guess(self) -> Guess:
        """The draft as far as it goes; nothing is known of the place behind it where it was not computed."""
        num_missing = len(self.token_ids) + 1 - len(self.alternatives)
        alternatives = (*self.alternatives, *[()] * num_missing) if self.alternatives else ()
        return Guess(tuple(self.token_ids), tuple(self.confidences), alternatives=alternatives)

    def take(self, token_ids: Sequence[int], scores: Sequence[float]) -> bool:
        """Takes the best token of the next place unless it is doubtful; returns whether to go on."""
        if scores[0] == NEGATIVE_INFINITY:
            return False
        confidence = 1 / (1 + math.exp(scores[1] - scores[0]))
        shares = _shares(scores)
        if self.survival * confidence < MIN_SURVIVAL:
            self.alternatives.append(tuple(zip(token_ids, shares, strict=True)))
            return False
        self.survival *= confidence
        self.token_ids.append(token_ids[0])
        self.confidences.append(confidence)
        self.alternatives.append(tuple(zip(token_ids[1:], shares[1:], strict=True)))
        self.state.append([token_ids[0]])
        return len(self.token_ids) < self.max_num_tokens and token_ids[0] not in self.state.stop_token_ids


def grow(drafts: Sequence[GrowingDraft], logits: Tensor) -> list[bool]:  # [R, V]
    """Takes the next token of each draft, and returns which of them go on."""
    if not drafts:
        return []
    finite = logits.nan_to_num_(neginf=NEGATIVE_INFINITY)
    scores = noised_scores(finite, [Chain(draft.state, []) for draft in drafts])
    values, indices = scores.topk(min(NUM_BEST, scores.shape[1]))
    best = zip(values.tolist(), indices.tolist(), strict=True)
    return [draft.take(*_in_order(*row)) for draft, row in zip(drafts, best, strict=True)]


class SamplingStates:
    """The states that the final tokens of sequences lead to."""

    def __init__(self, *, vocab_size: int, max_model_len: int) -> None:
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        # None: its parameters are not for this model.
        self._states: dict[RunningSequence, SamplingState | None] = {}

    def begin(self, text: Text) -> GrowingDraft | None:
        """Returns the empty draft behind a text; None if none can be made."""
        sequence, token_ids = text.sequence, text.token_ids
        if not token_ids or np.asarray(token_ids).max() >= self._vocab_size:
            return None
        num_final = len(token_ids) - text.num_assumed
        if sequence not in self._states:
            self._states[sequence] = self._new(sequence, token_ids[: sequence.num_prompt_tokens])
        state = self._states[sequence]
        if state is None:
            return None
        state.append(token_ids[state.num_tokens : num_final].tolist())
        branch = state.branch(token_ids[num_final:].tolist())
        has_ended = branch.num_output_tokens > 0 and token_ids[-1] in branch.stop_token_ids
        num_tokens = min(branch.num_tokens_left, text.max_num_tokens)
        return None if has_ended or num_tokens < 1 else GrowingDraft(state=branch, max_num_tokens=num_tokens)

    def forget(self, sequence: RunningSequence) -> None:
        """Lets go of a sequence."""
        self._states.pop(sequence, None)

    def _new(self, sequence: RunningSequence, prompt: array) -> SamplingState | None:
        try:
            params = replace(SequenceParams.from_proto(sequence.params), grammar=None)
            params.sampling.check(vocab_size=self._vocab_size)
        except OutriderError:
            return None
        if params.reasoning_limit is not None and params.reasoning_limit.end_token_id >= self._vocab_size:
            return None
        return SamplingState(params, prompt, len(prompt), max_model_len=self._max_model_len)


def _in_order(scores: list[float], token_ids: list[int]) -> tuple[list[int], list[float]]:
    """Sorts by falling score; of equal ones the lowest token comes first, as it does in the target."""
    pairs = sorted(zip(scores, token_ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return [token_id for _, token_id in pairs], [score for score, _ in pairs]


def _shares(scores: Sequence[float]) -> list[float]:
    """Returns the probability of each score among these."""
    weights = [math.exp(score - scores[0]) for score in scores]
    return [weight / sum(weights) for weight in weights]
