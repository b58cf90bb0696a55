"""The prices of a step's parts, fitted to the mean steps of all shapes seen."""

import numpy as np

# Rows beyond this have a price of their own: a prompt says little of what a draft costs.
MANY_ROWS = 128
STEP, ROWS, MANY, SEQUENCES, CONTEXT, EXPERTS = range(6)
# Before anything else is known, the parts of a step's time.
_PRIOR_SHARES = np.array([0.5, 0.15, 0.0, 0.05, 0.05, 0.25])
_RIDGE = 0.3
# Whatever was measured, no step takes no time.
_LEAST_STEP_SHARE = 0.02
_MAX_WEIGHT = 20.0


def features(
    num_rows: np.ndarray, num_sequences: np.ndarray, num_context_tokens: np.ndarray, num_experts: np.ndarray
) -> np.ndarray:
    """Returns what each price is multiplied by: [steps, prices]."""
    few = np.minimum(num_rows, MANY_ROWS)
    ones = np.ones(len(few))
    return np.stack([ones, few, num_rows - few, num_sequences, num_context_tokens, num_experts], axis=1)


def fit(features: np.ndarray, seconds: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Least squares on relative errors, drawn to the prior shares of the mean step, none negative."""
    weight = np.minimum(weight, _MAX_WEIGHT)
    mean = weight @ features / weight.sum()
    mean_seconds = weight @ seconds / weight.sum()
    scale = np.maximum(mean, 1e-9) / mean_seconds  # prices times this are shares of the mean step
    relative = features / seconds[:, None] / scale
    matrix = relative.T @ (weight[:, None] * relative) + _RIDGE * np.eye(len(scale))
    vector = weight @ relative + _RIDGE * _PRIOR_SHARES
    shares = np.zeros(len(scale))
    free = np.flatnonzero(mean > 0)
    while len(free):
        solved = np.linalg.solve(matrix[np.ix_(free, free)], vector[free])
        if solved.min() >= 0:
            shares[free] = solved
            break
        free = free[solved > 0]
    shares[STEP] = max(shares[STEP], _LEAST_STEP_SHARE)
    return shares / scale
