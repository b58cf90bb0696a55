"""Top-k, top-p and min-p keep what their definitions keep, ties included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.kernels.torch import filters
from outrider.params import SamplingParams
from tests.unit.sampling import reference

INF = float("inf")


def kept(rows, *, top_k=0, top_p=1.0, min_p=0.0):
    scores = torch.tensor(rows, dtype=torch.float32)
    num_rows = len(scores)
    filters.filter_top_k(scores, torch.full((num_rows,), top_k))
    filters.filter_top_p(scores, torch.full((num_rows,), top_p, dtype=torch.float64))
    filters.filter_min_p(scores, torch.full((num_rows,), min_p, dtype=torch.float64).log())
    return [row.nonzero()[0].tolist() for row in (scores > -INF).numpy()]


@given(
    # Whole and half scores tie often and never sit on the edge of a filter but by a tie.
    st.lists(st.integers(-12, 12), min_size=1, max_size=40),
    st.integers(0, 45),
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 0.011, 0.12, 0.4, 0.97]),
)
def test_filters_equal_the_definition_in_float64(values, top_k, top_p, min_p):
    row = [value / 2 for value in values]
    expected = reference.filtered(row, SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p))
    shares = np.cumsum(
        reference.probabilities(-np.sort(-reference.filtered(row, SamplingParams(top_k=top_k))))
    )
    if np.abs(shares - top_p).min() > 1e-9:
        assert kept([row], top_k=top_k, top_p=top_p, min_p=min_p) == [np.nonzero(expected > -INF)[0].tolist()]


def test_top_k_keeps_everything_tied_with_the_last_one_kept():
    assert kept([[1, 3, 2, 2, 2, 0]], top_k=2) == [[1, 2, 3, 4]]


def test_top_p_keeps_everything_tied_with_the_last_one_kept():
    assert kept([[0, 0, 0, 0]], top_p=0.3) == [[0, 1, 2, 3]]


def test_top_p_counts_only_what_top_k_kept():
    row = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert kept([row], top_p=0.5) == [[0, 1]]
    assert kept([row], top_k=2, top_p=0.5) == [[0]]


def test_top_p_looks_beyond_the_best_scores_where_it_must():
    flat = np.linspace(0, 0.1, 2000).tolist()
    steep = np.linspace(0, 2000, 2000).tolist()
    flat_kept, steep_kept = kept([flat, steep], top_p=0.5)
    expected = reference.filtered(np.float32(flat), SamplingParams(top_p=0.5))
    assert len(flat_kept) == (expected > -INF).sum() > 900
    assert steep_kept == [1999]


@pytest.fixture(params=[1, 2], scope="module")
def num_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("num_threads")
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(3, 600))
def test_rows_are_filtered_alike_alone_and_together(seed, num_rows, vocab_size):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, vocab_size, generator=generator) * 3
    top_p = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    together = rows.clone()
    filters.filter_top_p(together, top_p)
    for index in range(num_rows):
        alone = rows[index : index + 1].clone()
        filters.filter_top_p(alone, top_p[index : index + 1])
        assert torch.equal(alone[0], together[index])
