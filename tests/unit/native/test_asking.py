"""What a slow answer does to a source whose time is the step's: it is asked again, whatever came before."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider_native.controller import Asking, Drafts, Record

from services.scheduler.controller import Offer

STEP_SECONDS = 0.02
USUAL_SECONDS = 1e-4
# At most 128 steps' time is owed, and a part in a hundred of all time pays for it and fills what holds 8
# more: 13,600 steps. Then each answer is paid back at once, one in 32 steps is asked, and each takes a 16th
# off a mean that is 100 s at most: 16 ln(100 s / 0.02 s) answers, 4,400 steps.
MAX_NUM_STEPS = 18_000


@dataclass
class Stream:
    """One sequence after another whose source wins 4 tokens with each question."""

    asking: Asking = field(default_factory=lambda: Asking(shares_cores=True))
    record: Record = field(default_factory=Record)
    num_steps: int = 0
    source: str = "suffix"

    def step(self, seconds: float) -> bool:
        """Takes a step in which an answer would take so long; returns whether there was a question."""
        if self.num_steps % 50 == 0:
            self.record = Record()
        (sources,) = self.asking.due([self.record], [self.source], self.num_steps)
        self.num_steps += 1
        if sources:
            self.asking.ask([(self.record, sources)])
            self.asking.note_answer(self.source, num_drafts=1, compute_seconds=seconds)
            offer = Offer(source=self.source, confidences=(0.9,) * 4, match_length=8, phase="text")
            self.asking.note_offered(Drafts([(self.record, offer, 4)]))
            self.asking.note_outcomes([(self.record, offer, 4, 4)], 0.05)
        self.asking.earn(STEP_SECONDS)
        self.asking.set_token_seconds(STEP_SECONDS)
        return bool(sources)

    def num_asked(self, num_steps: int, seconds: float = USUAL_SECONDS) -> int:
        """Takes so many steps; returns in how many there was a question."""
        return sum(self.step(seconds) for _ in range(num_steps))


@pytest.mark.parametrize("outlier", [1.0, 5.0, 60.0, 4000.0])
def test_one_slow_answer_does_not_turn_a_source_off(outlier: float) -> None:
    stream = Stream()
    stream.num_asked(500)
    assert stream.step(outlier)
    assert stream.num_asked(100) == 100


def test_a_dear_source_that_pays_is_known_within_its_first_steps() -> None:
    # It wins 4 tokens for the time of 2.5.
    assert Stream(source="model").num_asked(200, seconds=2.5 * STEP_SECONDS) > 100


def test_a_source_that_stays_slow_is_found_out_within_some_tens_of_answers() -> None:
    stream = Stream()
    stream.num_asked(500)
    assert 10 < stream.num_asked(1000, seconds=0.2) < 60


def test_a_source_that_stays_slow_takes_a_small_part_of_the_time() -> None:
    stream = Stream()
    stream.num_asked(2000, seconds=1.0)
    assert 0 < stream.num_asked(50_000, seconds=1.0) * 1.0 <= 0.015 * 50_000 * STEP_SECONDS


@settings(max_examples=12, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.floats(0, 1e9, allow_nan=False) | st.just(USUAL_SECONDS), st.integers(1, 3000)),
        max_size=6,
    ),
    restored=st.none() | st.floats(0, 1000),
)
def test_after_any_answers_a_source_that_pays_is_asked_again(
    runs: list[tuple[float, int]], restored: float | None
) -> None:
    stream = Stream()
    if restored is not None:
        stream.asking.restore("suffix", mean_yield=0.3, compute_seconds=restored, num_settled=32, decay=1.0)
    for seconds, num_steps in runs:
        stream.num_asked(num_steps, seconds)
    stream.num_asked(MAX_NUM_STEPS)
    assert stream.num_asked(100) == 100


def test_what_was_learnt_of_a_price_long_ago_is_not_held_on_to() -> None:
    asking, usual = Asking(shares_cores=True), Asking(shares_cores=True).mean_of("model").compute_seconds
    for decay, expected in ((1.0, 5.0), (0.5, (5.0 + usual) / 2), (0.0, usual)):
        asking.restore("model", mean_yield=1.0, compute_seconds=5.0, num_settled=9, decay=decay)
        assert asking.mean_of("model").compute_seconds == pytest.approx(expected)
