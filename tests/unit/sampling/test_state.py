"""A state that branches off chooses as one made anew, and leaves the first as it was."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.model.sampling import Chain
from tests.unit.sampling.strategies import choose_tokens, logits_after, sequence_params, state_of, token_ids

tokens = st.lists(token_ids, max_size=6)


def token_after(state):
    row = torch.from_numpy(logits_after(state.token_ids.tolist()))
    return choose_tokens(row[None], [Chain(state, [])]).tolist()


@given(sequence_params, st.lists(token_ids, min_size=1, max_size=6), tokens, tokens, tokens)
def test_a_branch_chooses_as_a_state_made_anew(params, prompt, output, more, others):
    state = state_of(params, prompt, output)
    branch = state.branch(more)
    other = state.branch(others)
    for each, added in ((state, []), (branch, more), (other, others)):
        anew = state_of(params, prompt, [*output, *added])
        assert np.array_equal(each.token_ids, anew.token_ids)
        assert each.num_tokens_left == anew.num_tokens_left
        assert token_after(each) == token_after(anew)
