"""What a step takes: fitted to the steps seen, and surer where more were seen."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.controller.facts import ModelFacts, StepShape
from services.scheduler.controller.overlap import Overlap
from services.scheduler.controller.reading import number
from services.scheduler.controller.shapes_seen import ShapesSeen, sequence_bucket

# Rows beyond this have a price of their own: a prompt says little of what a draft costs.
_MANY_ROWS = 128
# Before anything else is known, of a step's time: itself, rows, rows beyond, sequences, context, experts.
_PRIOR_SHARES = np.array([0.5, 0.15, 0.0, 0.05, 0.05, 0.25])
_RIDGE = 0.3
_MAX_FIT_WEIGHT = 20.0
# What a cell tells of the next one, and the most weight that has.
_NEIGHBOUR = 0.35
_MAX_NEIGHBOUR_WEIGHT = 4.0
_DOUBT = 0.5
# How far off a cell is that nothing is known of, as a part.
_UNKNOWN = 0.3
_TRUSTED_WEIGHT = 4.0
_LEAST_NOISE = 0.02
_NUM_STEPS_PER_FIT = 8
_ERROR_SHARE = 0.02
_SPEED_SHARE = 0.05


class CostModel:
    """Seconds of a step from rows, sequences, context and expected distinct experts.

    A linear law with non-negative prices, fitted by least squares on relative errors to the means of the grid
    of shapes seen; times one plus what each cell takes more or less than the law says (the steps of a tiled
    backend), shared with its neighbours; times the machine's speed of late, which moves all prices alike.
    A step far off what was expected counts only as one at the edge of the noise.
    """

    def __init__(self, model: ModelFacts) -> None:
        self.overlap = Overlap(model)
        self.noise = 0.15  # how far steps are from the prediction, as a part, of late
        self._seen = ShapesSeen()
        self._log_speed = 0.0
        self._num_steps = 0
        self._prices = np.zeros(len(_PRIOR_SHARES))
        self._residual = np.zeros_like(self._seen.weight)
        self._evidence = np.zeros_like(self._seen.weight)
        rows, columns = (_kernel(count) for count in self._seen.weight.shape)
        self._kernels = rows, columns

    @property
    def is_ready(self) -> bool:
        """Whether any step was seen."""
        return bool(self._prices.any())

    def predict(self, shape: StepShape, num_further_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns seconds and their relative standard error with 0, 1, ... further rows; never falling."""
        num_rows = np.arange(shape.num_rows, shape.num_rows + num_further_rows + 1)
        row_prices = self._prices[1:3]
        few = np.minimum(num_rows, _MANY_ROWS)
        seconds = few * row_prices[0] + (num_rows - few) * row_prices[1]
        seconds += self._prices[0] + self._prices[3] * shape.num_sequences
        seconds += self._prices[4] * shape.num_context_tokens
        if self._prices[5]:
            seconds += self._prices[5] * self.overlap.expected(max(1, shape.num_sequences), num_rows)
        cells = self._seen.row_buckets(num_rows), sequence_bucket(shape.num_sequences)
        seconds *= math.exp(self._log_speed) * (1 + self._residual[cells])
        known = self._evidence[cells] / self.noise**2 + 1 / _UNKNOWN**2
        return np.maximum.accumulate(seconds), 1 / np.sqrt(known)

    def note(self, shape: StepShape, seconds: float, num_distinct_experts: Sequence[int]) -> None:
        """Learns from a step."""
        if num_distinct_experts and shape.num_sequences:
            mean = sum(num_distinct_experts) / len(num_distinct_experts)
            self.overlap.note(shape.num_sequences, shape.num_rows, mean)
        cell = self._seen.cell(shape)
        weight, seen = self._seen.weight[cell], seconds / math.exp(self._log_speed)
        anew = False
        if weight >= _TRUSTED_WEIGHT:
            seen = self._note_error(shape, seconds)
        elif self.is_ready:
            # A first step may have been held up; a later one that is much faster takes its place.
            anew = bool(weight) and seen < self._seen.seconds[cell] / 1.5
            seen = min(seen, 3 * self._expected(shape) / math.exp(self._log_speed))
        self._seen.note(cell, shape, seen, anew=anew)
        self._num_steps += 1
        if weight < _TRUSTED_WEIGHT or self._num_steps % _NUM_STEPS_PER_FIT == 0:
            self._fit()

    def _expected(self, shape: StepShape) -> float:
        return float(self.predict(shape, 0)[0][0])

    def _note_error(self, shape: StepShape, seconds: float) -> float:
        """Follows noise and speed; returns the step's time at normal speed, no further off than noise is."""
        expected = self._expected(shape)
        error = seconds / expected - 1
        self.noise += _ERROR_SHARE * (1.25 * min(abs(error), 4 * self.noise) - self.noise)
        self.noise = max(self.noise, _LEAST_NOISE)
        bound = 3 * self.noise
        normal = expected / math.exp(self._log_speed)
        # The speed is pulled back to 1, so that what lasts ends up in the cells.
        self._log_speed += _SPEED_SHARE * min(bound, max(-bound, math.log1p(max(error, -0.9))))
        self._log_speed *= 0.998
        return normal * (1 + min(bound, max(-bound, error)))

    def _fit(self) -> None:
        self._seen.age()
        cells = self._seen.occupied()
        features, seconds = self._features(cells), self._seen.seconds[cells]
        weight = np.minimum(self._seen.weight[cells], _MAX_FIT_WEIGHT)
        self._prices = _fit_prices(features, seconds, weight)
        residual = np.zeros_like(self._residual)
        residual[cells] = seconds / (features @ self._prices) - 1
        self._share(residual)

    def _features(self, cells: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        num_rows, num_sequences, num_context_tokens = self._seen.shape[cells].T
        experts = self.overlap.expected(np.maximum(1, num_sequences), num_rows)
        few = np.minimum(num_rows, _MANY_ROWS)
        columns = [np.ones(len(few)), few, num_rows - few, num_sequences, num_context_tokens, experts]
        return np.stack([np.asarray(column, dtype=float) for column in columns], axis=1)

    def _share(self, residual: np.ndarray) -> None:
        """Smooths the residuals: a cell's own steps first, then its neighbours', then none at all."""
        rows, columns = self._kernels
        weight = self._seen.weight
        lent = np.minimum(weight, _MAX_NEIGHBOUR_WEIGHT)
        own = weight - lent  # the kernels are 1 on their diagonal: a cell lends to itself too
        self._evidence = own + rows @ lent @ columns
        total = own * residual + rows @ (lent * residual) @ columns
        self._residual = total / (self._evidence + _DOUBT)

    def state(self) -> dict[str, Any]:
        """Returns what was learnt."""
        return {"cells": self._seen.state(), "noise": self.noise, "overlap": self.overlap.state()}

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up what was learnt, at a part of its weight."""
        self.noise = number(state, "noise", least=_LEAST_NOISE, most=10)
        self.overlap.restore(state["overlap"], decay)
        self._seen.restore(state, decay)
        if len(self._seen.occupied()[0]):
            self._fit()


def _kernel(count: int) -> np.ndarray:
    places = np.arange(count)
    return _NEIGHBOUR ** np.abs(places[:, None] - places)


def _fit_prices(features: np.ndarray, seconds: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Least squares on relative errors, drawn to the prior shares of the mean step, none negative."""
    mean = np.average(features, axis=0, weights=weight)
    mean_seconds = np.average(seconds, weights=weight)
    scale = np.maximum(mean, 1e-9) / mean_seconds  # prices times this are shares
    relative = features / seconds[:, None] / scale
    matrix = relative.T @ (weight[:, None] * relative)
    vector = relative.T @ weight
    matrix[np.diag_indices_from(matrix)] += _RIDGE
    vector += _RIDGE * _PRIOR_SHARES
    shares = np.zeros(len(vector))
    free = mean > 0
    while free.any():
        shares[:] = 0
        shares[free] = np.linalg.solve(matrix[np.ix_(free, free)], vector[free])
        if shares.min() >= 0:
            break
        free &= shares > 0
    return shares / scale
