"""The hash that names a draft's base."""

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
