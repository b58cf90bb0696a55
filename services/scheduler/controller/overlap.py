"""How many distinct experts a step wakes: tokens share them, and how much is measured."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from services.scheduler.controller.facts import ModelFacts
from services.scheduler.controller.reading import numbers

_FORGETTING = 0.99
_PRIOR_WEIGHT = 0.2
# How far the law itself may be off, as a variance of log n.
_MISFIT = 0.0025


class Overlap:
    """Expects E (1 - (1 - k/E)^n) experts of n independent tokens, and fewer tokens to be independent.

    Of R rows in S sequences n = S^a (R/S)^b are: a says how alike sequences are, b how alike the neighbouring
    tokens of one. Both begin at 1, every token for itself, and follow the measured experts, which are worth
    little where nearly all experts are awake.
    """

    def __init__(self, model: ModelFacts) -> None:
        self._model = model
        self._rate = 0.0  # -log(1 - k/E)
        if 0 < model.num_experts_per_token < model.num_experts:
            self._rate = -math.log1p(-model.num_experts_per_token / model.num_experts)
        # Weighted normal equations for (a, b).
        self._matrix = [_PRIOR_WEIGHT, 0.0, _PRIOR_WEIGHT]
        self._vector = [_PRIOR_WEIGHT, _PRIOR_WEIGHT]
        self.by_sequence, self.by_token = 1.0, 1.0

    def expected(self, num_sequences: int | np.ndarray, num_rows: np.ndarray) -> np.ndarray:
        """Returns the experts woken per layer, for each number of rows; 0 for a dense model."""
        if not self._rate:
            return np.zeros(len(num_rows))
        independent = num_sequences**self.by_sequence * (num_rows / num_sequences) ** self.by_token
        return self._model.num_experts * -np.expm1(-self._rate * independent)

    def note(self, num_sequences: int, num_rows: int, num_distinct: float) -> None:
        """Learns from the mean over the layers of the experts that a step woke."""
        num_experts, num_layers = self._model.num_experts, max(1, self._model.num_moe_layers)
        is_all = num_distinct > num_experts - 0.5
        if not self._rate or num_distinct < self._model.num_experts_per_token or is_all or num_rows <= 1:
            return
        share = num_distinct / num_experts
        exponent = -math.log1p(-share)
        slope = exponent * (1 - share)  # d share / d log n
        variance = share * (1 - share) / (num_experts * num_layers * slope * slope)
        # Where nearly all are awake, how popular some are tells more than how many tokens there are.
        weight = _MISFIT / (_MISFIT * (1 + exponent * exponent) + variance)
        x, y = math.log(num_sequences), math.log(num_rows / num_sequences)
        self._add(x, y, max(0.0, math.log(exponent / self._rate)), weight)

    def _add(self, x: float, y: float, target: float, weight: float) -> None:
        kept = _FORGETTING**weight
        a, b, c = (kept * value for value in self._matrix)
        u, v = (kept * value for value in self._vector)
        fresh = (1 - kept) * _PRIOR_WEIGHT
        self._matrix = [a + weight * x * x + fresh, b + weight * x * y, c + weight * y * y + fresh]
        self._vector = [u + weight * x * target + fresh, v + weight * y * target + fresh]
        self._solve()

    def _solve(self) -> None:
        a, b, c = self._matrix
        u, v = self._vector
        determinant = a * c - b * b
        self.by_sequence = min(1.0, max(0.05, (c * u - b * v) / determinant))
        self.by_token = min(1.0, max(0.05, (a * v - b * u) / determinant))

    def state(self) -> dict[str, Any]:
        """Returns what was learnt."""
        return {"matrix": self._matrix, "vector": self._vector}

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up what was learnt, at a part of its weight."""
        matrix, vector = numbers(state, "matrix", 3), numbers(state, "vector", 2)
        if matrix[0] * matrix[2] - matrix[1] ** 2 <= 0 or matrix[0] <= 0:
            raise ValueError("matrix is not positive")
        prior = (1 - decay) * _PRIOR_WEIGHT
        self._matrix = [decay * matrix[0] + prior, decay * matrix[1], decay * matrix[2] + prior]
        self._vector = [decay * value + prior for value in vector]
        self._solve()
