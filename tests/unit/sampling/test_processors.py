"""Scores equal their definition in float64, with drafts counted as output."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.model.sampling.processors import Chain, process
from outrider.params import ReasoningLimit, SamplingParams, SequenceParams
from tests.unit.sampling import reference
from tests.unit.sampling.strategies import VOCAB_SIZE, logits_after, sequence_params, state_of, token_ids

tokens = st.lists(token_ids, max_size=8)
histories = st.tuples(sequence_params, st.lists(token_ids, min_size=1, max_size=8), tokens, tokens)


@given(st.lists(histories, min_size=1, max_size=4))
def test_scores_of_a_mixed_batch_equal_the_definition(sequences):
    chains, rows, expected = [], [], []
    for params, prompt, output, draft in sequences:
        chains.append(Chain(state_of(params, prompt, output), draft))
        for length in range(len(draft) + 1):
            seen = output + draft[:length]
            rows.append(logits_after(prompt + seen))
            expected.append(reference.scores(rows[-1], params, prompt, seen))
    scores = torch.from_numpy(np.stack(rows))
    process(scores, chains)
    np.testing.assert_allclose(scores.numpy(), np.stack(expected), rtol=1e-5, atol=1e-4)


def scores_of(params, prompt, output=(), draft=()):
    scores = torch.zeros(len(draft) + 1, VOCAB_SIZE)
    process(scores, [Chain(state_of(params, prompt, output), list(draft))])
    return scores


def banned(params, prompt, output=(), draft=()):
    return [
        row.nonzero()[0].tolist() for row in (scores_of(params, prompt, output, draft) == -np.inf).numpy()
    ]


def test_the_last_token_of_a_bad_word_is_banned_once_the_others_are_output():
    params = SequenceParams(sampling=SamplingParams(bad_words=((3, 4, 5),)))
    assert banned(params, [3, 4]) == [[]]
    assert banned(params, [9], [3, 4]) == [[5]]
    assert banned(params, [9], [3], [4, 5]) == [[], [5], []]


def test_a_bad_word_of_one_token_is_always_banned():
    assert banned(SequenceParams(sampling=SamplingParams(bad_words=((7,),))), [1], [2], [3]) == [[7], [7]]


def test_stop_tokens_are_banned_until_the_output_is_long_enough():
    params = SequenceParams(sampling=SamplingParams(min_tokens=2, stop_token_ids=(1, 2)))
    assert banned(params, [5], [], [6, 6]) == [[1, 2], [1, 2], []]


def test_the_end_of_thinking_is_forced_from_its_place_on_unless_it_came_before():
    params = SequenceParams(reasoning_limit=ReasoningLimit(max_tokens=2, end_token_id=8))
    everything_else = [token_id for token_id in range(VOCAB_SIZE) if token_id != 8]
    assert banned(params, [5], [6], [6, 6]) == [[], everything_else, everything_else]
    assert banned(params, [5], [8], [6, 6]) == [[], [], []]
    assert banned(params, [5], [6], [8, 6]) == [[], [], []]
    assert banned(params, [8], [6, 6]) == [everything_else]


def test_the_forced_end_of_thinking_beats_a_ban():
    sampling = SamplingParams(bad_words=((8,),))
    params = SequenceParams(sampling=sampling, reasoning_limit=ReasoningLimit(max_tokens=0, end_token_id=8))
    assert scores_of(params, [5])[0, 8] == 0
