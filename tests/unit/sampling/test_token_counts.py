"""Counts kept up to date equal counts taken anew, with and without drafts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from outrider.model.sampling.token_counts import TokenCounts

tokens = st.lists(st.integers(0, 150), max_size=200)


@given(tokens, tokens, st.lists(st.integers(0, 150), max_size=6))
def test_counts_follow_output_and_drafts(prompt, output, draft):
    counts = TokenCounts(np.array(prompt, dtype=np.int32))
    for token_id in output:
        counts.add(token_id)
    steps = counts.with_drafts(draft)
    assert len(steps) == len(draft) + 1
    for length, (token_ids, values) in enumerate(steps):
        seen = output + draft[:length]
        assert dict(zip(token_ids.tolist(), values.tolist(), strict=True)) == {
            token_id: seen.count(token_id) for token_id in {*prompt, *seen}
        }
    (unchanged,) = counts.with_drafts([])
    assert unchanged[1].sum() == len(output)
