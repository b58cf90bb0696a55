"""Whether a batch keeps the contract: looked at as a whole before anything changes."""

from collections.abc import Mapping

from outrider.rpc.errors import InvalidArgument
from services.worker.messages import Batch, GroupFacts, SequenceStart, SequenceStep
from services.worker.sequence import Sequence


def check_batch(batch: Batch, sequences: Mapping[int, Sequence], facts: GroupFacts) -> None:
    """Raises InvalidArgument, naming the field, for the first thing that is wrong."""
    num_rows = sum(step.num_rows for step in batch.steps)
    if num_rows > facts.max_num_batched_tokens:
        raise InvalidArgument(
            f"the batch has {num_rows} rows, more than {facts.max_num_batched_tokens}",
            field="batch.sequences",
        )
    released = set(batch.released_sequence_ids)
    seen: set[int] = set()
    for index, step in enumerate(batch.steps):
        name = f"batch.sequences[{index}]"
        if step.sequence_id in seen:
            raise InvalidArgument(
                f"sequence {step.sequence_id} is in the batch twice", field=f"{name}.sequence_id"
            )
        seen.add(step.sequence_id)
        known = None if step.sequence_id in released else sequences.get(step.sequence_id)
        _check_step(step, known, facts, name)


def _check_step(step: SequenceStep, known: Sequence | None, facts: GroupFacts, name: str) -> None:
    if step.start is not None:
        if known is not None:
            raise InvalidArgument(f"sequence {step.sequence_id} runs already", field=f"{name}.start")
        _check_start(step.start, facts, f"{name}.start")
        num_tokens, num_blocks = len(step.start.token_ids), 0
    elif known is not None:
        num_tokens, num_blocks = known.num_tokens, len(known.block_ids)
    else:
        raise InvalidArgument(f"sequence {step.sequence_id} was not started", field=f"{name}.start")
    if step.wants_features and not facts.feature_size:
        raise InvalidArgument("there are no hidden vectors to be had", field=f"{name}.wants_features")
    _check_tokens(step, num_tokens, facts, name)
    _check_blocks(step, num_blocks, facts, name)


def _check_start(start: SequenceStart, facts: GroupFacts, name: str) -> None:
    if not 1 <= start.num_prompt_tokens <= len(start.token_ids):
        raise InvalidArgument(
            f"must lie in [1, {len(start.token_ids)}], is {start.num_prompt_tokens}",
            field=f"{name}.num_prompt_tokens",
        )
    _check_token_ids(start.token_ids, facts, f"{name}.token_ids")


def _check_tokens(step: SequenceStep, num_tokens: int, facts: GroupFacts, name: str) -> None:
    if step.num_new_tokens < 1:
        raise InvalidArgument("must be at least 1", field=f"{name}.num_new_tokens")
    num_after = step.num_computed_tokens + step.num_new_tokens
    if num_after > num_tokens:
        raise InvalidArgument(
            f"reaches token {num_after} of {num_tokens} known ones", field=f"{name}.num_new_tokens"
        )
    if step.draft_token_ids and num_after < num_tokens:
        raise InvalidArgument(
            f"a draft needs all {num_tokens} known tokens computed, not {num_after}",
            field=f"{name}.draft_token_ids",
        )
    if step.num_context > facts.max_model_len:
        raise InvalidArgument(
            f"reaches token {step.num_context}, and the model takes {facts.max_model_len}", field=name
        )
    _check_token_ids(step.draft_token_ids, facts, f"{name}.draft_token_ids")


def _check_blocks(step: SequenceStep, num_blocks: int, facts: GroupFacts, name: str) -> None:
    if step.new_block_ids and max(step.new_block_ids) >= facts.num_blocks:
        raise InvalidArgument(
            f"block {max(step.new_block_ids)} is not below {facts.num_blocks}", field=f"{name}.new_block_ids"
        )
    num_slots = (num_blocks + len(step.new_block_ids)) * facts.block_size
    if num_slots < step.num_context:
        raise InvalidArgument(
            f"{step.num_context} tokens do not fit the sequence's {num_slots} slots",
            field=f"{name}.new_block_ids",
        )


def _check_token_ids(token_ids: list[int], facts: GroupFacts, name: str) -> None:
    if token_ids and max(token_ids) >= facts.vocab_size:
        raise InvalidArgument(
            f"token id {max(token_ids)} is not below the vocabulary size {facts.vocab_size}", field=name
        )
