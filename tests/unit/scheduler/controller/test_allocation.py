"""The positions that are worth verifying."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outrider_native.controller import Calibration, Drafts, Probing, Ranked, Record, decide

from services.scheduler.controller import Offer

# Four in a row of the least of these are still likely enough to be ranked.
confidences = st.floats(0.5, 0.99)
drafts = st.lists(st.lists(confidences, min_size=1, max_size=4), min_size=1, max_size=4)
further = st.lists(st.floats(0, 2), min_size=16, max_size=16)


def offered(drafts: list[list[float]]) -> Drafts:
    offers = [Offer(source="suffix", confidences=draft, match_length=7, phase="text") for draft in drafts]
    return Drafts([(Record(), offer, 4) for offer in offers])


def survivals(drafts: list[list[float]]) -> list[np.ndarray]:
    return [np.cumprod(chances) for chances in Calibration().chances(offered(drafts))]


def allocate(drafts: list[list[float]], seconds: np.ndarray) -> tuple[list[int], float]:
    """Returns the lengths and the tokens per second, where all is known for sure."""
    ranked = Ranked(offered(drafts), Calibration(), 16)
    seconds = seconds[: len(ranked) + 1]
    count = decide(
        num_base_tokens=len(drafts),
        total=ranked.total,
        believed=ranked.total,
        seconds=seconds,
        doubt=np.zeros(len(seconds)),
        probing=Probing(),
    )
    return ranked.counts(count), (len(drafts) + ranked.total[count]) / seconds[count]


@given(drafts, further)
def test_the_lengths_are_the_best_of_all_lengths(drafts: list[list[float]], further: list[float]) -> None:
    seconds = np.cumsum([1.0, *further])
    lengths, speed = allocate(drafts, seconds)
    survival = survivals(drafts)

    def speed_of(lengths: tuple[int, ...]) -> float:
        total = sum(of[:length].sum() for of, length in zip(survival, lengths, strict=True))
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
    assert all(a <= b for a, b in zip(after, before, strict=True))


@given(drafts, st.integers(0, 20))
def test_no_more_positions_are_ranked_than_there_is_room_for(drafts: list[list[float]], room: int) -> None:
    ranked = Ranked(offered(drafts), Calibration(), room)
    lengths = ranked.counts(len(ranked))
    assert sum(lengths) == len(ranked) == min(room, sum(map(len, drafts)))
    assert all(length <= len(draft) for length, draft in zip(lengths, drafts, strict=True))


@given(drafts)
def test_the_likeliest_positions_come_first(drafts: list[list[float]]) -> None:
    expected = np.sort(np.concatenate(survivals(drafts)))[::-1]
    assert np.diff(Ranked(offered(drafts), Calibration(), 16).total) == pytest.approx(expected)


def test_what_is_next_to_never_reached_is_not_ranked() -> None:
    ranked = Ranked(offered([[0.01, 0.01, 0.01], [0.9]]), Calibration(), 16)
    assert ranked.counts(len(ranked)) == [1, 1]
