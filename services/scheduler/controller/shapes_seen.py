"""The shapes of steps that were seen, and how long each took: a grid of rows by sequences."""

from collections.abc import Mapping
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
# A cell is a mean over about so many steps of late.
_MAX_WEIGHT = 100.0
# Cells that are not seen any more count less with every fit.
_AGEING = 0.998
_LEAST_WEIGHT = 0.05
_NUM_FIELDS = 4


class ShapesSeen:
    """Means per cell, each of as much weight as the steps behind it, up to a limit.

    So a shape that is seldom seen is not forgotten for one that is seen all the time, and neither do a
    thousand steps of one shape outweigh the rest.
    """

    def __init__(self) -> None:
        size = (len(ROW_ENDS) + 1, len(SEQUENCE_ENDS) + 1)
        self._row_buckets = np.searchsorted(ROW_ENDS, np.arange(ROW_ENDS[-1] + 2))
        self.weight = np.zeros(size)
        self.seconds = np.zeros(size)
        self.shape = np.zeros((*size, _NUM_FIELDS - 1))  # mean rows, sequences, context

    def row_buckets(self, num_rows: np.ndarray) -> np.ndarray:
        """Returns the bucket of each number of rows."""
        return self._row_buckets[np.minimum(num_rows, ROW_ENDS[-1] + 1)]

    def cell(self, shape: StepShape) -> tuple[int, int]:
        """Returns where a shape belongs."""
        row = int(self._row_buckets[min(shape.num_rows, ROW_ENDS[-1] + 1)])
        return row, sequence_bucket(shape.num_sequences)

    def note(self, cell: tuple[int, int], shape: StepShape, seconds: float, *, anew: bool = False) -> None:
        """Takes a step into the mean of its cell, or begins that anew."""
        weight = 0.0 if anew else self.weight[cell]
        self.weight[cell] = weight = min(weight, _MAX_WEIGHT - 1) + 1
        self.seconds[cell] += (seconds - self.seconds[cell]) / weight
        means = self.shape[cell]
        means += ((shape.num_rows, shape.num_sequences, shape.num_context_tokens) - means) / weight

    def age(self) -> None:
        """Lets every cell count a little less."""
        self.weight *= _AGEING

    def occupied(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows and columns of the cells that count."""
        rows, columns = np.nonzero(self.weight > _LEAST_WEIGHT)
        return rows, columns

    def state(self) -> list[list[float]]:
        """Returns the cells that count."""
        cells = self.occupied()
        figures = np.column_stack([*cells, self.weight[cells], self.seconds[cells], self.shape[cells]])
        return figures.tolist()

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up cells, at a part of their weight."""
        cells = state.get("cells")
        if not isinstance(cells, list):
            raise ValueError("cells is not a list")
        for item in cells:
            row, column, weight, seconds, *means = numbers(
                {"cell": item}, "cell", 4 + _NUM_FIELDS - 1, least=0
            )
            cell = int(row), int(column)
            if cell[0] > len(ROW_ENDS) or cell[1] > len(SEQUENCE_ENDS) or not seconds:
                raise ValueError(f"cell {item} is out of the grid")
            self.weight[cell] = decay * min(weight, _MAX_WEIGHT)
            self.seconds[cell] = seconds
            self.shape[cell] = means


def sequence_bucket(num_sequences: int) -> int:
    """Returns the bucket of a number of sequences."""
    return min(max(0, num_sequences - 1).bit_length(), len(SEQUENCE_ENDS))
