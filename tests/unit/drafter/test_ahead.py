"""What may come of a step, how likely it is, and what is drafted for it in the time there is."""

import math

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import INVALID_SPAN

from outrider.v1 import sampling_pb2
from services.drafter.ahead import MAX_BATCH, MAX_NUM_OUTCOMES, MIN_PROBABILITY, Ahead, InFlight, outcomes
from services.drafter.call_time import CallTime
from services.drafter.guess import Guess
from services.drafter.sequence import RunningSequence

CHANCES = st.floats(0, 1)


@st.composite
def guesses(draw: st.DrawFn) -> Guess:
    """Guesses whose alternatives may claim more than the confidences leave, and repeat the guess itself."""
    token_ids = draw(st.lists(st.integers(0, 9), max_size=6))
    places = len(token_ids) + draw(st.integers(0, 1))
    others = st.lists(st.tuples(st.integers(0, 9), CHANCES), max_size=4, unique_by=lambda item: item[0])
    return Guess(
        tuple(token_ids),
        tuple(draw(st.lists(CHANCES, min_size=len(token_ids), max_size=len(token_ids)))),
        alternatives=tuple(tuple(draw(others)) for _ in range(places)) if draw(st.booleans()) else (),
    )


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def quick() -> CallTime:
    """Returns the times of a source that takes a millisecond for a question."""
    call_time = CallTime()
    call_time.add(1, 1e-3)
    return call_time


def running(sequence_id: int = 1) -> RunningSequence:
    return RunningSequence(
        id=sequence_id,
        tenant="a",
        num_prompt_tokens=0,
        params=sampling_pb2.SequenceParams(),
        span=INVALID_SPAN,
    )


def in_flight(guess: Guess, num_verified: int, sequence_id: int = 1, max_num_tokens: int = 8) -> InFlight:
    draft = guess.token_ids[:num_verified]
    return InFlight(running(sequence_id), draft, max_num_tokens, {"suffix": [guess]})


def planned(*items: InFlight, source: str = "model") -> list[tuple[int, tuple[int, ...]]]:
    """Returns sequence and assumed tokens of all outcomes, likeliest first."""
    ahead = Ahead(source, items, deadline=1e9, clock=Clock())
    found: list[tuple[int, tuple[int, ...]]] = []
    while not ahead.is_done:
        questions = ahead.next_questions(quick())
        found += [(question.sequence.id, question.assumed) for question in questions]
    return found


@given(guess=guesses(), num_verified=st.integers(0, 6))
def test_outcomes_exclude_each_other_and_together_are_at_most_certain(guess, num_verified) -> None:
    draft = guess.token_ids[:num_verified]
    found = list(outcomes(draft, guess))
    assert all(outcome.probability >= 0 for outcome in found)
    assert math.fsum(outcome.probability for outcome in found) <= 1 + 1e-9
    assert len({outcome.token_ids for outcome in found}) == len(found)


@given(guess=guesses(), num_verified=st.integers(0, 6))
def test_an_outcome_is_an_accepted_part_and_a_token_that_was_not_guessed_there(guess, num_verified) -> None:
    draft = guess.token_ids[:num_verified]
    for outcome in outcomes(draft, guess):
        if outcome.has_bonus:
            *accepted, bonus = outcome.token_ids
            assert tuple(accepted) == draft[: len(accepted)]
            assert (*accepted, bonus) != draft[: len(outcome.token_ids)]
        else:
            assert outcome.token_ids == draft


def test_probabilities_are_products_of_what_the_source_said_of_each_place() -> None:
    guess = Guess((1, 2, 3), (0.8, 0.5, 0.9), alternatives=(((7, 0.1),), ((8, 0.4),), ((9, 0.05),), ()))
    found = {outcome.token_ids: outcome.probability for outcome in outcomes((1, 2), guess)}
    expected = {(7,): 0.1, (1, 8): 0.8 * 0.4, (1, 2, 3): 0.8 * 0.5 * 0.9, (1, 2, 9): 0.8 * 0.5 * 0.05}
    assert found.keys() == expected.keys()
    assert all(math.isclose(found[token_ids], expected[token_ids]) for token_ids in expected)


def test_alternatives_share_what_the_guess_leaves() -> None:
    guess = Guess((1,), (0.9,), alternatives=(((1, 0.9), (2, 0.3), (3, 0.1)), ()))
    found = {outcome.token_ids: outcome.probability for outcome in outcomes((1,), guess)}
    assert math.isclose(found[2,], 0.075)
    assert math.isclose(found[3,], 0.025)


def test_where_nothing_is_known_of_the_bonus_token_a_draft_is_to_guess_it() -> None:
    (outcome,) = outcomes((4, 5), Guess((4, 5), (1.0, 1.0)))
    assert (outcome.token_ids, outcome.has_bonus) == ((4, 5), False)


