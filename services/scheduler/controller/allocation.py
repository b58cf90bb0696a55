"""How many tokens of each draft are worth verifying: the prefix of the ranked positions that pays most."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Ranked:
    """All positions of all drafts, likeliest to be reached and right first."""

    order: np.ndarray  # [N] indices into the table, row by row
    total: np.ndarray  # [N + 1] expected accepted tokens of the first n
    num_columns: int

    def totals(self, worth: np.ndarray) -> np.ndarray:
        """Returns what the first n positions add up to, by another measure [S, L] of theirs."""
        return _running_total(worth.ravel()[self.order])

    def counts(self, num_positions: int, num_drafts: int) -> np.ndarray:
        """Returns how many tokens of each draft are among the first so many positions."""
        return np.bincount(self.order[:num_positions] // self.num_columns, minlength=num_drafts)


def rank(survival: np.ndarray, num_positions: int) -> Ranked:
    """Ranks positions by survival [S, L], which never rises along a draft and is 0 behind its end.

    Of equal ones the earlier of a draft comes first, so any prefix holds prefixes of drafts.
    """
    flat = survival.ravel()
    order = np.argsort(-flat, kind="stable")[:num_positions]
    return Ranked(order, _running_total(flat[order]), survival.shape[1])


def most_paying(num_base_tokens: float, total: np.ndarray, seconds: np.ndarray) -> int:
    """Returns the n with most expected output tokens per second, the smallest of equal ones.

    `total` and `seconds` are those of 0, 1, ... positions verified; the step yields `num_base_tokens` anyway.
    """
    return int(np.argmax((num_base_tokens + total) / seconds))


def _running_total(values: np.ndarray) -> np.ndarray:
    total = np.zeros(len(values) + 1)
    np.cumsum(values, out=total[1:])
    return total
