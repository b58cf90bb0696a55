"""Which tokens are computed in the next step, and what becomes of the answer."""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.rpc.errors import OutriderError
from services.scheduler.batch import Batch, BatchOutput, GroupFacts, SequenceOutput, SequenceStep
from services.scheduler.blocks import BlockPool
from services.scheduler.commit import commit
from services.scheduler.counters import Counters
from services.scheduler.fairness import Tenants
from services.scheduler.sequence import FinishReason, Sequence, SequenceState
from services.scheduler.suspects import Suspects

# A start carries all tokens and parameters: so much, and one start more, fits a message with room to spare.
MAX_NUM_START_BYTES = 12_000_000
BYTES_PER_TOKEN = 3


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one step may hold."""

    max_num_batched_tokens: int | None  # None: what the group takes
    max_num_seqs: int
    prefill_chunk: int


class Schedule:
    """All sequences of one group.

    The invariant: a step computes some of a sequence's tokens until computed catches up with known plus
    draft. Prompt, output, verification, resume and a second computation after preemption differ in numbers.

    A sequence holds the blocks of its known tokens from the moment it runs until it is preempted or ends; one
    that ends while a step is in flight, until that step is processed.
    """

    def __init__(self, facts: GroupFacts, limits: Limits) -> None:
        self.facts = facts
        self.limits = limits
        self.tenants = Tenants()
        self.suspects = Suspects()
        self.counters = Counters()
        self.running: dict[int, Sequence] = {}
        self.blocks = BlockPool(num_blocks=facts.num_blocks, block_size=facts.block_size)
        self._in_flight: Batch | None = None
        self._released_ids: list[int] = []
        self._ended: list[Sequence] = []
        self._num_served_since_way_made = 0

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.running or self.tenants.num_waiting)

    @property
    def owes_step(self) -> bool:
        """Whether the group must hear of something: of work, or at least of sequences to forget."""
        return self.has_work or bool(self._released_ids)

    @property
    def max_num_batched_tokens(self) -> int:
        """The rows of one step."""
        limit = self.limits.max_num_batched_tokens
        return (
            self.facts.max_num_batched_tokens
            if limit is None
            else min(limit, self.facts.max_num_batched_tokens)
        )

    def sequences(self) -> Iterator[Sequence]:
        """Yields every sequence that has not ended."""
        yield from self.running.values()
        yield from self.tenants.waiting()

    def add(self, sequence: Sequence) -> None:
        """Takes in an admitted sequence."""
        self.tenants.enter(sequence)
        self.tenants.add(sequence)

    def end(self, sequence: Sequence, end: FinishReason | OutriderError) -> None:
        """Ends a sequence in any state; its blocks go back at once, or with the step in flight."""
        if sequence.state is SequenceState.WAITING:
            self.tenants.remove(sequence)
        else:
            del self.running[sequence.id]
        sequence.state, sequence.end = SequenceState.ENDED, end
        self.tenants.leave(sequence)
        self.suspects.clear(sequence)
        self._ended.append(sequence)
        sequence.outbox.add(sequence)
        sequence.trace.finish(end, sequence.num_tokens - sequence.num_prompt_tokens)
        if not self._is_in_flight(sequence):
            self._release(sequence)

    def take_ended(self) -> list[Sequence]:
        """Returns the sequences that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def void(self, facts: GroupFacts) -> None:
        """Begins anew with a group that has lost its blocks: every running sequence waits with its tokens."""
        self.blocks = BlockPool(num_blocks=facts.num_blocks, block_size=facts.block_size)
        self.facts = facts
        self._in_flight = None
        self._released_ids = []
        for sequence in list(self.running.values()):
            self._wait_again(sequence)

    def schedule(self) -> Batch:
        """Picks the next step: running sequences, then waiting ones, then drafts with what is left."""
        assert self._in_flight is None
        batch = Batch()
        if (suspect := self.suspects.first()) is not None:
            self._schedule_alone(batch, suspect)
        else:
            self._make_way()
            budget = self._schedule_running(batch, self.max_num_batched_tokens)
            budget = self._schedule_waiting(batch, budget)
            self._schedule_drafts(batch, budget)
        for step in batch.steps:
            sequence = step.sequence
            step.new_block_ids = sequence.block_table[sequence.num_blocks_known_to_group :]
            sequence.num_blocks_known_to_group = len(sequence.block_table)
            sequence.is_known_to_group = True
        batch.released_sequence_ids, self._released_ids = self._released_ids, []
        self._in_flight = batch
        return batch

    def process(self, batch: Batch, answer: BatchOutput) -> None:
        """Commits what the step made of its sequences."""
        assert batch is self._in_flight
        self._in_flight = None
        self.counters.num_steps += bool(batch.steps)
        for step in batch.steps:
            if step.sequence.state is SequenceState.RUNNING:
                self._advance(step, answer.outputs.get(step.sequence.id))
            else:
                step.sequence.num_computed_tokens = step.num_tokens_after
                self._release(step.sequence)

    def fail(self, batch: Batch, error: OutriderError) -> None:
        """Takes back a step that failed; ends a sequence only once it is known to be why. `void` follows."""
        assert batch is self._in_flight
        self._in_flight = None
        for step in batch.steps:
            if step.sequence.state is not SequenceState.RUNNING:
                self._release(step.sequence)
            elif self.suspects.is_guilty_after(step.sequence):
                self.end(step.sequence, error)

    def check(self) -> None:
        """Raises AssertionError unless blocks, tables and counts agree."""
        self.tenants.check()
        in_flight = self._in_flight.steps if self._in_flight else []
        ended = [step.sequence for step in in_flight if step.sequence.state is SequenceState.ENDED]
        holders = [*self.running.values(), *ended]
        self.blocks.check(sequence.block_table for sequence in holders)
        assert len(self.running) <= self.limits.max_num_seqs
        for sequence in holders:
            assert 0 <= sequence.num_computed_tokens < sequence.num_tokens or sequence in ended
            assert len(sequence.block_table) >= self.blocks.num_blocks_for(sequence.num_computed_tokens)
        assert all(not sequence.block_table for sequence in self.tenants.waiting())

    def _schedule_alone(self, batch: Batch, sequence: Sequence) -> None:
        """Gives a suspect a step of its own; `void` left none running but those that were tried before it."""
        while sequence.state is SequenceState.WAITING and not self._start(sequence):
            self._preempt(max(self.running.values(), key=self.tenants.rank))
        self._compute(batch, sequence, self.max_num_batched_tokens)

    def _make_way(self) -> None:
        """Preempts for a waiting sequence whose tenant fell behind, if it can run then and it is time."""
        first = self.tenants.first()
        making_way = self._making_way_for(first) if first is not None else []
        for sequence in making_way:
            self._preempt(sequence)
        if making_way:
            self._num_served_since_way_made = 0

    def _making_way_for(self, first: Sequence) -> list[Sequence]:
        ahead = self.tenants.ahead_of(first, self.running.values(), self.limits.prefill_chunk)
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

    def _schedule_running(self, batch: Batch, budget: int) -> int:
        """Gives every running sequence at least one row; who cannot have its blocks preempts the lowest."""
        order = sorted(self.running.values(), key=self.tenants.rank)
        for position, sequence in enumerate(order):
            if sequence.state is not SequenceState.RUNNING:
                break  # Preempted by one before it, and so are all behind it.
            while not self._grow(sequence, sequence.num_tokens):
                lowest = next(other for other in reversed(order) if other.state is SequenceState.RUNNING)
                self._preempt(lowest)
                if lowest is sequence:
                    return budget
            num_behind = len(order) - position - 1
            budget -= self._compute(batch, sequence, budget - num_behind)
        return budget

    def _schedule_waiting(self, batch: Batch, budget: int) -> int:
        """Lets waiting sequences run in the order of fairness; none overtakes one that lacks blocks."""
        num_start_bytes = 0
        while budget:
            sequence = self.tenants.first()
            if sequence is None or num_start_bytes > MAX_NUM_START_BYTES or not self._start(sequence):
                break
            budget -= self._compute(batch, sequence, budget)
            num_start_bytes += BYTES_PER_TOKEN * sequence.num_tokens + sequence.params.ByteSize()
        return budget

    def _schedule_drafts(self, batch: Batch, budget: int) -> None:
        """Attaches drafts where the step reaches the last known token.

        They displace no known token and no running sequence, but they take free blocks, for which the prefix
        cache may give up its oldest: without those a full cache would cut every draft at the end of a block.
        """
        for step in batch.steps:
            sequence, draft = step.sequence, step.sequence.draft
            if draft is None or draft.base_length != sequence.num_tokens or not step.chooses:
                continue
            num_wanted = min(len(draft.token_ids), sequence.num_useful_draft_tokens, budget)
            self._grow(sequence, sequence.num_tokens + num_wanted, at_most=True)
            room = len(sequence.block_table) * self.blocks.block_size - sequence.num_tokens
            step.draft_token_ids = draft.token_ids[: min(num_wanted, room)]
            step.source = draft.source
            budget -= len(step.draft_token_ids)

    def _compute(self, batch: Batch, sequence: Sequence, budget: int) -> int:
        count = min(sequence.num_tokens_to_compute, self.limits.prefill_chunk, budget)
        assert count > 0
        batch.steps.append(
            SequenceStep(
                sequence=sequence,
                is_start=not sequence.is_known_to_group,
                num_computed_tokens=sequence.num_computed_tokens,
                num_new_tokens=count,
            )
        )
        sequence.num_steps += 1
        return count

    def _grow(self, sequence: Sequence, num_tokens: int, *, at_most: bool = False) -> bool:
        """Extends a block table to hold so many tokens; if blocks lack, not at all, or `at_most` so far."""
        count = self.blocks.num_blocks_for(num_tokens) - len(sequence.block_table)
        if count > self.blocks.num_free_blocks:
            if not at_most:
                return False
            count = self.blocks.num_free_blocks
        if count > 0:
            sequence.block_table += self.blocks.allocate(count)
        return True

    def _start(self, sequence: Sequence) -> bool:
        """Lets a waiting sequence run if all its known tokens find blocks, cached or free."""
        blocks = self.blocks
        cached, count = self._match(sequence)
        if not self._has_place(count, len(self.running), blocks.num_free_blocks_beside(cached)):
            return False
        self.tenants.remove(sequence)
        self.running[sequence.id] = sequence
        sequence.state = SequenceState.RUNNING
        blocks.share(cached)
        sequence.block_table = cached + blocks.allocate(count)
        sequence.num_published_blocks = len(cached)
        sequence.num_computed_tokens = len(cached) * blocks.block_size
        sequence.num_charged_tokens = max(sequence.num_charged_tokens, sequence.num_computed_tokens)
        self._note_start(sequence)
        return True

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
        max_num_running = min(self.limits.max_num_seqs, self.max_num_batched_tokens)
        return num_running < max_num_running and num_lacking + num_running <= num_free

    def _note_start(self, sequence: Sequence) -> None:
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            self.counters.num_prefix_cache_queries += sequence.num_prompt_tokens
            self.counters.num_prefix_cache_hits += sequence.num_cached_tokens
            sequence.trace.event("scheduled")
            sequence.outbox.add(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        self._wait_again(sequence)

    def _wait_again(self, sequence: Sequence) -> None:
        self.counters.num_preemptions += 1
        sequence.trace.event("preempted")
        del self.running[sequence.id]
        sequence.set_back()
        self.tenants.add(sequence)

    def _advance(self, step: SequenceStep, output: SequenceOutput | None) -> None:
        sequence = step.sequence
        advance = commit(step, output, self.facts.vocab_size)
        if advance.num_output_tokens:
            self.counters.num_output_tokens += advance.num_output_tokens
            if step.draft_token_ids:
                self.counters.count_draft(len(step.draft_token_ids), advance.num_accepted_tokens)
            self.suspects.clear(sequence)
            sequence.trace.event_once("first token")
            sequence.outbox.add(sequence)
        self.tenants.charge(sequence, advance.num_charged_tokens)
        self._num_served_since_way_made += advance.num_charged_tokens
        self._publish(sequence)
        if advance.end is not None:
            self.end(sequence, advance.end)

    def _publish(self, sequence: Sequence) -> None:
        """Offers the full blocks of committed and computed tokens to the prefix cache; drafts are neither."""
        block_size = self.blocks.block_size
        num_full = min(sequence.num_computed_tokens, sequence.num_tokens) // block_size
        if num_full > sequence.num_published_blocks:
            hashes = sequence.block_hashes(block_size, num_full)
            for index in range(sequence.num_published_blocks, num_full):
                self.blocks.publish(sequence.block_table[index], hashes[index])
            sequence.num_published_blocks = num_full

    def _release(self, sequence: Sequence) -> None:
        """Gives the blocks back, the full ones as cache, and lets the group forget the sequence."""
        self._publish(sequence)
        self.blocks.release(sequence.block_table)
        sequence.block_table = []
        if sequence.is_known_to_group:
            self._released_ids.append(sequence.id)
            sequence.is_known_to_group = False

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return self._in_flight is not None and any(
            step.sequence is sequence for step in self._in_flight.steps
        )
