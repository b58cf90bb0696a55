"""Choosing tokens by its definition, one row at a time in Python and float64: slow and easy to check."""

import math

import numpy as np

from outrider.params import SequenceParams

MASK = 0xFFFFFFFF


def philox(counter, key):
    """Returns the four words of Philox4x32-10 by plain integers."""
    (x0, x1, x2, x3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x1, x2, x3 = (p1 >> 32) ^ x1 ^ k0, p1 & MASK, (p0 >> 32) ^ x3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return x0, x1, x2, x3


def noise(seed, choice, position, token_id):
    """Returns the noise of one token as float32."""
    word = philox((token_id // 4, position, choice, 0), (seed & MASK, seed >> 32))[token_id % 4]
    return np.float32(-math.log(-math.log((word + 0.5) * 2.0**-32)))


def scores(logits, params: SequenceParams, prompt, output):
    """Returns the scores after `prompt` and `output`, before temperature and filters, in float64."""
    sampling, limit = params.sampling, params.reasoning_limit
    values = np.array(logits, dtype=np.float64)
    for token_id in {*prompt, *output}:
        factor = sampling.repetition_penalty
        values[token_id] = values[token_id] / factor if values[token_id] > 0 else values[token_id] * factor
    for token_id in set(output):
        values[token_id] -= sampling.presence_penalty + sampling.frequency_penalty * output.count(token_id)
    for token_id, bias in sampling.logit_bias.items():
        values[token_id] += bias
    for *prefix, last in sampling.bad_words:
        if output[len(output) - len(prefix) :] == prefix:
            values[last] = -np.inf
    if len(output) < sampling.min_tokens:
        values[list(sampling.stop_token_ids)] = -np.inf
    if limit and len(output) >= limit.max_tokens and limit.end_token_id not in output:
        values[:] = -np.inf
        values[limit.end_token_id] = 0
    return values


def filtered(values, sampling):
    """Returns scores over the temperature, minus infinity for what top-k, top-p and min-p drop."""
    values = np.array(values, dtype=np.float64) / (sampling.temperature or 1)
    falling = -np.sort(-values)
    if 0 < sampling.top_k < len(values):
        values[values < falling[sampling.top_k - 1]] = -np.inf
    if sampling.top_p < 1:
        falling = -np.sort(-values)
        shares = np.exp(falling - falling[0])
        reached = np.nonzero(np.cumsum(shares) >= sampling.top_p * shares.sum())[0]
        values[values < falling[reached[0] if len(reached) else -1]] = -np.inf
    if sampling.min_p > 0:
        values[np.exp(values - values.max()) < sampling.min_p] = -np.inf
    return values


def probabilities(values):
    """Returns the distribution that scores stand for."""
    shares = np.exp(values - values.max())
    return shares / shares.sum()
