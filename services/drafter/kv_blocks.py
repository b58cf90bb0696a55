"""Where a model of the drafter keeps its keys and values: blocks, and which tokens of a text lie in them.

A call of the model goes, for each text that is asked about:

    blocks.begin()                             what is taken from here on is safe until the next `begin`
    table = blocks.take(sequence)              as the last call left it; empty if others needed its blocks
    branch = blocks.fork(table, other_text)    a second text of the same sequence: shares whole blocks
    blocks.roll_back(table, text)              lets go of what the text does not begin with
    if blocks.reserve(table, num_tokens):      room for so many tokens in all; False: there is none
        ...                                    compute the tokens behind table.num_tokens into their slots
        table.token_ids.extend(computed)       they are cached now
    blocks.release(branch)                     branches end with the call
    blocks.drop(sequence)                      the sequence ended

The logits behind a text come of computing its last token: so that it is not taken as cached, pass the text
without it to `fork` and `roll_back`.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

Text = array | np.ndarray
"""Token ids, as array("I") or uint32."""


@dataclass(slots=True, eq=False)
class BlockTable:
    """The tokens of one text that are cached, and the blocks that they lie in or will."""

    block_size: int
    call: int
    token_ids: array = field(default_factory=lambda: array("I"))
    block_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """How many tokens are cached."""
        return len(self.token_ids)

    def slots(self, first: int, last: int) -> list[int]:
        """Returns the slots of tokens first .. last - 1, for which blocks are reserved."""
        size, blocks = self.block_size, self.block_ids
        return [blocks[place // size] * size + place % size for place in range(first, last)]


class KVBlocks:
    """A bounded number of blocks, counted by reference; the sequence used least recently gives its own up."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._tables: OrderedDict[Hashable, BlockTable] = OrderedDict()  # least recently taken first
        self._branches: set[BlockTable] = set()
        self._free = list(range(num_blocks - 1, -1, -1))
        self._reference_counts = [0] * num_blocks
        self._call = 0

    def begin(self) -> None:
        """Begins a call; what earlier ones took may be evicted."""
        self._call += 1

    def take(self, owner: Hashable) -> BlockTable:
        """Returns the table of a sequence, and keeps it for this call."""
        table = self._tables.setdefault(owner, BlockTable(self.block_size, self._call))
        table.call = self._call
        self._tables.move_to_end(owner)
        return table

    def fork(self, table: BlockTable, text: Text) -> BlockTable:
        """Returns a table for another text, with the whole blocks that both have in common."""
        branch = BlockTable(self.block_size, self._call)
        num_shared = num_common(table.token_ids, text) // self.block_size
        branch.block_ids = table.block_ids[:num_shared]
        branch.token_ids = table.token_ids[: num_shared * self.block_size]
        for block_id in branch.block_ids:
            self._reference_counts[block_id] += 1
        self._branches.add(branch)
        return branch

    def roll_back(self, table: BlockTable, text: Text) -> None:
        """Forgets what is cached beyond the beginning that it has in common with the text."""
        num_tokens = num_common(table.token_ids, text)
        num_whole, rest = divmod(num_tokens, self.block_size)
        if rest and self._reference_counts[table.block_ids[num_whole]] > 1:
            # A branch reads the block to be written: it is computed again elsewhere.
            num_tokens, rest = num_whole * self.block_size, 0
        del table.token_ids[num_tokens:]
        self._shorten(table, num_whole + bool(rest))

    def reserve(self, table: BlockTable, num_tokens: int) -> bool:
        """Makes room for so many tokens in all; returns whether there is any, and changes nothing if not."""
        num_missing = -(-num_tokens // self.block_size) - len(table.block_ids)
        if num_missing > len(self._free) and num_missing > len(self._free) + self._num_evictable():
            return False
        while num_missing > len(self._free):
            self._evict()
        for _ in range(num_missing):
            block_id = self._free.pop()
            self._reference_counts[block_id] = 1
            table.block_ids.append(block_id)
        return True

    def release(self, branch: BlockTable) -> None:
        """Ends a branch."""
        self._branches.remove(branch)
        self._shorten(branch, 0)

    def drop(self, owner: Hashable) -> None:
        """Ends a sequence, if it is known."""
        if (table := self._tables.pop(owner, None)) is not None:
            self._shorten(table, 0)

    def _num_evictable(self) -> int:
        """Counts the blocks of the sequences that this call has not taken: none of them is shared."""
        earlier = takewhile(lambda table: table.call != self._call, self._tables.values())
        return sum(len(table.block_ids) for table in earlier)

    def _evict(self) -> None:
        """Takes the blocks of the sequence that was not taken for longest."""
        _, table = self._tables.popitem(last=False)
        self._shorten(table, 0)

    def _shorten(self, table: BlockTable, num_blocks: int) -> None:
        for block_id in table.block_ids[num_blocks:]:
            self._reference_counts[block_id] -= 1
            if not self._reference_counts[block_id]:
                self._free.append(block_id)
        del table.block_ids[num_blocks:]

    def check(self) -> None:
        """Asserts that every block is free or held as often as tables name it; for tests."""
        tables = [*self._tables.values(), *self._branches]
        held = Counter(block_id for table in tables for block_id in table.block_ids)
        assert self._reference_counts == [held[block_id] for block_id in range(self.num_blocks)]
        assert len(self._free) == len(set(self._free)) == self.num_blocks - len(held)
        assert not held.keys() & set(self._free)
        for table in tables:
            assert len(set(table.block_ids)) == len(table.block_ids)
            assert table.num_tokens <= len(table.block_ids) * self.block_size
            # Only whole blocks of computed tokens are shared: nobody writes to them.
            written = table.block_ids[table.num_tokens // self.block_size :]
            assert all(held[block_id] == 1 for block_id in written)


def num_common(first: Text, second: Text) -> int:
    """Returns the length of the beginning that two texts have in common."""
    length = min(len(first), len(second))
    differs = np.asarray(first)[:length] != np.asarray(second)[:length]
    place = int(differs.argmax()) if length else 0
    return place if length and differs[place] else length
