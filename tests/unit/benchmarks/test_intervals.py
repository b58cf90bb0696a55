"""Intervals of a median hold at least as often as they say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from benchmarks.intervals import LEVEL, interval


def test_of_ten_values_the_second_from_either_end_bound_the_median() -> None:
    found = interval([7.0, 1.0, 10.0, 4.0, 2.0, 9.0, 3.0, 8.0, 6.0, 5.0])
    assert (found.low, found.median, found.high) == (2.0, 5.5, 9.0)


def test_fewer_than_six_values_bound_nothing() -> None:
    found = interval([1.0, 1.1, 1.2, 1.3, 1.4])
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.half_width == math.inf


@pytest.mark.parametrize("count", range(6, 60))
def test_the_bounds_are_the_narrowest_that_hold_in_95_of_100_cases(count: int) -> None:
    found = interval([float(number) for number in range(1, count + 1)])
    rank = int(found.low)
    assert found.high == count + 1 - rank
    assert 2 * binom.cdf(rank - 1, count, 0.5) <= 1 - LEVEL + 1e-12
    assert 2 * binom.cdf(rank, count, 0.5) > 1 - LEVEL


@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=40))
def test_the_median_lies_between_its_bounds(values: list[float]) -> None:
    found = interval(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.half_width >= 0
