"""The calibration of confidences in numpy, slow and obvious: what the native one must agree with."""

from collections.abc import Sequence

import numpy as np

PHASES = ("text", "thinking", "answer", "tool_arguments")
PRIOR = np.array([-0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.0])
PRIOR_PRECISION = np.diag([0.5, 6.0, 3.0, 3.0, 3.0, 3.0, 6.0, 6.0])
MEMORY = 3000.0


def terms_of(confidences: Sequence[float], match_length: int, phase: str, recent: float) -> np.ndarray:
    """Returns the terms of each token: [tokens, terms].

    1, log match length, a term for each phase but the first, the sequence's recent acceptance; logit, log
    position.
    """
    bounded = np.clip(confidences, 0.01, 0.99)
    count = len(bounded)
    match = np.log2(min(match_length, 64) + 1) / 3 - 1
    draft = [1.0, match, *[float(phase == other) for other in PHASES[1:]], recent]
    token = np.stack([np.log(bounded / (1 - bounded)), np.log(np.arange(1, count + 1))], axis=1)
    return np.concatenate([np.tile(draft, (count, 1)), token], axis=1)


class Fit:
    """One source's logistic fit."""

    def __init__(self) -> None:
        self.weights, self.precision = PRIOR, PRIOR_PRECISION

    def chances(self, terms: np.ndarray) -> np.ndarray:
        """Returns the chance of each token if those before it are right."""
        return 1 / (1 + np.exp(-terms @ self.weights))

    def learn(self, terms: np.ndarray, is_right: np.ndarray) -> None:
        """Takes one Newton step on what was seen, what is known, and the prior for what is forgotten."""
        kept = (1 - 1 / MEMORY) ** len(terms)
        chance = self.chances(terms)
        curvature = np.maximum(chance * (1 - chance), 0.01)
        self.precision = kept * self.precision + terms.T @ np.diag(curvature) @ terms
        self.precision += (1 - kept) * PRIOR_PRECISION
        slope = terms.T @ (is_right - chance) - (1 - kept) * PRIOR_PRECISION @ (self.weights - PRIOR)
        self.weights = np.clip(self.weights + np.linalg.solve(self.precision, slope), -8, 8)
