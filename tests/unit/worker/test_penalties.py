"""Penalties count the drafts before a position as output, not only what was final before the step."""

import pytest

from services.worker.messages import Batch
from tests.groups import prompt_of, scheduled

PENALTY = 3.0
NUM_TOKENS = 40


class Answer:
    """An output chosen at temperature 0, where each step began, and what the model itself held likely."""

    def __init__(self, stepper, draft_of):
        sequence = scheduled(
            0,
            prompt_of(0, 6),
            temperature=0,
            frequency_penalty=PENALTY,
            num_logprobs=20,
            max_tokens=NUM_TOKENS,
        )
        self.begins: list[int] = []
        self.num_accepted = 0
        step_id = 0
        while len(sequence.output) < NUM_TOKENS:
            step_id += 1
            step = sequence.step(draft=draft_of(len(sequence.output)))
            begin, outcome = (
                len(sequence.output),
                stepper.run(Batch(step_id=step_id, steps=[step])).outcomes[0],
            )
            sequence.commit(step, outcome)
            self.num_accepted += outcome.num_accepted_tokens
            self.begins += [begin] * len(outcome.token_ids)
        stepper.forget_all()
        self.output, self.logprobs = sequence.output, sequence.logprobs

    def best_if_counted(self, position, num_counted):
        """Returns the best token if only so many tokens of the output weighed on it.

        At temperature 0 a frequency penalty shifts log-probabilities as it does logits, and the twenty
        likeliest tokens hold the best one while what they lose leaves it above the others.
        """
        seen = self.output[:num_counted]
        scores = {
            token: logprob - PENALTY * seen.count(token) for token, logprob in self.logprobs[position].top
        }
        assert max(scores.values()) > self.logprobs[position].top[-1][1]
        return max(scores, key=scores.__getitem__)


@pytest.fixture
def alone(stepper):
    return Answer(stepper, lambda num_output: ())


def test_drafts_under_a_strong_penalty_change_no_token(stepper, alone):
    drafted = Answer(stepper, lambda num_output: alone.output[num_output : num_output + 7])
    assert drafted.num_accepted == NUM_TOKENS - len(set(drafted.begins))
    assert (drafted.output, drafted.logprobs) == (alone.output, alone.logprobs)
    places = range(NUM_TOKENS)
    assert [drafted.best_if_counted(place, place) for place in places] == drafted.output
    # Else this test would pass whatever is counted.
    assert [drafted.best_if_counted(place, drafted.begins[place]) for place in places] != drafted.output


def test_a_draft_that_only_an_uncounted_penalty_would_accept_is_refused(stepper, alone):
    """The draft repeats what was best before the penalty of its own first tokens."""
    for begin in range(NUM_TOKENS - 3):
        stale = [alone.best_if_counted(place, begin) for place in range(begin, begin + 3)]
        if stale != alone.output[begin : begin + 3]:
            break
    else:
        pytest.fail("no place shows the difference")
    drafted = Answer(stepper, lambda num_output: stale if num_output == begin else ())
    assert drafted.output == alone.output
