"""Hidden vectors for the draft head: which rows of a step are wanted, and what is sent of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.model.batch import Tap
from outrider.model.draft_head import FEATURE_DTYPE, FeatureProjection
from services.worker.messages import SequenceFeatures, SequenceStep

# What one step sends. Over it the oldest tokens of a sequence are left out, then whole sequences.
MAX_BYTES = 4 << 20
# Known tokens before these are of little use to a head, and a long prompt has many.
MAX_NUM_KNOWN_TOKENS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TappedRows:
    """Rows of a forward pass that belong to the tokens of a sequence from `offset` on, drafts last."""

    sequence_id: int
    offset: int
    first_row: int
    num_rows: int


def choose_rows(steps: Iterable[tuple[SequenceStep, int]], max_num_rows: int) -> list[TappedRows]:
    """Returns the rows to tap; steps come in the order of their rows, with the number of known tokens."""
    chosen: list[TappedRows] = []
    first_row = 0
    for step, num_known in steps:
        start = max(
            step.num_computed_tokens, num_known - MAX_NUM_KNOWN_TOKENS, step.num_context - max_num_rows
        )
        num_rows = step.num_context - start
        if step.wants_features and num_rows > 0:
            first = first_row + start - step.num_computed_tokens
            chosen.append(
                TappedRows(sequence_id=step.sequence_id, offset=start, first_row=first, num_rows=num_rows)
            )
            max_num_rows -= num_rows
        first_row += step.num_rows
    return chosen


class FeatureTap:
    """Taps a step's forward pass and makes vectors of what is worth sending."""

    def __init__(self, projection: FeatureProjection) -> None:
        self._projection = projection
        self._max_num_rows = MAX_BYTES // (projection.size * FEATURE_DTYPE.itemsize)
        self._chosen: list[TappedRows] = []

    @property
    def size(self) -> int:
        """Elements of a vector."""
        return self._projection.size

    def open(self, steps: Iterable[tuple[SequenceStep, int]]) -> Tap | None:
        """Returns what to tap of the next forward pass; None if nothing is wanted."""
        self._chosen = choose_rows(steps, self._max_num_rows)
        if not self._chosen:
            return None
        rows = [row for part in self._chosen for row in range(part.first_row, part.first_row + part.num_rows)]
        return Tap(rows=torch.tensor(rows), layers=self._projection.layers)

    def read(self, tapped: Tensor, num_kept_tokens: Mapping[int, int]) -> list[SequenceFeatures]:
        """Returns vectors of the tokens that their sequences keep; those without an entry keep none."""
        kept = [(part, num_kept_tokens.get(part.sequence_id, 0) - part.offset) for part in self._chosen]
        parts = tapped.split([part.num_rows for part, _ in kept])
        vectors = self._projection(
            torch.cat([rows[: max(0, n)] for rows, (_, n) in zip(parts, kept, strict=True)])
        )
        data = vectors.cpu().view(torch.uint8).numpy()
        features: list[SequenceFeatures] = []
        first = 0
        for part, num_rows in kept:
            if num_rows > 0:
                rows = data[first : first + num_rows].tobytes()
                features.append(SequenceFeatures(sequence_id=part.sequence_id, offset=part.offset, rows=rows))
                first += num_rows
        return features
