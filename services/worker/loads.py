"""How many tokens chose each expert lately: what the placement is improved by."""

import numpy as np
from numpy.typing import NDArray

from outrider.model.placement import Loads

WINDOW_TOKENS = 1 << 17
"""Tokens that count; beyond, all of them count half. By 8 of 384 experts each is chosen some 3,000 times."""


class LoadWindow:
    """Counts rows that were kept; only for the thread that steps the model."""

    def __init__(self, num_layers: int, num_experts: int) -> None:
        self.loads: Loads = np.zeros((num_layers, num_experts))
        self.num_tokens = 0.0

    def restore(self, loads: Loads, num_tokens: float) -> None:
        """Begins with what was counted before."""
        self.loads, self.num_tokens = loads.copy(), num_tokens

    def add(self, chosen: NDArray[np.integer], rows: NDArray[np.int64]) -> None:
        """Counts the experts [L, T, A] that these of the T rows chose."""
        num_layers, num_experts = self.loads.shape
        firsts = np.arange(num_layers)[:, None, None] * num_experts
        of_rows = (chosen[:, rows] + firsts).ravel()
        counts = np.bincount(of_rows, minlength=num_layers * num_experts)
        self.count(counts.reshape(num_layers, num_experts), len(rows))

    def count(self, loads: NDArray[np.integer], num_tokens: int) -> None:
        """Counts how often tokens chose each expert [L, E]."""
        self.loads += loads
        self.num_tokens += num_tokens
        if self.num_tokens > WINDOW_TOKENS:
            self.loads /= 2
            self.num_tokens /= 2
