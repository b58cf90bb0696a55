"""What is learnt of the time that a source takes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from services.drafter.call_time import CallTime


def learnt(*calls: tuple[int, float]) -> CallTime:
    call_time = CallTime()
    for num_questions, seconds in calls:
        call_time.add(num_questions, seconds)
    return call_time


@given(seconds=st.floats(1e-9, 1e9), most=st.integers(1, 100))
def test_before_the_first_call_one_question_is_tried(seconds, most) -> None:
    assert CallTime().num_questions_within(seconds, most) == 1


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0, 10)), max_size=20), st.floats(-1, 0))
def test_without_time_there_is_no_question(calls, seconds) -> None:
    assert learnt(*calls).num_questions_within(seconds, 10) == 0


def test_calls_of_one_size_say_nothing_of_a_fixed_part() -> None:
    call_time = learnt(*[(2, 0.02)] * 5)
    assert call_time.num_questions_within(0.0501, 100) == 5


def test_calls_of_several_sizes_part_what_is_fixed_from_what_is_not() -> None:
    call_time = learnt(*[(number, 0.010 + 0.001 * number) for number in (1, 4, 2, 8)])
    assert call_time.num_questions_within(0.0151, 100) == 5
    assert call_time.num_questions_within(0.0105, 100) == 0
    assert call_time.num_questions_within(1.0, 20) == 20


def test_a_long_first_call_is_forgotten() -> None:
    call_time = learnt((1, 5.0), *[(number % 3 + 1, 0.001 * (number % 3 + 1)) for number in range(100)])
    assert call_time.num_questions_within(0.0105, 100) == 10


@given(
    calls=st.lists(st.tuples(st.integers(1, 99), st.floats(0, 10)), min_size=1, max_size=20),
    seconds=st.floats(0, 100),
    most=st.integers(1, 100),
)
def test_whatever_was_seen_the_answer_is_a_number_within_bounds(calls, seconds, most) -> None:
    number = learnt(*calls).num_questions_within(seconds, most)
    assert 0 <= number <= most
    assert math.isfinite(number)
