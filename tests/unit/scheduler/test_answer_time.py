"""How long a step waits for drafts."""

import pytest

from services.scheduler.answer_time import AnswerTime


def make() -> AnswerTime:
    return AnswerTime(max_wait_seconds=0.004, max_step_fraction=0.2)


def test_before_the_first_answer_the_wait_is_the_limit() -> None:
    assert make().deadline(step_seconds=0.010) == pytest.approx(0.002)
    assert make().deadline(step_seconds=1.0) == pytest.approx(0.004)


def test_a_quick_drafter_is_waited_for_a_little_longer_than_it_takes() -> None:
    answer_time = make()
    for _ in range(50):
        answer_time.add(0.0005)
    assert 0.0005 <= answer_time.deadline(step_seconds=0.020) < 0.001


def test_a_drafter_that_is_always_late_is_not_waited_for() -> None:
    answer_time = make()
    for _ in range(50):
        answer_time.add(0.050)
    assert answer_time.deadline(step_seconds=0.020) == 0


def test_a_drafter_that_has_become_quick_is_waited_for_again() -> None:
    answer_time = make()
    answer_time.add(0.050)
    for _ in range(60):
        answer_time.add(0.0005)
    assert answer_time.deadline(step_seconds=0.020) > 0


def test_there_is_no_waiting_before_the_time_of_a_step_is_known() -> None:
    assert make().deadline(step_seconds=0.0) == 0
