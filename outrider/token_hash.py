"""A hash of a token sequence that grows by one token in constant time: drafts name their base by it."""

from collections.abc import Iterable

EMPTY = 0
_PRIME = (1 << 61) - 1
_BASE = 0x1F3D5B79A2C4E681 % _PRIME


def extend(value: int, token_ids: Iterable[int]) -> int:
    """Returns the hash of a sequence with hash `value` followed by `token_ids`.

    A polynomial modulo the prime 2^61 - 1 (Karp and Rabin): against mistakes, not against an adversary.
    """
    for token_id in token_ids:
        value = (value * _BASE + token_id + 1) % _PRIME
    return value
