"""The hash that names a draft's base."""

import subprocess
import sys
from array import array
from functools import reduce
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider import token_hash

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=50)


@given(tokens, tokens)
def test_extending_in_two_parts_equals_extending_at_once(head: list[int], tail: list[int]) -> None:
    in_parts = token_hash.extend(token_hash.extend(token_hash.EMPTY, head), tail)
    assert in_parts == token_hash.extend(token_hash.EMPTY, head + tail)


@given(tokens, tokens)
def test_different_sequences_hash_differently(one: list[int], other: list[int]) -> None:
    same = token_hash.extend(token_hash.EMPTY, one) == token_hash.extend(token_hash.EMPTY, other)
    assert same == (one == other)


@given(tokens)
def test_the_hash_fits_the_wire(value: list[int]) -> None:
    assert 0 <= token_hash.extend(token_hash.EMPTY, value) < 2**64


@pytest.mark.parametrize("num_tokens", [63, 64, 65, 4095, 4096, 4097, 10_000])
def test_a_long_text_has_the_hash_of_its_tokens_one_by_one(num_tokens: int) -> None:
    random = Random(num_tokens)
    token_ids = [random.choice((0, 2**32 - 1, random.randrange(2**32))) for _ in range(num_tokens)]
    head = token_hash.extend(token_hash.EMPTY, token_ids[:7])
    one_by_one = reduce(lambda value, token_id: token_hash.extend(value, (token_id,)), token_ids, head)
    assert token_hash.extend(head, token_ids) == one_by_one
    assert token_hash.extend(head, array("I", token_ids)) == one_by_one


def test_a_client_needs_no_numpy() -> None:
    program = "import sys, outrider; print('numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
