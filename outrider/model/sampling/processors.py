"""From logits to scores: penalties, bias, bans, grammar masks and forced tokens, in that order.

Every edit is elementwise and touches only the tokens it names, so a row's scores never depend on other rows.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from outrider.model.sampling.state import SamplingState
from outrider.model.transfer import to_device

NEGATIVE_INFINITY = float("-inf")


@dataclass(frozen=True, slots=True)
class Chain:
    """A sequence and its draft: one row of logits after its last token, one after each draft token."""

    state: SamplingState
    draft: list[int]

    @property
    def num_rows(self) -> int:
        """How many rows of logits belong to it."""
        return len(self.draft) + 1


@dataclass(slots=True)
class _Entries:
    """Entries of the scores matrix, gathered over rows."""

    rows: list[int] = field(default_factory=list)
    token_ids: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, row: int, token_ids: np.ndarray, values: np.ndarray) -> None:
        self.rows.append(row)
        self.token_ids.append(token_ids)
        self.values.append(values)

    def on(self, device: torch.device, *columns: np.ndarray) -> tuple[Tensor, ...]:
        """Returns row, token and value of every entry, and other columns, after one copy."""
        rows = np.repeat(np.array(self.rows, dtype=np.int64), [len(ids) for ids in self.token_ids])
        arrays = (rows, np.concatenate(self.token_ids), np.concatenate(self.values), *columns)
        return to_device(tuple(torch.from_numpy(array) for array in arrays), device)


def process(scores: Tensor, chains: list[Chain]) -> None:  # [R, V]
    """Turns logits into scores in place, all but the division by temperature; rows follow the chains."""
    firsts = np.cumsum([0] + [chain.num_rows for chain in chains]).tolist()
    edited = [
        (first, chain) for first, chain in zip(firsts, chains, strict=False) if not chain.state.is_plain
    ]
    _apply_penalties(scores, edited)
    _apply_bias(scores, edited)
    _apply_bans(scores, edited)
    _apply_grammars(scores, edited)


def _apply_penalties(scores: Tensor, edited: list[tuple[int, Chain]]) -> None:
    entries = _Entries()
    penalties: list[tuple[float, float, float]] = []
    for first, chain in edited:
        if chain.state.counts is None:
            continue
        sampling = chain.state.sampling
        for row, (token_ids, counts) in enumerate(chain.state.counts.with_drafts(chain.draft), start=first):
            entries.add(row, token_ids, counts)
            penalties.append(
                (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
            )
    if not entries.rows:
        return
    table = np.repeat(np.array(penalties, dtype=np.float32), [len(ids) for ids in entries.token_ids], axis=0)
    rows, token_ids, counts, *weights = entries.on(scores.device, *table.T.copy())
    repetition, frequency, presence = weights
    values = scores[rows, token_ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    scores[rows, token_ids] = values - frequency * counts - presence * (counts > 0)


def _apply_bias(scores: Tensor, edited: list[tuple[int, Chain]]) -> None:
    entries = _Entries()
    for first, chain in edited:
        if chain.state.sampling.logit_bias:
            for row in range(first, first + chain.num_rows):
                entries.add(row, *chain.state.bias)
    if entries.rows:
        rows, token_ids, biases = entries.on(scores.device)
        scores[rows, token_ids] += biases


def _apply_bans(scores: Tensor, edited: list[tuple[int, Chain]]) -> None:
    entries = _Entries()
    for first, chain in edited:
        if chain.state.sampling.bad_words or chain.state.sampling.min_tokens:
            for length in range(chain.num_rows):
                banned = np.array(chain.state.banned_after(chain.draft[:length]), dtype=np.int64)
                entries.add(first + length, banned, np.full(len(banned), NEGATIVE_INFINITY, np.float32))
    if entries.rows:
        rows, token_ids, bans = entries.on(scores.device)
        scores[rows, token_ids] = bans


def _apply_grammars(scores: Tensor, edited: list[tuple[int, Chain]]) -> None:
    """Masks what the grammar forbids, and forces the end of reasoning where the grammar allows it."""
    for first, chain in edited:
        forbidden = np.zeros((0, scores.shape[-1]), dtype=bool)
        if chain.state.grammar is not None:
            forbidden = chain.state.grammar.forbidden_along(
                chain.draft, scores.shape[-1]
            )  # [n, V], n <= rows
            mask = to_device(torch.from_numpy(forbidden), scores.device)
            scores[first : first + len(mask)].masked_fill_(mask, NEGATIVE_INFINITY)
        _apply_forced(scores, first, chain, forbidden)


def _apply_forced(scores: Tensor, first: int, chain: Chain, forbidden: np.ndarray) -> None:
    limit = chain.state.params.reasoning_limit
    if limit is None:
        return
    for length in range(chain.num_rows):
        is_allowed = length >= len(forbidden) or not forbidden[length, limit.end_token_id]
        if is_allowed and chain.state.is_forced_to_end_reasoning(chain.draft[:length]):
            # The score of the forced token itself no longer matters, banned or not.
            scores[first + length] = NEGATIVE_INFINITY
            scores[first + length, limit.end_token_id] = 0
