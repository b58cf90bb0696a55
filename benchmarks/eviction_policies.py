"""Ways to choose the cached block that goes, beside the scheduler's: candidates, and one that foresees."""

import heapq
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol

NUM_BUCKETS = 24
# Three uses and more are one class.
NUM_CLASSES = 4
PRIOR = 4.0


class SegmentedLru:
    """Keeps blocks that were used again in a part of their own, as SLRU and 2Q do; the rest goes first."""

    def __init__(self, protected_share: float = 0.5) -> None:
        self._share = protected_share
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._reused: set[int] = set()

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def __iter__(self) -> Iterator[int]:
        yield from self._probation
        yield from self._protected

    def add(self, block_id: int) -> None:
        """Takes a block; too many protected ones let go of their oldest."""
        (self._protected if block_id in self._reused else self._probation)[block_id] = None
        while len(self._protected) > self._share * len(self):
            oldest, _ = self._protected.popitem(last=False)
            self._reused.discard(oldest)
            self._probation[oldest] = None

    def remove(self, block_id: int) -> None:
        """Lets go of a block that is used again."""
        part = self._probation if block_id in self._probation else self._protected
        del part[block_id]
        self._reused.add(block_id)

    def pop(self) -> int:
        """Chooses the oldest of those used once, if there is one."""
        block_id, _ = (self._probation or self._protected).popitem(last=False)
        self._reused.discard(block_id)
        return block_id


class ByUses:
    """Keeps blocks by the number of their uses, oldest first; `worth` says which of the oldest goes."""

    def __init__(self, worth: "Worth") -> None:
        self._worth = worth
        self._queues: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(NUM_CLASSES)]
        self._uses: dict[int, int] = {}
        self._now = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __iter__(self) -> Iterator[int]:
        for queue in self._queues:
            yield from queue

    def add(self, block_id: int) -> None:
        """Takes a block."""
        self._now += 1
        self._queues[self._uses.get(block_id, 0)][block_id] = self._now

    def remove(self, block_id: int) -> None:
        """Lets go of a block that is used again, and counts the use."""
        uses = self._uses.get(block_id, 0)
        self._worth.note(uses, self._now - self._queues[uses].pop(block_id), is_hit=True)
        self._uses[block_id] = min(uses + 1, NUM_CLASSES - 1)

    def pop(self) -> int:
        """Chooses among the oldest of each number of uses."""
        worths: list[tuple[float, int]] = []
        for uses, queue in enumerate(self._queues):
            if queue:
                worths.append((self._worth.of(uses, self._now - next(iter(queue.values())) + 1), uses))
        _, uses = min(worths)
        block_id, added = self._queues[uses].popitem(last=False)
        self._worth.note(uses, self._now - added, is_hit=False)
        self._uses.pop(block_id, None)
        return block_id


class Worth(Protocol):
    """What it is worth to keep a block that was used so often and has waited for so long."""

    def of(self, uses: int, age: int) -> float:
        """Returns the worth; ages count blocks that were let go since."""
        ...

    def note(self, uses: int, age: int, *, is_hit: bool) -> None:
        """Hears that a block of this age was used again, or was evicted."""
        ...


class Weighted:
    """Divides the age by one more than the uses."""

    def of(self, uses: int, age: int) -> float:
        """Returns the inverse of the weighted age."""
        return (1 + uses) / age

    def note(self, uses: int, age: int, *, is_hit: bool) -> None:
        """Learns nothing."""


class Learned:
    """Learns how probably a block is used again soon, given its uses and its age in powers of two.

    After LHD (Beckmann, Chen, Cidon, NSDI 2018): uses per time at risk; it begins with the belief that the
    chance falls as one over the age, which is what least recently used believes.
    """

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        self._num_noted = 0
        self._hits = [[PRIOR] * NUM_BUCKETS for _ in range(NUM_CLASSES)]
        self._exposure = [[PRIOR * 2.0 ** (bucket + 1) for bucket in range(NUM_BUCKETS)] for _ in self._hits]

    def of(self, uses: int, age: int) -> float:
        """Returns the uses to be expected per time from this age to four times of it."""
        span = slice(_bucket(age), _bucket(age) + 2)
        return sum(self._hits[uses][span]) / sum(self._exposure[uses][span])

    def note(self, uses: int, age: int, *, is_hit: bool) -> None:
        """Counts the time at risk, and the hit; old counts fade."""
        low = 0
        for bucket in range(_bucket(age) + 1):
            high = min(age, 1 << bucket)
            self._exposure[uses][bucket] += high - low
            low = high
        self._hits[uses][_bucket(age)] += is_hit
        self._num_noted += 1
        if self._num_noted % self._half_life == 0:
            self._hits = [[value / 2 for value in row] for row in self._hits]
            self._exposure = [[value / 2 for value in row] for row in self._exposure]


def _bucket(age: int) -> int:
    return min(NUM_BUCKETS - 1, (max(age, 1) - 1).bit_length())


class Foreseeing:
    """Evicts the block needed last, after Belady; of equals the one let go first: the end of a prefix."""

    def __init__(self, needed_at: Mapping[bytes, Sequence[int]]) -> None:
        """`needed_at` lists the requests, by their numbers, that ask for a hash."""
        self.now = 0
        self.hash_of: dict[int, bytes] = {}
        self._needed_at = needed_at
        self._needs: dict[int, tuple[float, int]] = {}
        self._order = count()
        self._latest: list[tuple[float, int, int]] = []
        self._soonest: list[tuple[float, int, int]] = []

    def __len__(self) -> int:
        return len(self._needs)

    def __iter__(self) -> Iterator[int]:
        return iter(self._needs)

    def add(self, block_id: int) -> None:
        """Takes a block."""
        self._note(block_id, next(self._order))

    def remove(self, block_id: int) -> None:
        """Lets go of a block that is used again."""
        del self._needs[block_id]

    def pop(self) -> int:
        """Looks ahead, past needs that came to nothing since a block before was missing."""
        while self._soonest and self._soonest[0][0] <= self.now:
            need, order, block_id = heapq.heappop(self._soonest)
            if self._needs.get(block_id) == (need, order):
                self._note(block_id, order)
        while True:
            need, order, block_id = heapq.heappop(self._latest)
            if self._needs.get(block_id) == (-need, order):
                del self._needs[block_id]
                return block_id

    def _note(self, block_id: int, order: int) -> None:
        numbers = self._needed_at.get(self.hash_of[block_id], ())
        place = bisect_right(numbers, self.now)
        need = numbers[place] if place < len(numbers) else math.inf
        self._needs[block_id] = need, order
        heapq.heappush(self._latest, (-need, order, block_id))
        heapq.heappush(self._soonest, (need, order, block_id))
