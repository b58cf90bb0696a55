"""The median of a few noisy values, and how far it can be trusted."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median and the bounds between which the true one lies with 95 % confidence, or more."""

    median: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The larger distance of a bound from the median, as a fraction of it."""
        return max(self.high - self.median, self.median - self.low) / self.median


def interval(values: Sequence[float]) -> Interval:
    """Returns the interval between two order statistics; it assumes nothing of how the values spread.

    Of n values each lies below the true median with probability 1/2, so the r-th from either end is beyond
    it with the probability that fewer than r of n coins show heads. Below six values no two suffice: then the
    bounds are infinite.
    """
    ordered = sorted(values)
    rank = _rank(len(ordered))
    if rank == 0:
        return Interval(median=median(ordered), low=-math.inf, high=math.inf)
    return Interval(median=median(ordered), low=ordered[rank - 1], high=ordered[-rank])


def _rank(count: int) -> int:
    """Returns the largest rank whose two tails together have no more than 5 %."""
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) / 2**count
        if 2 * tail > 1 - LEVEL:
            return rank
        rank += 1
