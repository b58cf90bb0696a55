"""The sequences that run in a step, and the rows that they become."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from outrider.model.batch import ForwardBatch, Span, Tap
from outrider.model.sampling import Output, SamplingState
from outrider.rpc.errors import OutriderError
from services.worker.messages import SequenceStep
from services.worker.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """A sequence that runs in this step."""

    step: SequenceStep
    sequence: Sequence
    state: SamplingState

    @property
    def chooses(self) -> bool:
        """Whether the step computes the last known token, so that tokens are chosen."""
        return self.step.num_computed_tokens + self.step.num_new_tokens == self.state.num_tokens

    def num_kept_tokens(self, outcomes: Mapping[int, Output | OutriderError]) -> int:
        """How many tokens are right and in its blocks after the step; a sequence that failed keeps none."""
        outcome = outcomes.get(self.step.sequence_id)
        if isinstance(outcome, OutriderError):
            return 0
        num_accepted = 0 if outcome is None else outcome.num_accepted_tokens
        return self.step.num_computed_tokens + self.step.num_new_tokens + num_accepted


def kept_rows(parts: list[Part], outcomes: Mapping[int, Output | OutriderError]) -> NDArray[np.int64]:
    """The rows of a step whose tokens are right: not those of drafts that were rejected."""
    rows: list[int] = []
    first = 0
    for part in parts:
        num_kept = part.num_kept_tokens(outcomes) - part.step.num_computed_tokens
        rows += range(first, first + num_kept)
        first += part.step.num_rows
    return np.array(rows, dtype=np.int64)


def forward_batch(parts: list[Part], block_size: int, tap: Tap | None) -> ForwardBatch:
    """Lays the rows of all sequences one after another."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    spans: list[Span] = []
    logit_rows: list[int] = []
    for part in parts:
        step, blocks = part.step, part.sequence.block_ids
        first, start = len(token_ids), step.num_computed_tokens
        token_ids += part.state.token_ids[start : start + step.num_new_tokens].tolist()
        token_ids += step.draft_token_ids
        rows = range(start, step.num_context)
        positions += rows
        slots += [blocks[row // block_size] * block_size + row % block_size for row in rows]
        num_blocks = -(-step.num_context // block_size)
        spans.append(
            Span(
                first_row=first,
                num_rows=step.num_rows,
                num_context=step.num_context,
                block_ids=blocks[:num_blocks],
            )
        )
        if part.chooses:
            logit_rows += range(first + step.num_new_tokens - 1, first + step.num_rows)
    return ForwardBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        spans=tuple(spans),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
        tap=tap,
    )
