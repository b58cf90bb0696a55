"""Which prefixes a group has in its cache, as far as this gateway knows from what it sent there."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from outrider.block_hash import extend


def block_hashes(
    tenant: str, token_ids: Sequence[int], block_size: int, *, known: Sequence[bytes] = ()
) -> tuple[bytes, ...]:
    """Returns the hashes of the full blocks of a text, each covering the tenant and all tokens before.

    `known` are the hashes of its first blocks.
    """
    hashes = list(known)
    extend(hashes, tenant, token_ids, block_size, len(token_ids) // block_size)
    return tuple(hashes)


class PrefixMemory:
    """The blocks that a group has computed, the least recently used forgotten first, as the group does.

    The beginning of a text is younger than what follows it: while a block is known, so are all before it.
    """

    def __init__(self, max_num_blocks: int) -> None:
        self._max_num_blocks = max_num_blocks
        # Oldest first.
        self._hashes: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def num_known(self, hashes: Iterable[bytes]) -> int:
        """Returns how many blocks of a text are known from its beginning on."""
        return sum(1 for _ in takewhile(self._hashes.__contains__, hashes))

    def add(self, hashes: Sequence[bytes]) -> None:
        """Notes that a text was computed, or found."""
        for block_hash in reversed(hashes):
            self._hashes.pop(block_hash, None)
            self._hashes[block_hash] = None
        self._shrink(self._max_num_blocks)

    def forget(self, block_hash: bytes) -> None:
        """Forgets a block that the group no longer had, and all older ones: they were its to evict before."""
        while block_hash in self._hashes:
            self._shrink(len(self._hashes) - 1)

    def resize(self, max_num_blocks: int) -> None:
        """Keeps to as many blocks as the group has."""
        self._max_num_blocks = max_num_blocks
        self._shrink(max_num_blocks)

    def clear(self) -> None:
        """Forgets all: another group has computed nothing yet."""
        self._hashes.clear()

    def _shrink(self, num_blocks: int) -> None:
        while len(self._hashes) > num_blocks:
            del self._hashes[next(iter(self._hashes))]
