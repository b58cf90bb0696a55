"""Hidden vectors for the draft head: which rows of a step are wanted, and what is sent of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.model.batch import Tap
from outrider.model.draft_head import FEATURE_DTYPE, FeatureProjection
from services.worker.messages import SequenceFeatures, SequenceStep

# What one step sends. It is shared evenly: over it the oldest tokens of those that have most are left out.
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
    """Returns the rows to tap; steps come in the order of their rows, with the number of known tokens.

    Drafts are tapped beside the limit: most of them may be wrong, and then nothing of them is sent.
    """
    chosen: list[tuple[SequenceStep, int, int]] = []  # step, its first row, known tokens worth sending
    first_row = 0
    for step, num_known in steps:
        num_after = step.num_context - len(step.draft_token_ids)
        num_worth = num_after - max(step.num_computed_tokens, num_known - MAX_NUM_KNOWN_TOKENS)
        if step.wants_features and num_worth > 0:
            chosen.append((step, first_row, num_worth))
        first_row += step.num_rows
    shares = fair_shares([num_worth for _, _, num_worth in chosen], max_num_rows)
    tapped: list[TappedRows] = []
    for (step, first, _), share in zip(chosen, shares, strict=True):
        num_rows = share + len(step.draft_token_ids)
        offset = step.num_context - num_rows
        if share:
            first += offset - step.num_computed_tokens
            tapped.append(
                TappedRows(sequence_id=step.sequence_id, offset=offset, first_row=first, num_rows=num_rows)
            )
    return tapped


def fair_shares(wanted: Sequence[int], total: int) -> list[int]:
    """Returns what each gets of `total`: who wants little all of it, the others as much as each other.

    Where there is not even one for each, the same get none every time: to a head gaps are worth nothing.
    """
    shares = [0] * len(wanted)
    for num_before, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], total // (len(wanted) - num_before))
        total -= shares[index]
    return shares


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

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that vectors are made of."""
        return self._projection.layers

    def open(self, steps: Iterable[tuple[SequenceStep, int]]) -> Tap | None:
        """Returns what to tap of the next forward pass; None if nothing is wanted."""
        self._chosen = choose_rows(steps, self._max_num_rows)
        if not self._chosen:
            return None
        rows = [row for part in self._chosen for row in range(part.first_row, part.first_row + part.num_rows)]
        return Tap(rows=torch.tensor(rows), layers=self._projection.layers)

    def read(self, tapped: Tensor, num_kept_tokens: Mapping[int, int]) -> list[SequenceFeatures]:
        """Returns vectors of the tokens that their sequences keep; those without an entry keep none."""
        kept = [
            min(max(0, num_kept_tokens.get(part.sequence_id, 0) - part.offset), part.num_rows)
            for part in self._chosen
        ]
        shares = fair_shares(kept, self._max_num_rows)
        parts = tapped.split([part.num_rows for part in self._chosen])
        rows = [part[num - share : num] for part, num, share in zip(parts, kept, shares, strict=True)]
        data = self._projection(torch.cat(rows)).cpu().view(torch.uint8).numpy()
        features: list[SequenceFeatures] = []
        first = 0
        for part, num, share in zip(self._chosen, kept, shares, strict=True):
            if share:
                offset, rows = part.offset + num - share, data[first : first + share].tobytes()
                features.append(SequenceFeatures(sequence_id=part.sequence_id, offset=offset, rows=rows))
                first += share
        return features
