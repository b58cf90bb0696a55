"""The positions that are worth verifying."""

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.controller.allocation import most_paying, rank

chances = st.floats(0.01, 0.99)
drafts = st.lists(st.lists(chances, min_size=1, max_size=4), min_size=1, max_size=4)
further = st.lists(st.floats(0, 2), min_size=16, max_size=16)


def survival_of(drafts: list[list[float]]) -> np.ndarray:
    table = np.zeros((len(drafts), max(map(len, drafts))))
    for row, draft in enumerate(drafts):
        table[row, : len(draft)] = np.cumprod(draft)
    return table


def allocate(drafts: list[list[float]], seconds: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns the lengths and the tokens per second."""
    ranked = rank(survival_of(drafts), sum(map(len, drafts)))
    seconds = seconds[: len(ranked.total)]
    count = most_paying(len(drafts), ranked.total, seconds)
    return ranked.counts(count, len(drafts)), (len(drafts) + ranked.total[count]) / seconds[count]


@given(drafts, further)
def test_the_lengths_are_the_best_of_all_lengths(drafts: list[list[float]], further: list[float]) -> None:
    seconds = np.cumsum([1.0, *further])
    lengths, speed = allocate(drafts, seconds)
    survival = survival_of(drafts)

    def speed_of(lengths: tuple[int, ...]) -> float:
        total = sum(survival[row, :length].sum() for row, length in enumerate(lengths))
        return (len(drafts) + total) / seconds[sum(lengths)]

    best = max(speed_of(lengths) for lengths in product(*[range(len(draft) + 1) for draft in drafts]))
    assert np.isclose(speed, best)
    assert np.isclose(speed_of(tuple(lengths)), best)


@given(drafts, further, st.floats(0, 5))
def test_a_more_expensive_token_never_lengthens_drafts(
    drafts: list[list[float]], further: list[float], more: float
) -> None:
    seconds = np.cumsum([1.0, *further])
    before, _ = allocate(drafts, seconds)
    after, _ = allocate(drafts, seconds + more * np.arange(len(seconds)))
    assert all(after <= before)


@given(drafts, st.integers(0, 20))
def test_no_more_positions_are_ranked_than_there_is_room_for(drafts: list[list[float]], room: int) -> None:
    ranked = rank(survival_of(drafts), min(room, sum(map(len, drafts))))
    lengths = ranked.counts(len(ranked.order), len(drafts))
    assert lengths.sum() == min(room, sum(map(len, drafts)))
    assert all(length <= len(draft) for length, draft in zip(lengths, drafts, strict=True))
