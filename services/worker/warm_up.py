"""Steps of no consequence, run at start: what kernels and libraries do once, no request waits for."""

from collections.abc import Iterator
from dataclasses import replace

from outrider.params import SamplingParams, SequenceParams
from services.worker.messages import Batch, GroupFacts, SequenceStart, SequenceStep

SAMPLINGS = (
    SamplingParams(temperature=0),
    SamplingParams(top_k=2),
    SamplingParams(top_p=0.9),
    SamplingParams(min_p=0.1),
)
"""Together they need every kernel that chooses tokens."""


def edited(sampling: SamplingParams) -> SamplingParams:
    """The same with every kind of edit of the scores, and log-probabilities."""
    return replace(
        sampling,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={0: 1.0},
        bad_words=((0,),),
        num_logprobs=1,
    )


def small_batches(facts: GroupFacts) -> Iterator[Batch]:
    """Yields a step of every sampling, then one of all with edits."""
    for samplings in (SAMPLINGS, [edited(sampling) for sampling in SAMPLINGS]):
        yield Batch(step_id=0, steps=[_step(n, sampling, 1, facts) for n, sampling in enumerate(samplings)])


def largest_batch(facts: GroupFacts) -> Batch:
    """A step of the most rows, of which each chooses a token among edited scores: none takes more memory."""
    sampling = edited(SamplingParams(top_k=2, top_p=0.9, min_p=0.1))
    size, most = facts.max_num_batched_tokens, min(facts.max_num_batched_tokens, facts.max_model_len)
    sizes = [min(most, size - first) for first in range(0, size, most)]
    return Batch(step_id=0, steps=[_step(n, sampling, rows, facts) for n, rows in enumerate(sizes)])


def _step(sequence_id: int, sampling: SamplingParams, num_rows: int, facts: GroupFacts) -> SequenceStep:
    """A sequence of one token and drafts, whose blocks are all the first: rows lie one over the other."""
    params = SequenceParams(sampling=sampling).to_proto()
    return SequenceStep(
        sequence_id=sequence_id,
        start=SequenceStart(token_ids=[0], num_prompt_tokens=1, params=params),
        num_computed_tokens=0,
        num_new_tokens=1,
        draft_token_ids=[0] * (num_rows - 1),
        new_block_ids=[0] * -(-num_rows // facts.block_size),
        wants_features=facts.feature_size > 0,
    )
