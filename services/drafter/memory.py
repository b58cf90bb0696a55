"""What each tenant's finished sequences said, and the running ones beside it, within one budget of bytes."""

import asyncio
import secrets
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from outrider_native.suffix import MAX_TEXT_LENGTH, RunningText, StoredText, TextMemory

from services.drafter import metrics

# Tokens added at a time: a millisecond or two of the event loop, with the forgetting that they bring about.
PIECE = 1024
# Texts up to this are learnt at once, others beside.
MAX_NUM_TOKENS_AT_ONCE = 2048
# Texts that wait to be learnt; one more is not.
MAX_NUM_WAITING = 64
# Usefulness halves each time so many tokens are stored as fill the budget, at this many bytes each.
BYTES_PER_TOKEN = 80
# Whose the one memory of all is where memories are shared.
ALL_TENANTS = "(all)"


@dataclass(slots=True)
class _Running:
    """The index of a running sequence: whose it is, what it takes, and who is to hear if it is dropped."""

    owner: str
    num_bytes: int
    drop: Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Finished:
    """A text that waits to be learnt."""

    tenant: str
    token_ids: array
    num_prompt_tokens: int


class SuffixMemory:
    """The tenants' memories, apart unless shared; the indexes of running sequences count beside them.

    When bytes run out, the tenant that holds most of both gives up its least useful text; if it remembers
    none, its largest running sequence. `share`: all tenants have one memory.
    """

    def __init__(self, max_num_bytes: int, *, share: bool = False) -> None:
        self._max_num_bytes = max_num_bytes
        self._half_life = max(float(MAX_TEXT_LENGTH), max_num_bytes / BYTES_PER_TOKEN)
        self.is_shared = share
        # Chosen tokens must not make hashes collide.
        self._seed = secrets.randbits(64)
        self._memories: dict[str, TextMemory] = {}
        self._bytes: dict[str, int] = {}
        self._num_changes: defaultdict[str, int] = defaultdict(int)
        self._running: dict[RunningText, _Running] = {}
        self._totals: defaultdict[str, int] = defaultdict(int)
        # A text is added in pieces, and the pieces of two must not mix.
        self._adding = asyncio.Lock()
        self._learning: str | None = None  # whose text is being added
        self._waiting: asyncio.Queue[_Finished] = asyncio.Queue(MAX_NUM_WAITING)
        self.num_bytes = 0

    @property
    def bytes_by_tenant(self) -> Mapping[str, int]:
        """What each tenant's finished sequences take."""
        return self._bytes

    def owner(self, tenant: str) -> str:
        """Returns the tenant in whose name a tenant's texts are kept."""
        return ALL_TENANTS if self.is_shared else tenant

    def memory_of(self, tenant: str) -> TextMemory | None:
        """Returns what the tenant's finished sequences said; None where nothing is remembered."""
        return self._memories.get(self.owner(tenant))

    def open(self, tenant: str, drop: Callable[[], object]) -> RunningText:
        """Returns an index for a running sequence until `close`; `drop` is called if it must go before."""
        text = RunningText(self._seed)
        self._running[text] = _Running(self.owner(tenant), 0, drop)
        return text

    def close(self, text: RunningText) -> None:
        """Gives back the bytes of a running sequence, unless it was dropped."""
        if (running := self._running.pop(text, None)) is not None:
            self._count(running.owner, -running.num_bytes)

    def extend(self, text: RunningText, token_ids: array) -> None:
        """Takes in what is new of a running sequence's tokens; it or another may be dropped for it."""
        running = self._running[text]
        text.take_in(token_ids, len(token_ids))
        before, running.num_bytes = running.num_bytes, text.num_bytes
        self._count(running.owner, running.num_bytes - before)
        self._make_room()

    async def learn(self, tenant: str, token_ids: array, num_prompt_tokens: int) -> None:
        """Remembers a finished text, at once if it is short; a long one is left to `run`."""
        if len(token_ids) <= MAX_NUM_TOKENS_AT_ONCE and not self._adding.locked():
            await self.remember(tenant, token_ids, num_prompt_tokens)
            return
        try:
            self._waiting.put_nowait(_Finished(tenant, token_ids, num_prompt_tokens))
        except asyncio.QueueFull:
            metrics.num_unlearnt_texts.inc()

    async def run(self) -> None:
        """Remembers texts that wait, for ever."""
        while True:
            text = await self._waiting.get()
            await self.remember(text.tenant, text.token_ids, text.num_prompt_tokens)

    async def remember(self, tenant: str, token_ids: array, num_prompt_tokens: int) -> None:
        """Adds a finished text to the tenant's memory, and lets others work now and then."""
        owner = self.owner(tenant)
        async with self._adding:
            self._learning = owner
            try:
                for piece, is_output in _pieces(token_ids, num_prompt_tokens):
                    self._add(owner, piece, is_output)
                    await asyncio.sleep(0)
                    if self._learning is None:  # erased meanwhile
                        break
            finally:
                self._learning = None
                if owner in self._memories:
                    self._change(owner, TextMemory.end_text)

    def _add(self, owner: str, piece: array, is_output: bool) -> None:
        now = int(time.time())
        self._change(owner, lambda memory: memory.add(piece, is_output=is_output, now=now))

    def owners(self) -> list[str]:
        """Names all who have a memory."""
        return list(self._memories)

    def all_owners(self) -> set[str]:
        """Names all who have a memory or will, once what waits is learnt."""
        waiting = [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]
        for text in waiting:
            self._waiting.put_nowait(text)
        learning = () if self._learning is None else (self._learning,)
        return {*self._memories, *learning, *(self.owner(text.tenant) for text in waiting)}

    def erase(self, owner: str) -> None:
        """Forgets everything that is kept in this tenant's name, and what of it waits to be learnt."""
        if self._learning == owner:
            self._learning = None
        for _ in range(self._waiting.qsize()):
            text = self._waiting.get_nowait()
            if self.owner(text.tenant) != owner:
                self._waiting.put_nowait(text)
        self.forget_all(owner)

    def num_changes(self, owner: str) -> int:
        """Counts how often a memory has changed, to tell whether it has since."""
        return self._num_changes[owner]

    def restore(self, owner: str, text: StoredText) -> None:
        """Adds a stored text as it was."""
        self._change(owner, lambda memory: memory.restore(text))

    def forget_all(self, owner: str) -> None:
        """Forgets everything that is kept in this tenant's name."""
        if self._memories.pop(owner, None) is not None:
            self._count(owner, -self._bytes.pop(owner))
            self._num_changes[owner] += 1

    def _change(self, owner: str, change: Callable[[TextMemory], None]) -> None:
        memory = self._memories.get(owner)
        if memory is None:
            memory = self._memories[owner] = TextMemory(self._seed, self._half_life)
        try:
            change(memory)
        finally:
            self._num_changes[owner] += 1
            self._recount(owner)
        self._make_room()

    def _recount(self, owner: str) -> None:
        before, self._bytes[owner] = self._bytes.get(owner, 0), self._memories[owner].num_bytes
        self._count(owner, self._bytes[owner] - before)

    def _count(self, owner: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._totals[owner] += num_bytes
        if not self._totals[owner]:
            del self._totals[owner]

    def _make_room(self) -> None:
        while self.num_bytes > self._max_num_bytes:
            owner = max(self._totals, key=self._totals.__getitem__)
            if owner in self._memories:
                self._forget(owner)
            else:
                self._drop_largest(owner)

    def _drop_largest(self, owner: str) -> None:
        own = [text for text, running in self._running.items() if running.owner == owner]
        text = max(own, key=lambda text: self._running[text].num_bytes)
        drop = self._running[text].drop
        self.close(text)
        drop()

    def _forget(self, owner: str) -> None:
        num_tokens = self._memories[owner].forget()
        metrics.num_forgotten_tokens.inc(num_tokens)
        if len(self._memories[owner]):
            self._recount(owner)
        else:
            self.forget_all(owner)

    def check(self) -> None:
        """Asserts that the books agree with the indexes; for tests."""
        assert self._memories.keys() == self._bytes.keys()
        for owner, memory in self._memories.items():
            assert memory.num_bytes == self._bytes[owner]
            memory.check()
        assert all(running.num_bytes in (0, text.num_bytes) for text, running in self._running.items())
        running = sum(item.num_bytes for item in self._running.values())
        assert sum(self._bytes.values()) + running == sum(self._totals.values()) == self.num_bytes
        assert self.num_bytes <= self._max_num_bytes


def _pieces(token_ids: array, num_prompt_tokens: int) -> Iterator[tuple[array, bool]]:
    """Cuts a text into pieces, each of the prompt or of the output."""
    for start, stop, is_output in ((0, num_prompt_tokens, False), (num_prompt_tokens, len(token_ids), True)):
        for first in range(start, stop, PIECE):
            yield token_ids[first : min(first + PIECE, stop)], is_output
