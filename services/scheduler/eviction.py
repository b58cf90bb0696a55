"""Which cached block goes first when blocks are needed."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol


class Eviction(Protocol):
    """Holds the cached blocks that no sequence holds, and chooses which of them goes."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...

    def add(self, block_id: int) -> None:
        """Takes a cached block that no sequence holds any more."""
        ...

    def remove(self, block_id: int) -> None:
        """Lets go of a block that a sequence holds again."""
        ...

    def pop(self) -> int:
        """Chooses the block to evict."""
        ...


class LeastRecentlyUsed:
    """Gives up the block that has been unheld for longest."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def add(self, block_id: int) -> None:
        """Takes a cached block that no sequence holds any more."""
        self._order[block_id] = None

    def remove(self, block_id: int) -> None:
        """Lets go of a block that a sequence holds again."""
        del self._order[block_id]

    def pop(self) -> int:
        """Chooses the block to evict."""
        return self._order.popitem(last=False)[0]