@given(st.lists(st.tuples(guesses(), st.integers(0, 6)), max_size=5))
def test_the_likeliest_of_all_sequences_come_first_once_each_and_not_too_many(pairs) -> None:
    items = [in_flight(guess, num_verified, number) for number, (guess, num_verified) in enumerate(pairs)]
    order = planned(*items)
    chances = {
        (item.sequence.id, outcome.token_ids): outcome.probability
        for item in items
        for outcome in outcomes(item.draft, item.best_informed())
    }
    asked = [chances[key] for key in order]
    assert asked == sorted(asked, reverse=True)
    assert len(set(order)) == len(order)
    assert all(chance >= MIN_PROBABILITY for chance in asked)
    for item in items:
        assert sum(sequence_id == item.sequence.id for sequence_id, _ in order) <= MAX_NUM_OUTCOMES


def test_a_source_asks_nothing_that_its_own_draft_goes_on_behind() -> None:
    guess = Guess(tuple(range(8)), (0.9,) * 8)
    assert planned(in_flight(guess, 3), source="suffix") == []
    assert planned(in_flight(guess, 3), source="model") == [(1, (0, 1, 2, 3))]


def test_a_source_asks_where_little_is_left_of_its_own_draft() -> None:
    guess = Guess(tuple(range(5)), (0.9,) * 5)
    assert planned(in_flight(guess, 3), source="suffix") == [(1, (0, 1, 2, 3))]


def test_without_a_draft_in_flight_the_likely_next_tokens_are_the_outcomes() -> None:
    guess = Guess((5,), (0.6,), alternatives=(((6, 0.3),), ()))
    assert planned(in_flight(guess, 0)) == [(1, (5,)), (1, (6,))]


def test_of_several_guesses_the_one_that_tells_most_of_the_draft_in_flight_counts() -> None:
    short, long = Guess((1, 2), (0.5, 0.5)), Guess((1, 2, 3), (0.5, 0.5, 0.5), alternatives=((),) * 4)
    other = Guess((1, 3, 4, 5), (0.9,) * 4, alternatives=((),) * 5)
    item = InFlight(running(), (1, 2), 8, {"suffix": [short, other], "model": [long]})
    assert item.best_informed() == long


def test_an_answer_that_shows_the_bonus_token_leads_further() -> None:
    item = InFlight(running(), (4, 5), 8)
    ahead = Ahead("model", [item], deadline=1e9, clock=Clock())
    (question,) = ahead.next_questions(CallTime())
    assert question.assumed == (4, 5)
    ahead.learn(question, Guess((6,), (0.7,), alternatives=(((7, 0.2),), ())))
    assert [question.assumed for question in ahead.next_questions(quick())] == [(4, 5, 6), (4, 5, 7)]


def test_a_question_names_the_tokens_as_they_would_then_be() -> None:
    item = in_flight(Guess((3,), (0.9,)), 0)
    item.sequence.token_ids.extend([1, 2])
    (question,) = Ahead("model", [item], 1e9, Clock()).next_questions(CallTime())
    assert question.base_length == 3
    assert question.token_ids.tolist() == [1, 2, 3]


@given(
    fixed=st.floats(0, 2e-2),
    per_question=st.floats(1e-5, 1e-2),
    budget=st.floats(0, 0.1),
    num_known=st.lists(st.integers(1, 20), min_size=2, max_size=9, unique=True),
)
def test_no_batch_begins_that_would_end_too_late(fixed, per_question, budget, num_known) -> None:
    clock, call_time = Clock(), CallTime()
    for number in num_known:
        call_time.add(number, fixed + per_question * number)
    guess = Guess((0,), (0.5,), alternatives=(tuple((token, 0.06) for token in range(1, 9)), ()))
    items = [in_flight(guess, 0, number) for number in range(20)]
    ahead = Ahead("model", items, deadline=budget, clock=clock)
    num_asked = 0
    while not ahead.is_done:
        questions = ahead.next_questions(call_time)
        assert len(questions) <= MAX_BATCH
        num_asked += len(questions)
        clock.now += (fixed + per_question * len(questions)) if questions else 0.0
        assert clock.now <= budget * (1 + 1e-6)
    # What is left does not do for one more.
    is_all = num_asked == 20 * MAX_NUM_OUTCOMES
    assert is_all or clock.now + fixed + per_question > budget * (1 - 1e-6)


def test_when_the_time_is_over_nothing_more_is_asked() -> None:
    clock = Clock()
    ahead = Ahead("model", [in_flight(Guess((1,), (0.9,)), 0)], deadline=1.0, clock=clock)
    clock.now = 1.0
    assert ahead.is_done
    assert ahead.next_questions(CallTime()) == []


def test_too_little_time_for_one_more_ends_it() -> None:
    call_time = CallTime()
    call_time.add(1, 1.5)
    ahead = Ahead("model", [in_flight(Guess((1,), (0.9,)), 0)], deadline=1.0, clock=Clock())
    assert ahead.next_questions(call_time) == []
    assert ahead.is_done
