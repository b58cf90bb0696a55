"""A hash of a token sequence that grows by one token in constant time: drafts name their base by it."""

from array import array
from collections.abc import Sequence
from functools import cache

import numpy as np

EMPTY = 0
_PRIME = (1 << 61) - 1
_BASE = 0x1F3D5B79A2C4E681 % _PRIME

# Texts are hashed in pieces of so many tokens; what is shorter than the lesser number, token by token.
_NUM_PER_PIECE = 4096
_LEAST_NUM_IN_PIECES = 64
_PART_BITS = 16


def extend(value: int, token_ids: Sequence[int]) -> int:
    """Returns the hash of a sequence with hash `value` followed by `token_ids`.

    A polynomial modulo the prime 2^61 - 1 (Karp and Rabin): against mistakes, not against an adversary.
    """
    if len(token_ids) >= _LEAST_NUM_IN_PIECES:
        return _extend_in_pieces(value, np.frombuffer(array("I", token_ids), dtype=np.uint32))
    for token_id in token_ids:
        value = (value * _BASE + token_id + 1) % _PRIME
    return value


def _extend_in_pieces(value: int, token_ids: np.ndarray) -> int:
    """Does the same for a long text in a fraction of the time.

    A piece adds the sum of (token + 1) * base^(tokens behind it), reckoned for 16 bits of the powers at once:
    33 + 16 bits and 4096 terms stay below 2^64.
    """
    powers = _powers()
    terms = token_ids.astype(np.uint64) + np.uint64(1)
    for start in range(0, len(terms), _NUM_PER_PIECE):
        piece = terms[start : start + _NUM_PER_PIECE]
        sums = (piece @ powers[-len(piece) :]).tolist()
        total = sum(part << (_PART_BITS * index) for index, part in enumerate(sums))
        value = (value * pow(_BASE, len(piece), _PRIME) + total) % _PRIME
    return value


@cache
def _powers() -> np.ndarray:
    """Returns the powers of the base, highest first, in parts of 16 bits, lowest first."""
    powers = [1]
    while len(powers) < _NUM_PER_PIECE:
        powers.append(powers[-1] * _BASE % _PRIME)
    shifts = np.arange(0, 64, _PART_BITS, dtype=np.uint64)
    return (np.array(powers[::-1], dtype=np.uint64)[:, None] >> shifts) & np.uint64((1 << _PART_BITS) - 1)
