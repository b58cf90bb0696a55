"""Random parameters, and a model whose logits are a pure function of the tokens so far."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from outrider.kernels import load_kernels
from outrider.model.sampling import Chain, SamplingState, choose, outputs
from outrider.params import ReasoningLimit, SamplingParams, SequenceParams

KERNELS = load_kernels("torch")
VOCAB_SIZE = 30
MAX_MODEL_LEN = 64
token_ids = st.integers(0, VOCAB_SIZE - 1)

sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.4]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.4]),
    logit_bias=st.dictionaries(token_ids, st.floats(-5, 5, width=32), max_size=3),
    bad_words=st.lists(st.lists(token_ids, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
    min_tokens=st.sampled_from([0, 0, 3]),
    max_tokens=st.sampled_from([None, 3, 12, 20]),
    stop_token_ids=st.lists(token_ids, max_size=2).map(tuple),
    num_logprobs=st.sampled_from([None, None, 0, 3]),
)
sequence_params = st.builds(
    SequenceParams,
    sampling=sampling_params,
    seed=st.integers(0, 2**53),
    choice=st.integers(0, 3),
    reasoning_limit=st.none()
    | st.builds(ReasoningLimit, max_tokens=st.integers(0, 6), end_token_id=token_ids),
)


def logits_after(tokens, vocab_size=VOCAB_SIZE, scale=4.0):
    """Returns a row of logits that the last few tokens decide, with ties."""
    seed = np.array([len(tokens) % 7, *tokens[-2:]], dtype=np.uint64)
    return (np.random.default_rng(seed).normal(size=vocab_size) * scale).round(1).astype(np.float32)


def choose_tokens(logits, chains):
    """Returns the model's own token of each row."""
    return choose(logits, chains, KERNELS).tokens.numpy()


def state_of(params, prompt, output=(), grammar=None):
    """Returns the state of a sequence with this prompt and output."""
    tokens = [*prompt, *output]
    return SamplingState(params, tokens, len(prompt), max_model_len=MAX_MODEL_LEN, grammar=grammar)


def step(states, drafts, logits_after=logits_after) -> list[Any]:
    """Verifies one draft per state and returns the outcomes."""
    rows = [
        logits_after([*state.token_ids.tolist(), *draft[:length]])
        for state, draft in zip(states, drafts, strict=True)
        for length in range(len(draft) + 1)
    ]
    chains = [Chain(state, draft) for state, draft in zip(states, drafts, strict=True)]
    logits = torch.from_numpy(np.stack(rows))
    return outputs(choose(logits, chains, KERNELS), logits, chains)


def is_over(state):
    """Tells whether the output has ended."""
    return (
        state.is_complete
        or state.num_tokens_left == 0
        or (state.num_output_tokens > 0 and int(state.token_ids[-1]) in state.stop_token_ids)
    )
