"""How long a step waits for drafts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.controller.waiting import Waiting


def after(times: list[float], most: float = 0.01) -> Waiting:
    waiting = Waiting(most)
    for seconds in times:
        waiting.note(seconds)
    return waiting


def test_quick_answers_are_worth_waiting_for() -> None:
    assert 0.001 <= after([0.001] * 20).best_wait(0.005) <= 0.0012


def test_answers_that_come_too_late_are_not_waited_for() -> None:
    assert after([0.5] * 20).best_wait(0.005) == 0


def test_nothing_is_waited_for_that_wins_less_than_it_takes() -> None:
    assert after([0.002] * 20).best_wait(0.001) == 0


def test_the_rare_late_answer_is_given_up() -> None:
    assert after([0.001] * 18 + [0.009] * 2).best_wait(0.004) < 0.002


def test_before_the_first_answer_no_more_is_waited_than_could_be_won() -> None:
    assert Waiting(0.01).best_wait(0.003) == 0.003
    assert Waiting(0.01).best_wait(0.5) == 0.01
    assert Waiting(0.01).best_wait(0.0) == 0


@given(st.lists(st.floats(1e-4, 0.05), min_size=1, max_size=40), st.floats(0, 0.05))
def test_no_other_wait_wins_more(times: list[float], gain: float) -> None:
    seconds, waiting = np.array(times), after(times)

    def worth(wait: float) -> float:
        return float((seconds <= wait).mean() * gain - np.minimum(seconds, wait).mean())

    found = waiting.best_wait(gain)
    assert 0 <= found <= 0.01
    assert worth(found) >= 0
    for wait in [time for time in times if time <= 0.01]:
        # No more is lost than the slack for an answer that is a little later.
        assert worth(found) >= worth(wait) - 0.1 * wait - 1e-12
