"""The distinct tokens of a sequence and how often each is in its output: what penalties need."""

from typing import Self

import numpy as np


class TokenCounts:
    """Counts by token, as two parallel arrays so that a step touches only tokens that were seen.

    A token of the prompt that is not in the output counts zero times but is there.
    """

    __slots__ = ("_counts", "_size", "_slots", "_token_ids")

    def __init__(self, prompt_token_ids: np.ndarray) -> None:
        distinct = np.unique(prompt_token_ids)
        self._size = len(distinct)
        self._slots: dict[int, int] = {int(token_id): slot for slot, token_id in enumerate(distinct)}
        self._token_ids = np.zeros(max(2 * self._size, 64), dtype=np.int64)
        self._token_ids[: self._size] = distinct
        self._counts = np.zeros(len(self._token_ids), dtype=np.float32)

    def copy(self) -> Self:
        """Returns counts that grow apart from these."""
        other = object.__new__(type(self))
        other._size, other._slots = self._size, dict(self._slots)
        other._token_ids, other._counts = self._token_ids.copy(), self._counts.copy()
        return other

    def add(self, token_id: int) -> None:
        """Counts a token of the output once more."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = self._size
            self._reserve()
            self._token_ids[slot] = token_id
            self._counts[slot] = 0
            self._size += 1
        self._counts[slot] += 1

    def with_drafts(self, draft_token_ids: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns tokens and counts now and after each draft token; the counts themselves stay."""
        first = (self._token_ids[: self._size], self._counts[: self._size])
        if not draft_token_ids:
            return [first]
        steps = [(first[0].copy(), first[1].copy())]
        for token_id in draft_token_ids:
            token_ids, counts = steps[-1]
            (slots,) = np.nonzero(token_ids == token_id)
            if len(slots):
                counts = counts.copy()
                counts[slots[0]] += 1
            else:
                token_ids, counts = np.append(token_ids, token_id), np.append(counts, np.float32(1))
            steps.append((token_ids, counts))
        return steps

    def _reserve(self) -> None:
        if self._size == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
