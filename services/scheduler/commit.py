"""What the answer to a step makes of one sequence."""

from dataclasses import dataclass

from outrider.rpc.errors import Internal, OutriderError
from services.scheduler.batch import SequenceOutput, SequenceStep
from services.scheduler.sequence import Draft, FinishReason, Sequence

# Forced tokens are nearly certain; only where the model spells the same bytes otherwise are they wrong.
GRAMMAR_CONFIDENCE = 0.95


@dataclass(slots=True, kw_only=True)
class Advance:
    """How far a sequence came in one step."""

    num_charged_tokens: int
    num_output_tokens: int = 0
    num_accepted_tokens: int = 0
    num_verified_tokens: int = (
        0  # draft tokens of which it is known whether they were right or behind a wrong one
    )
    end: FinishReason | OutriderError | None = None


def commit(step: SequenceStep, output: SequenceOutput | None, vocab_size: int) -> Advance:
    """Counts the computed rows and appends the chosen tokens.

    A tenant pays for rows computed for the first time, for drafts and for output; not for what came from the
    cache or is computed again. What a resumed sequence brings along is anybody's word, so it pays for those
    rows that the cache does not have: few, where it ran before.
    """
    sequence = step.sequence
    chooses, num_charged_before = step.chooses, sequence.num_charged_tokens
    sequence.num_computed_tokens = step.num_tokens_after
    num_rows = max(0, step.num_tokens_after - num_charged_before) + len(step.draft_token_ids)
    advance = Advance(num_charged_tokens=num_rows)
    # A sequence with wrong parameters fails in its first step, whether that chooses a token or not.
    if chooses or (output is not None and output.failure is not None):
        advance.end = fault(step, output, vocab_size)
        if advance.end is None and output is not None:
            _append(step, output, advance)
    sequence.num_charged_tokens = max(num_charged_before, sequence.num_computed_tokens)
    return advance


def fault(step: SequenceStep, output: SequenceOutput | None, vocab_size: int) -> OutriderError | None:
    """Returns why an answer cannot be used: the group failed the sequence, or broke the contract."""
    if output is None or not (output.token_ids or output.failure or output.is_grammar_complete):
        return Internal("the group chose no token")
    if output.failure is not None:
        return output.failure
    num_accepted = output.num_accepted_tokens
    if num_accepted > len(step.draft_token_ids) or (
        tuple(step.draft_token_ids[:num_accepted]) != output.token_ids[:num_accepted]
    ):
        return Internal("the group accepted tokens that were not drafted")
    if max(output.token_ids, default=0) >= vocab_size:
        return Internal("the group chose a token outside the vocabulary")
    return None


def _append(step: SequenceStep, output: SequenceOutput, advance: Advance) -> None:
    sequence = step.sequence
    count = sequence.commit(output.token_ids, is_grammar_complete=output.is_grammar_complete)
    num_accepted = min(output.num_accepted_tokens, count)
    # Accepted drafts are tokens of the sequence now, and their rows were computed in this step.
    sequence.num_computed_tokens += num_accepted
    sequence.unsent_logprobs.extend(output.logprobs[:count])
    sequence.offers = _forced(output.forced_token_ids, sequence) if output.forced_token_ids else {}
    if step.offer is not None:
        sequence.count_draft(step.offer.source, len(step.draft_token_ids), num_accepted)
    # An output that ended with an accepted draft says nothing of the tokens drafted behind.
    advance.num_verified_tokens = num_accepted if count == num_accepted else len(step.draft_token_ids)
    advance.num_output_tokens = count
    advance.num_accepted_tokens = num_accepted
    advance.num_charged_tokens += count
    advance.end = sequence.end


def _forced(token_ids: tuple[int, ...], sequence: Sequence) -> dict[str, Draft]:
    """Returns the tokens that a grammar forces next as a draft."""
    token_ids = token_ids[: max(0, sequence.num_useful_draft_tokens)]
    if not token_ids:
        return {}
    confidences = (GRAMMAR_CONFIDENCE,) * len(token_ids)
    draft = Draft(
        base_length=sequence.num_tokens, token_ids=token_ids, confidences=confidences, source="grammar"
    )
    return {draft.source: draft}
