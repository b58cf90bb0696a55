"""The shapes of steps that were seen, and how long each took: a grid of rows by sequences."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.scheduler.controller.facts import StepShape
from services.scheduler.controller.reading import numbers

# Upper ends of the buckets. Rows are computed in tiles of 16, so no bucket holds both sides of a tile's end.
ROW_ENDS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    4096,
)
SEQUENCE_ENDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GRID = len(ROW_ENDS) + 1, len(SEQUENCE_ENDS) + 1
# A cell is a mean over about so many steps of late.
_MAX_WEIGHT = 100.0
# Cells that are not seen any more count less with every fit, and are forgotten in the end.
_AGEING = 0.998
_LEAST_WEIGHT = 0.05

Cell = tuple[int, int]


@dataclass(slots=True)
class Mean:
    """The mean of the steps of one cell."""

    weight: float = 0.0
    seconds: float = 0.0
    num_rows: float = 0.0
    num_sequences: float = 0.0
    num_context_tokens: float = 0.0

    def add(self, shape: StepShape, seconds: float) -> None:
        """Takes in a step."""
        self.weight = min(self.weight, _MAX_WEIGHT - 1) + 1
        share = 1 / self.weight
        self.seconds += share * (seconds - self.seconds)
        self.num_rows += share * (shape.num_rows - self.num_rows)
        self.num_sequences += share * (shape.num_sequences - self.num_sequences)
        self.num_context_tokens += share * (shape.num_context_tokens - self.num_context_tokens)

    def values(self) -> list[float]:
        """Returns weight, seconds, rows, sequences and context."""
        return [self.weight, self.seconds, self.num_rows, self.num_sequences, self.num_context_tokens]


class ShapesSeen:
    """Means per cell, each of as much weight as the steps behind it, up to a limit.

    So a shape that is seldom seen is not forgotten for one that is seen all the time, and neither do a
    thousand steps of one shape outweigh the rest.
    """

    def __init__(self) -> None:
        self.means: dict[Cell, Mean] = {}

    def at(self, cell: Cell) -> Mean:
        """Returns the mean of a cell, a new one if it was not seen."""
        mean = self.means.get(cell)
        if mean is None:
            mean = self.means[cell] = Mean()
        return mean

    def age(self) -> None:
        """Lets every cell count a little less."""
        for cell, mean in list(self.means.items()):
            mean.weight *= _AGEING
            if mean.weight < _LEAST_WEIGHT:
                del self.means[cell]

    def arrays(self) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Returns the places of all cells in the grid, and their values: [values, cells]."""
        rows, columns = np.array(list(self.means)).T
        return (rows, columns), np.array([mean.values() for mean in self.means.values()]).T

    def state(self) -> list[list[float]]:
        """Returns all cells."""
        return [[*cell, *mean.values()] for cell, mean in self.means.items()]

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up cells, at a part of their weight."""
        cells = state.get("cells")
        if not isinstance(cells, list):
            raise ValueError("cells is not a list")
        for item in cells:
            row, column, weight, *values = numbers({"cell": item}, "cell", 7, least=0)
            if row >= GRID[0] or column >= GRID[1] or row % 1 or column % 1 or min(values[:3]) <= 0:
                raise ValueError(f"cell {item} is out of the grid")
            self.means[int(row), int(column)] = Mean(decay * min(weight, _MAX_WEIGHT), *values)


def cell_of(shape: StepShape) -> Cell:
    """Returns where a shape belongs."""
    return bisect_left(ROW_ENDS, shape.num_rows), bisect_left(SEQUENCE_ENDS, shape.num_sequences)


def cells_of_rows(num_rows: int, num_sequences: int) -> tuple[np.ndarray, int]:
    """Returns where 1, 2, ... rows of so many sequences belong."""
    ends = np.minimum(ROW_ENDS, num_rows)
    counts = np.diff(ends, prepend=0, append=num_rows)
    return np.repeat(np.arange(GRID[0]), counts), bisect_left(SEQUENCE_ENDS, num_sequences)
