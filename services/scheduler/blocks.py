"""The blocks of a group's KV cache: who holds them, and which hold a prefix worth keeping."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from services.scheduler.eviction import Eviction, LeastRecentlyUsed


class BlockPool:
    """All blocks, each in exactly one place:

    empty      no content worth keeping             --allocate-->  held
    held       in one or more block tables          --release--->  empty, or evictable if published
    evictable  published under its prefix hash      --share----->  held
                                                    --allocate-->  held, its hash forgotten
    """

    def __init__(self, *, num_blocks: int, block_size: int, evictable: Eviction | None = None) -> None:
        """`evictable`: what chooses the block that goes; unset: the least recently used goes."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._reference_counts = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._published: dict[bytes, int] = {}
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._evictable = LeastRecentlyUsed() if evictable is None else evictable

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return len(self._empty) + len(self._evictable)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks hold so many tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Returns the published blocks of the longest prefix."""
        block_ids = []
        for block_hash in hashes:
            if (block_id := self._published.get(block_hash)) is None:
                break
            block_ids.append(block_id)
        return block_ids

    def num_free_blocks_beside(self, block_ids: Iterable[int]) -> int:
        """Returns how many blocks would be free if these were held."""
        return self.num_free_blocks - sum(not self._reference_counts[block_id] for block_id in block_ids)

    def num_free_blocks_as_released(
        self, block_tables: Iterable[Sequence[int]], block_ids: Iterable[int]
    ) -> Iterator[int]:
        """Yields how many blocks would be free beside these once each of the tables is released in turn."""
        kept, counts = set(block_ids), Counter[int]()
        num_free = self.num_free_blocks_beside(kept)
        for table in block_tables:
            counts.update(table)
            num_free += sum(
                counts[block_id] == self._reference_counts[block_id] and block_id not in kept
                for block_id in table
            )
            yield num_free

    def share(self, block_ids: Iterable[int]) -> None:
        """Holds published blocks once more."""
        for block_id in block_ids:
            if not self._reference_counts[block_id]:
                self._evictable.remove(block_id)
            self._reference_counts[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Takes free blocks, empty ones first; the caller has looked that there are enough."""
        assert count <= self.num_free_blocks
        block_ids = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for block_id in block_ids:
            self._reference_counts[block_id] = 1
        return block_ids

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """Offers a held, full, computed block to other sequences; of equal blocks the first one stays."""
        assert self._reference_counts[block_id] > 0
        if self._hashes[block_id] is None and block_hash not in self._published:
            self._hashes[block_id] = block_hash
            self._published[block_hash] = block_id

    def release(self, block_ids: Sequence[int]) -> None:
        """Lets go of a block table, its end first: the beginning of a text is what is asked again."""
        for block_id in reversed(block_ids):
            assert self._reference_counts[block_id] > 0
            self._reference_counts[block_id] -= 1
            if not self._reference_counts[block_id]:
                if self._hashes[block_id] is None:
                    self._empty.append(block_id)
                else:
                    self._evictable.add(block_id)

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless every block is in one place and held as often as tables name it."""
        held = Counter(block_id for table in block_tables for block_id in table)
        empty, evictable = set(self._empty), set(self._evictable)
        assert len(empty) == len(self._empty)
        assert self._reference_counts == [held[block_id] for block_id in range(self.num_blocks)]
        for block_id in range(self.num_blocks):
            places = (held[block_id] > 0, block_id in empty, block_id in evictable)
            assert sum(places) == 1, f"block {block_id} is held, empty, evictable: {places}"
        hashed = {value: block_id for block_id, value in enumerate(self._hashes) if value is not None}
        assert hashed == self._published
        assert all(self._hashes[block_id] is not None for block_id in evictable)
        assert all(self._hashes[block_id] is None for block_id in empty)

    def _evict(self) -> int:
        block_id = self._evictable.pop()
        block_hash = self._hashes[block_id]
        assert block_hash is not None
        del self._published[block_hash]
        self._hashes[block_id] = None
        return block_id
