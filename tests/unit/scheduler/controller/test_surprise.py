"""How quickly drafts that break their promises are believed no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.controller.surprise import Surprise


def test_a_crowd_that_breaks_its_promises_is_not_believed_after_one_step() -> None:
    surprise = Surprise()
    surprise.expect(200.0)
    surprise.settle(10)
    assert surprise.factor < 0.15


def test_one_draft_that_fails_says_little() -> None:
    surprise = Surprise()
    surprise.expect(3.0)
    surprise.settle(0)
    assert surprise.factor > 0.7


def test_faith_comes_back_slowly_without_evidence_and_soon_with_it() -> None:
    surprise = Surprise()
    surprise.expect(200.0)
    surprise.settle(0)
    before = surprise.factor
    surprise.settle(0)
    assert before < surprise.factor < before + 0.01
    surprise.expect(50.0)
    surprise.settle(50)
    assert surprise.factor > 0.8


@given(st.lists(st.tuples(st.floats(0, 500), st.integers(0, 500)), max_size=50))
def test_the_factor_is_a_fraction(steps: list[tuple[float, int]]) -> None:
    surprise = Surprise()
    for expected, accepted in steps:
        surprise.expect(expected)
        surprise.settle(accepted)
        assert 0 < surprise.factor <= 1


def test_promises_that_are_kept_are_believed_as_they_are() -> None:
    surprise = Surprise()
    for _ in range(20):
        surprise.expect(10.0)
        surprise.settle(11)
    assert surprise.factor == pytest.approx(1.0)
