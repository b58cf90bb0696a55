"""Who runs and which blocks each holds: places are given, taken back, and made for those left behind."""

from dataclasses import dataclass

from services.scheduler.batch import GroupFacts
from services.scheduler.blocks import BlockPool
from services.scheduler.counters import Counters
from services.scheduler.fairness import Tenants
from services.scheduler.sequence import Sequence, SequenceState


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one step may hold."""

    max_num_batched_tokens: int | None  # None: what the group takes
    max_num_seqs: int
    prefill_chunk: int

    def max_num_rows(self, facts: GroupFacts) -> int:
        """Returns the rows of one step of a group."""
        limit, most = self.max_num_batched_tokens, facts.max_num_batched_tokens
        return most if limit is None else min(limit, most)


class Places:
    """The running sequences of a group and the blocks of its cache.

    A sequence holds the blocks of its known tokens from the moment it runs until it is preempted or ends; one
    that ends while a step is in flight, until that step is processed.
    """

    def __init__(self, facts: GroupFacts, limits: Limits, tenants: Tenants, counters: Counters) -> None:
        self.running: dict[int, Sequence] = {}
        self._limits = limits
        self._tenants = tenants
        self._counters = counters
        self._num_served_since_way_made = 0
        self._begin(facts)

    def _begin(self, facts: GroupFacts) -> None:
        self.blocks = BlockPool(num_blocks=facts.num_blocks, block_size=facts.block_size)
        self.released_ids: list[int] = []  # sequences that the group is to forget
        self._max_num_running = min(self._limits.max_num_seqs, self._limits.max_num_rows(facts))

    def void(self, facts: GroupFacts) -> None:
        """Begins anew with a group that has lost its blocks: every running sequence waits with its tokens."""
        self._begin(facts)
        for sequence in list(self.running.values()):
            self._wait_again(sequence)
            if not sequence.is_announced:
                # What it was found to have cached is gone before it was of use.
                sequence.num_cached_tokens = None

    def take_released(self) -> list[int]:
        """Returns the sequences that the group is to forget, and begins anew."""
        released, self.released_ids = self.released_ids, []
        return released

    def note_served(self, num_tokens: int) -> None:
        """Counts tokens served: they allow as many to be computed again."""
        self._num_served_since_way_made += num_tokens

    def start(self, sequence: Sequence) -> bool:
        """Lets a waiting sequence run if all its known tokens find blocks, cached or free."""
        blocks = self.blocks
        cached, count = self._match(sequence)
        if not self._has_place(count, len(self.running), blocks.num_free_blocks_beside(cached)):
            return False
        self._tenants.remove(sequence)
        self.running[sequence.id] = sequence
        sequence.state = SequenceState.RUNNING
        blocks.share(cached)
        sequence.block_table = cached + blocks.allocate(count)
        sequence.num_published_blocks = len(cached)
        sequence.num_computed_tokens = len(cached) * blocks.block_size
        sequence.num_charged_tokens = max(sequence.num_charged_tokens, sequence.num_computed_tokens)
        self._note_start(sequence)
        return True

    def grow(self, sequence: Sequence, num_tokens: int, *, at_most: bool = False) -> bool:
        """Extends a block table to hold so many tokens; if blocks lack, not at all, or `at_most` so far."""
        count = self.blocks.num_blocks_for(num_tokens) - len(sequence.block_table)
        if count > self.blocks.num_free_blocks:
            if not at_most:
                return False
            count = self.blocks.num_free_blocks
        if count > 0:
            sequence.block_table += self.blocks.allocate(count)
        return True

    def num_slots_behind(self, sequence: Sequence) -> int:
        """Returns how many tokens the block table has room for behind those that are known."""
        return len(sequence.block_table) * self.blocks.block_size - sequence.num_tokens

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running sequence's place; it waits to be computed again."""
        self.release(sequence)
        self._wait_again(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Offers the full blocks of committed and computed tokens to the prefix cache; drafts are neither."""
        block_size = self.blocks.block_size
        num_full = min(sequence.num_computed_tokens, sequence.num_tokens) // block_size
        if num_full > sequence.num_published_blocks:
            hashes = sequence.block_hashes(block_size, num_full)
            for index in range(sequence.num_published_blocks, num_full):
                self.blocks.publish(sequence.block_table[index], hashes[index])
            sequence.num_published_blocks = num_full

    def release(self, sequence: Sequence) -> None:
        """Gives the blocks back, the full ones as cache, and lets the group forget the sequence."""
        self.publish(sequence)
        self.blocks.release(sequence.block_table)
        sequence.block_table = []
        if sequence.is_known_to_group:
            self.released_ids.append(sequence.id)
            sequence.is_known_to_group = False

    def make_way(self) -> None:
        """Preempts for a waiting sequence whose tenant fell behind, if it can run then and it is time."""
        first = self._tenants.first()
        making_way = self._making_way_for(first) if first is not None else []
        for sequence in making_way:
            self.preempt(sequence)
        if making_way:
            self._num_served_since_way_made = 0

    def _making_way_for(self, first: Sequence) -> list[Sequence]:
        ahead = self._tenants.ahead_of(first, self.running.values(), self._limits.prefill_chunk)
        if not ahead:
            return []
        cached, num_lacking = self._match(first)
        if self._has_place(num_lacking, len(self.running), self.blocks.num_free_blocks_beside(cached)):
            return []
        tables = [sequence.block_table for sequence in ahead]
        num_tokens = 0
        for count, num_free in enumerate(self.blocks.num_free_blocks_as_released(tables, cached), 1):
            num_tokens += ahead[count - 1].num_tokens
            if num_tokens > self._num_served_since_way_made:
                break
            if self._has_place(num_lacking, len(self.running) - count, num_free):
                return ahead[:count]
        return []

    def _match(self, sequence: Sequence) -> tuple[list[int], int]:
        """Returns the cached blocks and how many more it takes; one token at least stays to be computed."""
        blocks, num_tokens = self.blocks, sequence.num_tokens
        num_cacheable = (num_tokens - 1) // blocks.block_size
        cached = blocks.match(sequence.block_hashes(blocks.block_size, num_cacheable))
        return cached, blocks.num_blocks_for(num_tokens) - len(cached)

    def _has_place(self, num_lacking: int, num_running: int, num_free: int) -> bool:
        """Returns whether a sequence that lacks so many blocks can run beside so many others.

        Each of those needs a row per step, and a block of its own is left free: else the first to need one
        would preempt the newcomer.
        """
        return num_running < self._max_num_running and num_lacking + num_running <= num_free

    def _note_start(self, sequence: Sequence) -> None:
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self._counters.num_prefix_cache_queries += sequence.num_prompt_tokens
            self._counters.num_prefix_cache_hits += sequence.num_cached_tokens
            sequence.trace.event("scheduled")
            sequence.outbox.add(sequence)

    def _wait_again(self, sequence: Sequence) -> None:
        self._counters.num_preemptions += 1
        sequence.trace.event("preempted")
        del self.running[sequence.id]
        sequence.set_back()
        self._tenants.add(sequence)
