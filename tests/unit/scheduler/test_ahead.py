"""What may be drafted ahead."""

import pytest

from services.scheduler.ahead import Ahead


def test_drafts_that_come_too_late_leave_less_time_for_the_next() -> None:
    ahead = Ahead(shares_cores=False)
    before = ahead.seconds(1.0)
    ahead.note_arrival(is_late=True)
    assert ahead.seconds(1.0) < before


def test_drafts_in_time_win_the_time_back_but_never_a_whole_step() -> None:
    ahead = Ahead(shares_cores=False)
    for _ in range(100):
        ahead.note_arrival(is_late=True)
    assert ahead.seconds(1.0) > 0
    for _ in range(1000):
        ahead.note_arrival(is_late=False)
    assert ahead.seconds(1.0) == pytest.approx(ahead.max_fraction)
    assert ahead.max_fraction < 1.0


def test_on_shared_cores_only_sources_that_take_next_to_nothing_draft_ahead() -> None:
    for shares_cores, expected in ((True, {"suffix"}), (False, {"suffix", "model"})):
        seconds = {"suffix": 5e-5, "model": 5e-3}
        ahead = Ahead(shares_cores=shares_cores)
        assert ahead.worthwhile(seconds, seconds.__getitem__, step_seconds=0.02) == expected


def test_a_step_that_was_held_up_for_an_hour_leaves_no_hour() -> None:
    assert Ahead(shares_cores=False).seconds(5000.0) <= 10.0


def test_on_shared_cores_there_is_less_time() -> None:
    assert Ahead(shares_cores=True).seconds(1.0) < Ahead(shares_cores=False).seconds(1.0)
