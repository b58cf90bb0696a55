"""The random words equal the published ones and the noise is a pure function of its inputs."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.kernels.torch.philox import gumbel_noise, philox4x32_10
from outrider.kernels.torch.sample_verify import MAX_DISTANCE
from tests.unit.sampling import reference

# Random123's kat_vectors, philox4x32 with 10 rounds: counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
words = st.integers(0, 2**32 - 1)


def parse(text):
    return [int(word, 16) for word in text.split()]


def tensors(values) -> Any:
    return tuple(torch.tensor([value]) for value in values)


def noise_of(seed, choice, position, token_ids):
    group = torch.tensor(token_ids) // 4
    key = (torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32))
    values = gumbel_noise(key, torch.tensor(choice), torch.tensor(position), group)
    return values[torch.arange(len(token_ids)), torch.tensor(token_ids) % 4]


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_words_equal_the_published_vectors(counter, key, result):
    assert [int(word) for word in philox4x32_10(tensors(parse(counter)), tensors(parse(key)))] == parse(
        result
    )
    assert list(reference.philox(parse(counter), parse(key))) == parse(result)


@given(st.tuples(words, words, words, words), st.tuples(words, words))
def test_words_equal_plain_integer_arithmetic(counter, key):
    assert [int(word) for word in philox4x32_10(tensors(counter), tensors(key))] == list(
        reference.philox(counter, key)
    )


@given(st.integers(0, 2**64 - 1), words, words, st.lists(st.integers(0, 200_000), min_size=1, max_size=40))
def test_noise_equals_the_definition_bit_for_bit(seed, choice, position, token_ids):
    expected = [reference.noise(seed, choice, position, token_id) for token_id in token_ids]
    assert noise_of(seed, choice, position, token_ids).tolist() == [float(value) for value in expected]


def test_noise_never_spans_more_than_the_distance_at_which_tokens_are_skipped():
    extremes = [-np.log(-np.log((word + 0.5) * 2.0**-32)) for word in (0, 2**32 - 1)]
    assert extremes[0] > -3.15
    assert extremes[1] < 22.89
    assert extremes[1] - extremes[0] < MAX_DISTANCE


def test_noise_does_not_depend_on_shape_or_neighbours():
    token_ids = torch.randint(0, 1 << 18, (999,), generator=torch.Generator().manual_seed(1)).tolist()
    together = noise_of(7, 0, 11, token_ids).tolist()
    for start, length in ((0, 1), (3, 5), (17, 64), (100, 251), (998, 1)):
        assert (
            noise_of(7, 0, 11, token_ids[start : start + length]).tolist() == together[start : start + length]
        )
