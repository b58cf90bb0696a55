"""The hashes by which equal beginnings of texts are found: one per full block, over all tokens so far."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_NUM_BYTES = 16


def extend(
    hashes: list[bytes], tenant: str, token_ids: Sequence[int], block_size: int, num_blocks: int
) -> None:
    """Adds the hashes of further blocks until there are those of the first `num_blocks`, all of them full.

    Each covers the tenant too: none shares another's blocks.
    """
    for index in range(len(hashes), num_blocks):
        parent = hashes[-1] if hashes else _digest(tenant.encode())
        tokens = array("I", token_ids[index * block_size : (index + 1) * block_size])
        hashes.append(_digest(parent + tokens.tobytes()))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_NUM_BYTES).digest()
