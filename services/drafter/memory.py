"""What each tenant's finished sequences said, and the running ones beside it, within one budget of bytes."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from services.drafter import metrics
from services.drafter.suffix_index import SuffixIndex

# Tokens added or forgotten at a time: well under a millisecond of the event loop.
CHUNK = 256


class SuffixMemory:
    """The tenants' memories, which never meet; the indexes of running sequences count in the same budget.

    When bytes run out, the tenant that holds most forgets its oldest tokens. Running sequences are refused
    only when nothing is left to forget.
    """

    def __init__(self, max_num_bytes: int) -> None:
        self._max_num_bytes = max_num_bytes
        self._memories: dict[str, SuffixIndex] = {}
        self._bytes: dict[str, int] = {}
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

    def open(self) -> SuffixIndex | None:
        """Starts the index of a running sequence, which `close` takes back; None if there is no room."""
        index = SuffixIndex()
        self._change(index.num_bytes)
        if self.num_bytes <= self._max_num_bytes:
            return index
        self.close(index)
        return None

    def close(self, index: SuffixIndex) -> None:
        """Gives back the bytes of a running sequence."""
        self.num_bytes -= index.num_bytes

    def extend(self, index: SuffixIndex, token_ids: Sequence[int]) -> bool:
        """Adds tokens to a running sequence; False if there is no room: it must be closed at once."""
        before = index.num_bytes
        index.extend(token_ids)
        self._change(index.num_bytes - before)
        return self.num_bytes <= self._max_num_bytes

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
        self._change(self._bytes[tenant] - before)

    def _change(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_num_bytes and self._bytes:
            self._forget(max(self._bytes, key=self._bytes.__getitem__))

    def _forget(self, tenant: str) -> None:
        index = self._memories[tenant]
        before, num_tokens = self._bytes[tenant], min(CHUNK, len(index))
        index.forget(num_tokens)
        metrics.num_forgotten_tokens.inc(num_tokens)
        if len(index):
            self._bytes[tenant] = index.num_bytes
            self.num_bytes += index.num_bytes - before
        else:
            del self._memories[tenant], self._bytes[tenant]
            self.num_bytes -= before

    def check(self) -> None:
        """Asserts that the books agree with the indexes; for tests."""
        assert self._memories.keys() == self._bytes.keys()
        assert all(index.num_bytes == self._bytes[tenant] for tenant, index in self._memories.items())
        assert sum(self._bytes.values()) <= self.num_bytes <= self._max_num_bytes


def pieces(token_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Cuts a text into pieces of at most CHUNK tokens."""
    for start in range(0, len(token_ids), CHUNK):
        yield token_ids[start : start + CHUNK]
