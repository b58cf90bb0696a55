"""What each tenant's finished sequences said, and the running ones beside it, within one budget of bytes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.drafter import metrics
from services.drafter.suffix_index import SuffixIndex

# Tokens added or forgotten at a time: a few milliseconds of the event loop at most.
CHUNK = 256


@dataclass(slots=True)
class _Running:
    """The index of a running sequence: whose it is, what it takes, and who is to hear if it is dropped."""

    tenant: str
    num_bytes: int
    drop: Callable[[], None]


class SuffixMemory:
    """The tenants' memories, which never meet; the indexes of their running sequences count beside them.

    When bytes run out, the tenant that holds most of both gives up its oldest tokens; if it remembers none,
    its largest running sequence.
    """

    def __init__(self, max_num_bytes: int) -> None:
        self._max_num_bytes = max_num_bytes
        self._memories: dict[str, SuffixIndex] = {}
        self._bytes: dict[str, int] = {}
        self._running: dict[SuffixIndex, _Running] = {}
        self._totals: defaultdict[str, int] = defaultdict(int)
        # A text is added in pieces, and the pieces of two must not mix.
        self._adding = asyncio.Lock()
        self.num_bytes = 0

    @property
    def bytes_by_tenant(self) -> Mapping[str, int]:
        """What each tenant's finished sequences take."""
        return self._bytes

    def memory_of(self, tenant: str) -> SuffixIndex | None:
        """Returns what the tenant's finished sequences said; None where nothing is remembered."""
        return self._memories.get(tenant)

    @property
    def is_adding(self) -> bool:
        """Whether a text is being added, which others have to wait for."""
        return self._adding.locked()

    def open(self, tenant: str, index: SuffixIndex, drop: Callable[[], None]) -> None:
        """Takes in the index of a running sequence until `close`; `drop` is called if it must go before."""
        self._running[index] = _Running(tenant, 0, drop)
        self.extend(index, ())

    def close(self, index: SuffixIndex) -> None:
        """Gives back the bytes of a running sequence, unless it was dropped."""
        if (running := self._running.pop(index, None)) is not None:
            self._count(running.tenant, -running.num_bytes)

    def extend(self, index: SuffixIndex, token_ids: Sequence[int]) -> None:
        """Adds tokens to a running sequence, for which it or another may be dropped."""
        running = self._running[index]
        index.extend(token_ids)
        before, running.num_bytes = running.num_bytes, index.num_bytes
        self._count(running.tenant, running.num_bytes - before)
        self._make_room()

    async def remember(self, tenant: str, token_ids: Sequence[int]) -> None:
        """Adds a finished text to the tenant's memory, and lets others work now and then."""
        async with self._adding:
            try:
                for piece in pieces(token_ids):
                    self._add(tenant, piece)
                    await asyncio.sleep(0)
            finally:
                if (index := self.memory_of(tenant)) is not None:
                    self._change_memory(tenant, index.end_text)

    def _add(self, tenant: str, token_ids: Sequence[int]) -> None:
        index = self._memories.setdefault(tenant, SuffixIndex())
        self._change_memory(tenant, lambda: index.extend(token_ids))

    def _change_memory(self, tenant: str, change: Callable[[], None]) -> None:
        before = self._bytes.get(tenant, 0)
        change()
        self._bytes[tenant] = self._memories[tenant].num_bytes
        self._count(tenant, self._bytes[tenant] - before)
        self._make_room()

    def _count(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._totals[tenant] += num_bytes
        if not self._totals[tenant]:
            del self._totals[tenant]

    def _make_room(self) -> None:
        while self.num_bytes > self._max_num_bytes:
            tenant = max(self._totals, key=self._totals.__getitem__)
            if tenant in self._memories:
                self._forget(tenant)
            else:
                self._drop_largest(tenant)

    def _drop_largest(self, tenant: str) -> None:
        own = [(item.num_bytes, index) for index, item in self._running.items() if item.tenant == tenant]
        _, index = max(own, key=lambda pair: pair[0])
        drop = self._running[index].drop
        self.close(index)
        drop()

    def _forget(self, tenant: str) -> None:
        index = self._memories[tenant]
        before, num_tokens = self._bytes[tenant], min(CHUNK, len(index))
        index.forget(num_tokens)
        metrics.num_forgotten_tokens.inc(num_tokens)
        if len(index):
            self._bytes[tenant] = index.num_bytes
            self._count(tenant, index.num_bytes - before)
        else:
            del self._memories[tenant], self._bytes[tenant]
            self._count(tenant, -before)

    def check(self) -> None:
        """Asserts that the books agree with the indexes; for tests."""
        assert self._memories.keys() == self._bytes.keys()
        assert all(index.num_bytes == self._bytes[tenant] for tenant, index in self._memories.items())
        assert all(index.num_bytes == running.num_bytes for index, running in self._running.items())
        running = sum(item.num_bytes for item in self._running.values())
        assert sum(self._bytes.values()) + running == sum(self._totals.values()) == self.num_bytes
        assert self.num_bytes <= self._max_num_bytes


def pieces(token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cuts a text into pieces of at most CHUNK tokens."""
    for start in range(0, len(token_ids), CHUNK):
        yield token_ids[start : start + CHUNK]
