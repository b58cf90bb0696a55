"""Which tokens are computed in the next step, and what becomes of the answer."""

from collections.abc import Iterator

from outrider.rpc.errors import OutriderError
from services.scheduler.allocation import attach_drafts
from services.scheduler.batch import Batch, BatchOutput, GroupFacts, SequenceOutput, SequenceStep
from services.scheduler.blocks import BlockPool
from services.scheduler.commit import Advance, commit
from services.scheduler.controller import Controller, Offer
from services.scheduler.counters import Counters
from services.scheduler.fairness import Tenants
from services.scheduler.places import Limits, Places
from services.scheduler.rows import Rows, rows_of_step
from services.scheduler.sequence import FinishReason, Sequence, SequenceState
from services.scheduler.suspects import Suspects

# A start carries all tokens and parameters: so much, and one start more, fits a message with room to spare.
MAX_NUM_START_BYTES = 12_000_000
BYTES_PER_TOKEN = 3


class Schedule:
    """All sequences of one group.

    The invariant: a step computes some of a sequence's tokens until computed catches up with known plus
    draft. Prompt, output, verification, resume and a second computation after preemption differ in numbers.
    """

    def __init__(self, facts: GroupFacts, limits: Limits, controller: Controller, counters: Counters) -> None:
        self.facts = facts
        self.controller = controller
        self.limits = limits
        self.tenants = Tenants()
        self.suspects = Suspects()
        self.counters = counters
        self.places = Places(facts, limits, self.tenants, self.counters)
        self._in_flight: Batch | None = None
        self._ended: list[Sequence] = []

    @property
    def running(self) -> dict[int, Sequence]:
        """The sequences that have blocks, by id."""
        return self.places.running

    @property
    def blocks(self) -> BlockPool:
        """The blocks of the group's cache."""
        return self.places.blocks

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.running or self.tenants.num_waiting)

    @property
    def owes_step(self) -> bool:
        """Whether the group must hear of something: of work, or at least of sequences to forget."""
        return self.has_work or bool(self.places.released_ids)

    @property
    def max_num_batched_tokens(self) -> int:
        """The rows of one step."""
        return self.limits.max_num_rows(self.facts)

    def sequences(self) -> Iterator[Sequence]:
        """Yields every sequence that has not ended."""
        yield from self.running.values()
        yield from self.tenants.waiting()

    def add(self, sequence: Sequence) -> None:
        """Takes in an admitted sequence."""
        self.controller.note_phase(sequence.record, sequence.phase)
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
            self.places.release(sequence)

    def take_ended(self) -> list[Sequence]:
        """Returns the sequences that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def void(self, facts: GroupFacts) -> None:
        """Begins anew with a group that has lost its blocks: every running sequence waits with its tokens."""
        self.facts = facts
        self._in_flight = None
        self.places.void(facts)

    def schedule(self) -> Batch:
        """Picks the next step: running sequences, then waiting ones, then drafts with what is left."""
        assert self._in_flight is None
        batch = Batch()
        if (suspect := self.suspects.first()) is not None:
            self._schedule_alone(batch, suspect)
        else:
            self.places.make_way()
            rows = self._rows()
            self._schedule_running(batch, rows)
            self._schedule_waiting(batch, rows)
            attach_drafts(batch, self.places, self.controller, self.counters, rows.num_left)
        for step in batch.steps:
            sequence = step.sequence
            step.new_block_ids = sequence.block_table[sequence.num_blocks_known_to_group :]
            sequence.num_blocks_known_to_group = len(sequence.block_table)
            sequence.is_known_to_group = True
        batch.released_sequence_ids = self.places.take_released()
        self._in_flight = batch
        return batch

    def process(self, batch: Batch, answer: BatchOutput) -> None:
        """Commits what the step made of its sequences."""
        assert batch is self._in_flight
        self._in_flight = None
        self.counters.num_steps += bool(batch.steps)
        self.counters.placement_version = answer.placement_version
        for step in batch.steps:
            if step.sequence.state is SequenceState.RUNNING:
                self._advance(step, answer.outputs.get(step.sequence.id))
            else:
                step.sequence.num_computed_tokens = step.num_tokens_after
                self.places.release(step.sequence)

    def fail(self, batch: Batch, error: OutriderError) -> None:
        """Takes back a step that failed; ends a sequence only once it is known to be why. `void` follows."""
        assert batch is self._in_flight
        self._in_flight = None
        for step in batch.steps:
            if step.sequence.state is not SequenceState.RUNNING:
                self.places.release(step.sequence)
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
        while sequence.state is SequenceState.WAITING and not self.places.start(sequence):
            self.places.preempt(max(self.running.values(), key=self.tenants.rank))
        most = self.max_num_batched_tokens
        self._compute(batch, sequence, Rows(num_left=most, num_left_for_prompts=most))

    def _rows(self) -> Rows:
        return rows_of_step(
            self.running.values(),
            self.controller,
            max_num_rows=self.max_num_batched_tokens,
            num_waiting=self.tenants.num_waiting,
            # So that prompts get on whatever the time between tokens is to be.
            least_for_prompts=self.blocks.block_size,
        )

    def _schedule_running(self, batch: Batch, rows: Rows) -> None:
        """Gives every running sequence at least one row; who cannot have its blocks preempts the lowest."""
        order = sorted(self.running.values(), key=self.tenants.rank)
        for position, sequence in enumerate(order):
            if sequence.state is not SequenceState.RUNNING:
                break  # Preempted by one before it, and so are all behind it.
            while not self.places.grow(sequence, sequence.num_tokens):
                lowest = next(other for other in reversed(order) if other.state is SequenceState.RUNNING)
                self.places.preempt(lowest)
                if lowest is sequence:
                    return
            self._compute(batch, sequence, rows, num_behind=len(order) - position - 1)

    def _schedule_waiting(self, batch: Batch, rows: Rows) -> None:
        """Lets waiting sequences run in the order of fairness; none overtakes one that lacks blocks."""
        num_start_bytes = 0
        while rows.num_left > 0 and rows.num_left_for_prompts > 0:
            sequence = self.tenants.first()
            if sequence is None or num_start_bytes > MAX_NUM_START_BYTES or not self.places.start(sequence):
                break
            self._compute(batch, sequence, rows)
            num_start_bytes += BYTES_PER_TOKEN * sequence.num_tokens + sequence.params.ByteSize()

    def _compute(self, batch: Batch, sequence: Sequence, rows: Rows, *, num_behind: int = 0) -> None:
        num_wanted = min(sequence.num_tokens_to_compute, self.limits.prefill_chunk)
        batch.steps.append(
            SequenceStep(
                sequence=sequence,
                is_start=not sequence.is_known_to_group,
                num_computed_tokens=sequence.num_computed_tokens,
                num_new_tokens=rows.take(num_wanted, num_reserved=num_behind),
            )
        )

    def _advance(self, step: SequenceStep, output: SequenceOutput | None) -> None:
        sequence, phase = step.sequence, step.sequence.phase
        sequence.num_steps += 1
        advance = commit(step, output, self.facts.vocab_size)
        if advance.num_output_tokens:
            self.counters.num_output_tokens += advance.num_output_tokens
            if step.offer is not None:
                self._note_draft(step, step.offer, advance)
            if sequence.phase != phase:
                self.controller.note_phase(sequence.record, sequence.phase)
            self.suspects.clear(sequence)
            sequence.trace.event_once("first token")
            sequence.outbox.add(sequence)
        self.tenants.charge(sequence, advance.num_charged_tokens)
        self.places.note_served(advance.num_charged_tokens)
        self.places.publish(sequence)
        if advance.end is not None:
            self.end(sequence, advance.end)

    def _note_draft(self, step: SequenceStep, offer: Offer, advance: Advance) -> None:
        num_verified, num_accepted = advance.num_verified_tokens, advance.num_accepted_tokens
        self.counters.count_draft(offer.source, len(step.draft_token_ids), num_accepted)
        self.controller.note_draft(step.sequence.record, offer, num_verified, num_accepted)

    def _is_in_flight(self, sequence: Sequence) -> bool:
        return self._in_flight is not None and any(
            step.sequence is sequence for step in self._in_flight.steps
        )
