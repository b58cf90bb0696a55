"""Tokens follow the distribution that the parameters describe, decided by nothing but their own row."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from outrider.model.sampling import Chain
from outrider.params import SamplingParams, SequenceParams
from tests.unit.sampling import reference
from tests.unit.sampling.strategies import choose_tokens, logits_after, sequence_params, state_of, token_ids

NUM_DRAWS = 6000
CASES = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=6),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.08),
    SamplingParams(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
    SamplingParams(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(logit_bias={3: 2.0, 7: -1.0}, bad_words=((5,),)),
]
PROMPT, OUTPUT = [1, 2, 3], [4, 4, 9]


def p_value(sampling, expected):
    """Draws with many seeds and returns how likely such counts are under `expected`."""
    row = torch.from_numpy(logits_after(PROMPT + OUTPUT, scale=1.5))
    chains = [
        Chain(state_of(SequenceParams(sampling=sampling, seed=seed * 7919), PROMPT, OUTPUT), [])
        for seed in range(NUM_DRAWS)
    ]
    counts = np.bincount(choose_tokens(row.repeat(NUM_DRAWS, 1), chains), minlength=len(row))
    assert counts[expected == 0].sum() == 0
    # Tokens expected fewer than five times are taken together, as the test demands.
    rare = expected * NUM_DRAWS < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum()) * NUM_DRAWS
    return stats.chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue


def distribution(sampling):
    row = logits_after(PROMPT + OUTPUT, scale=1.5)
    values = reference.scores(row, SequenceParams(sampling=sampling), PROMPT, OUTPUT)
    return reference.probabilities(reference.filtered(values, sampling))


@pytest.mark.parametrize("sampling", CASES)
def test_tokens_follow_the_exact_distribution(sampling):
    assert p_value(sampling, distribution(sampling)) > 1e-4


@pytest.mark.parametrize("sampling", CASES)
def test_a_slightly_wrong_distribution_is_told_apart(sampling):
    exact = distribution(sampling)
    wrong = exact**1.15 / (exact**1.15).sum()
    assert p_value(sampling, wrong) < 1e-4


def test_positions_and_choices_draw_independently():
    row = torch.zeros(1, 4)
    draws = [
        [
            int(choose_tokens(row, [Chain(state_of(SequenceParams(choice=choice), [0] * length), [])])[0])
            for length in range(40)
        ]
        for choice in (0, 1)
    ]
    same = sum(first == second for first, second in zip(*draws, strict=True))
    assert 2 <= same <= 22


@given(sequence_params, st.lists(token_ids, min_size=1, max_size=6), st.lists(token_ids, max_size=6))
def test_tokens_equal_the_definition(params, prompt, output):
    row = logits_after(prompt + output)
    values = reference.filtered(reference.scores(row, params, prompt, output), params.sampling)
    (chosen,) = choose_tokens(torch.from_numpy(row)[None], [Chain(state_of(params, prompt, output), [])])
    if values.max() == -np.inf:
        assert chosen == -1
        return
    # float32 and float64 may part where two tokens tie but for rounding: the chosen one is then as good.
    noise = np.zeros(len(row))
    if params.sampling.temperature > 0:
        position = len(prompt) + len(output)
        noise = [reference.noise(params.seed, params.choice, position, index) for index in range(len(row))]
    assert values[chosen] + noise[chosen] >= (values + noise).max() - 1e-4


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([30, 453, 4096]), st.sampled_from([0.5, 4.0, 60.0]))
def test_a_row_gets_the_same_token_alone_and_in_any_batch(seed, vocab_size, scale):
    generator = np.random.default_rng(seed)
    sequences = []
    for _ in range(7):
        sampling = SamplingParams(
            temperature=float(generator.choice([0, 0.7, 1.0])),
            top_k=int(generator.choice([0, 50])),
            top_p=float(generator.choice([1.0, 0.95])),
            presence_penalty=float(generator.choice([0, 0.5])),
        )
        state = state_of(
            SequenceParams(sampling=sampling, seed=int(generator.integers(2**53))), [1, 2], [3, 4]
        )
        sequences.append(
            (Chain(state, []), torch.from_numpy(generator.normal(size=vocab_size) * scale).float())
        )
    logits = torch.stack([row for _, row in sequences])
    together = choose_tokens(logits, [chain for chain, _ in sequences])
    alone = [int(choose_tokens(row[None], [chain])[0]) for chain, row in sequences]
    assert together.tolist() == alone
    assert choose_tokens(logits.flip(0), [chain for chain, _ in reversed(sequences)]).tolist() == alone[::-1]


def test_ties_at_temperature_zero_go_to_the_lowest_token():
    row = torch.tensor([[0.0, 5.0, 2.0, 5.0]])
    greedy = SequenceParams(sampling=SamplingParams(temperature=0))
    biased = SequenceParams(sampling=SamplingParams(temperature=0, logit_bias={0: 5.0}))
    assert choose_tokens(row, [Chain(state_of(greedy, [0]), [])]).tolist() == [1]
    assert choose_tokens(row, [Chain(state_of(biased, [0]), [])]).tolist() == [0]


def test_logits_are_left_as_they_are():
    row = torch.randn(1, 40, generator=torch.Generator().manual_seed(0))
    before = row.clone()
    sampling = SamplingParams(temperature=0.5, top_k=3, presence_penalty=1.0)
    choose_tokens(row, [Chain(state_of(SequenceParams(sampling=sampling), [0], [1]), [])])
    assert torch.equal(row, before)
