"""What a step takes: fitted to the steps seen, and surer where more were seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.controller import prices
from services.scheduler.controller.facts import ModelFacts, StepShape
from services.scheduler.controller.overlap import Overlap
from services.scheduler.controller.reading import number, table
from services.scheduler.controller.shapes_seen import GRID, ShapesSeen, cell_of, cells_of_rows

# What a cell tells of the next one, and the most weight that has; and the weight of knowing nothing.
_NEIGHBOUR = 0.35
_MAX_NEIGHBOUR_WEIGHT = 4.0
_DOUBT = 0.5
# How far off a cell is that nothing is known of, as a part.
_UNKNOWN = 0.3
_TRUSTED_WEIGHT = 4.0
_LEAST_NOISE = 0.02
# Fits come after every step of a shape that is little known, and else ever more seldom up to this.
_MAX_NUM_STEPS_PER_FIT = 32
_ERROR_SHARE = 0.02
_SPEED_SHARE = 0.05
# Curves are computed for so many rows at least.
_LEAST_NUM_ROWS = 64


@dataclass(frozen=True, slots=True)
class Curve:
    """Steps of one number of sequences with 1, 2, ... rows, at normal speed."""

    seconds: np.ndarray  # without context
    per_context_token: np.ndarray
    doubt: np.ndarray  # relative standard error


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
        self._prices = np.zeros(len(prices.features(*np.zeros((4, 1)))[0]))
        self._residual, self._evidence = np.zeros(GRID), np.zeros(GRID)
        self._kernels = _kernel(GRID[0]), _kernel(GRID[1])
        self._curves: dict[int, Curve] = {}

    @property
    def is_ready(self) -> bool:
        """Whether any step was seen."""
        return bool(self._seen.means)

    def predict(self, shape: StepShape, num_further_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns seconds and their relative standard error with 0, 1, ... further rows; never falling."""
        begin = max(0, shape.num_rows - 1)
        end = begin + num_further_rows + 1
        curve = self._curve(shape.num_sequences, end)
        seconds = curve.seconds[begin:end] + shape.num_context_tokens * curve.per_context_token[begin:end]
        seconds *= math.exp(self._log_speed)
        return np.maximum.accumulate(seconds), curve.doubt[begin:end]

    def expected(self, shape: StepShape) -> float:
        """Returns the seconds of a step of this shape."""
        curve, row = self._curve(shape.num_sequences, shape.num_rows), max(0, shape.num_rows - 1)
        seconds = curve.seconds[row] + shape.num_context_tokens * curve.per_context_token[row]
        return float(seconds) * math.exp(self._log_speed)

    def note(self, shape: StepShape, seconds: float, num_distinct_experts: Sequence[int]) -> None:
        """Learns from a step."""
        if num_distinct_experts and shape.num_sequences:
            mean_experts = sum(num_distinct_experts) / len(num_distinct_experts)
            self.overlap.note(shape.num_sequences, shape.num_rows, mean_experts)
        mean = self._seen.at(cell_of(shape))
        speed = math.exp(self._log_speed)
        is_trusted = mean.weight >= _TRUSTED_WEIGHT
        if is_trusted:
            normal = self._note_error(self.expected(shape), seconds) / speed
        else:
            normal = seconds / speed
            if self._prices.any():
                normal = min(normal, 3 * self.expected(shape) / speed)
            if normal < mean.seconds / 1.5:  # The first one may have been held up: this takes its place.
                mean.weight = 0.0
        mean.add(shape, normal)
        self._num_steps += 1
        if not is_trusted or self._num_steps % min(_MAX_NUM_STEPS_PER_FIT, 1 + self._num_steps // 8) == 0:
            self._fit()

    def _note_error(self, expected: float, seconds: float) -> float:
        """Follows noise and speed; returns the step's time, no further off than noise is."""
        error = seconds / expected - 1
        self.noise += _ERROR_SHARE * (1.25 * min(abs(error), 4 * self.noise) - self.noise)
        self.noise = max(self.noise, _LEAST_NOISE)
        bound = 3 * self.noise
        # The speed is pulled back to 1, so that what lasts ends up in the cells.
        self._log_speed += _SPEED_SHARE * min(bound, max(-bound, math.log1p(max(error, -0.9))))
        self._log_speed *= 0.998
        return expected * (1 + min(bound, max(-bound, error)))

    def _curve(self, num_sequences: int, num_rows: int) -> Curve:
        """Returns the curve up to so many rows at least; it is kept until the next fit."""
        curve = self._curves.get(num_sequences)
        if curve is None or len(curve.seconds) < num_rows:
            most = max(_LEAST_NUM_ROWS, 1 << (num_rows - 1).bit_length())
            curve = self._curves[num_sequences] = self._draw(num_sequences, most)
        return curve

    def _draw(self, num_sequences: int, num_rows: int) -> Curve:
        rows = np.arange(1.0, num_rows + 1)
        sequences, zeros = np.full(num_rows, float(num_sequences)), np.zeros(num_rows)
        # A prompt's row less than one per sequence does not make a token less independent than it is.
        experts = self.overlap.expected(np.clip(rows, 1, max(1, num_sequences)), rows)
        seconds = prices.features(rows, sequences, zeros, experts) @ self._prices
        cells = cells_of_rows(num_rows, num_sequences)
        factor = 1 + self._residual[cells]
        known = self._evidence[cells] / self.noise**2 + 1 / _UNKNOWN**2
        return Curve(seconds * factor, self._prices[prices.CONTEXT] * factor, 1 / np.sqrt(known))

    def _fit(self) -> None:
        self._seen.age()
        self._curves = {}
        if not self._seen.means:
            return
        cells, (weight, seconds, num_rows, num_sequences, num_context_tokens) = self._seen.arrays()
        experts = self.overlap.expected(np.maximum(1, num_sequences), num_rows)
        features = prices.features(num_rows, num_sequences, num_context_tokens, experts)
        self._prices = prices.fit(features, seconds, weight)
        weights, residual = np.zeros(GRID), np.zeros(GRID)
        weights[cells] = weight
        residual[cells] = seconds / (features @ self._prices) - 1
        self._share(weights, residual)

    def _share(self, weight: np.ndarray, residual: np.ndarray) -> None:
        """Smooths the residuals: a cell's own steps first, then its neighbours', then none at all."""
        rows, columns = self._kernels
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
        self.overlap.restore(table(state, "overlap"), decay)
        self._seen.restore(state, decay)
        self._fit()


def _kernel(count: int) -> np.ndarray:
    places = np.arange(count)
    return _NEIGHBOUR ** np.abs(places[:, None] - places)
