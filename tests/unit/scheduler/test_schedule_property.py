"""Whatever arrives, ends, is drafted or lost: every sequence gets the tokens it would get alone.

And what has ended, in whatever state and for whatever reason, holds nothing beyond the step in flight.
"""

import asyncio
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outrider.rpc.errors import Internal, Unavailable
from services.scheduler.batch import Batch, BatchOutput
from services.scheduler.gateway import Gateway
from services.scheduler.sequence import FinishReason, Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup, alone
from tests.unit.scheduler.scenario import SequenceMaker, make_schedule, offer, step

VOCAB_SIZE = 11
BLOCK_SIZE = 4
# Prompts share beginnings, so that blocks are found in the cache.
PROMPTS = [[1, 2, 3, 4] * 5, [1, 2, 3, 4] + [5] * 16]


@dataclass
class Expected:
    """A sequence, and the tokens it gets alone."""

    sequence: Sequence
    token_ids: list[int]


class Clock:
    """An event loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: self.now

    def submit(self, gateway: Gateway, sequence: Sequence, timeout: float | None) -> None:
        async def add() -> None:
            gateway.add(sequence, timeout)

        self.loop.run_until_complete(add())

    def advance(self, seconds: float) -> None:
        self.now += seconds
        # Twice, as what is due is found in one turn and called in the next.
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.run_until_complete(asyncio.sleep(0))


class ScheduleMachine(RuleBasedStateMachine):
    """Arrivals, steps with good and bad drafts, ends of all kinds at any moment, and lost groups."""

    @initialize(
        num_blocks=st.integers(6, 24), budget=st.integers(2, 20), chunk=st.integers(1, 12),
        max_num_seqs=st.integers(1, 6), forces_tokens=st.booleans(),
    )  # fmt: skip
    def begin(self, num_blocks: int, budget: int, chunk: int, max_num_seqs: int, forces_tokens: bool) -> None:
        self.group = ReferenceGroup(
            num_blocks=num_blocks, block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE, forces_tokens=forces_tokens,
            max_num_batched_tokens=budget, max_model_len=60,
        )  # fmt: skip
        self.schedule = make_schedule(self.group, max_num_seqs=max_num_seqs, prefill_chunk=chunk)
        self.make_sequence = SequenceMaker()
        self.clock = Clock()
        self.gateways = [Gateway(self.schedule, lambda: None) for _ in range(2)]
        self.expected: list[Expected] = []
        self.in_flight: Batch | None = None

    @rule(
        base=st.sampled_from(PROMPTS), length=st.integers(1, 18), seed=st.integers(0, 3),
        tenant=st.sampled_from("abc"), priority=st.integers(0, 2), num_output=st.integers(1, 24),
        stop=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=1), num_resumed=st.integers(0, 6),
        gateway=st.integers(0, 1), timeout=st.none() | st.integers(1, 5),
    )  # fmt: skip
    def submit(
        self, base: list[int], length: int, seed: int, tenant: str, priority: int, num_output: int,
        stop: frozenset[int], num_resumed: int, gateway: int, timeout: float | None,
    ) -> None:  # fmt: skip
        prompt = base[:length]
        limit = min(len(prompt) + num_output, self.schedule.facts.max_num_tokens)
        tokens = alone(prompt, seed, num_tokens=limit, stop=stop, vocab_size=VOCAB_SIZE)
        if len(prompt) >= limit or num_resumed >= len(tokens) - len(prompt):
            return
        sequence = self.make_sequence(
            prompt, seed=seed, tenant=tenant, priority=priority, stop=stop, max_num_tokens=limit,
            resumed=tuple(tokens[len(prompt) : len(prompt) + num_resumed]),
        )  # fmt: skip
        sequence.outbox = self.gateways[gateway].outbox
        self.expected.append(Expected(sequence, tokens))
        self.clock.submit(self.gateways[gateway], sequence, timeout)

    @precondition(lambda self: self.in_flight is None and self.schedule.has_work)
    @rule(data=st.data())
    def send_a_step(self, data: st.DataObject) -> None:
        drafts = {}
        for item in self.expected:
            right = tuple(item.token_ids[item.sequence.num_tokens :][:4])
            wrong = tuple((token_id + 1) % VOCAB_SIZE for token_id in right)
            num_right = data.draw(st.integers(0, len(right)))
            drafts[item.sequence.id] = right[:num_right] + wrong[num_right:]
        offer(self.schedule, drafts)
        self.in_flight = self.schedule.schedule()
        assert self.in_flight.shape.num_rows <= self.schedule.max_num_batched_tokens
        assert self.in_flight.steps

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def receive_the_answer(self) -> None:
        assert self.in_flight is not None
        answer = self.group.step(self.in_flight.to_proto(1))
        batch, self.in_flight = self.in_flight, None
        self.schedule.process(batch, BatchOutput.from_proto(answer))

    @precondition(lambda self: bool(self.live))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.live))
        for gateway in self.gateways:
            gateway.abort(sequence.client_id)
        assert sequence.end is FinishReason.ABORTED

    @rule(seconds=st.integers(1, 3))
    def let_deadlines_pass(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(index=st.integers(0, 1))
    def break_the_stream_of_a_gateway(self, index: int) -> None:
        self.gateways[index].close()
        self.gateways[index] = Gateway(self.schedule, lambda: None)

    @rule(index=st.integers(0, 1))
    def send_what_is_new(self, index: int) -> None:
        self.gateways[index].take()

    @precondition(lambda self: bool(self.live))
    @rule()
    def end_the_grace_period(self) -> None:
        for sequence in self.live:
            self.schedule.end(sequence, Unavailable("the scheduler is shutting down"))

    @rule()
    def lose_the_group(self) -> None:
        self.group.void()
        self.schedule.void(self.schedule.facts)
        self.in_flight = None
        assert self.schedule.blocks.num_free_blocks == self.group.opened.num_blocks

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def fail_the_step(self) -> None:
        assert self.in_flight is not None
        batch, self.in_flight = self.in_flight, None
        self.schedule.fail(batch, Internal("the group could not run the step"))
        self.lose_the_group()

    @property
    def live(self) -> list[Sequence]:
        """The sequences that have not ended."""
        return [item.sequence for item in self.expected if item.sequence.end is None]

    @invariant()
    def only_what_runs_or_is_in_flight_holds_blocks(self) -> None:
        self.schedule.check()

    @invariant()
    def the_group_forgets_what_has_ended_with_its_next_step(self) -> None:
        in_flight = {step.sequence for step in self.in_flight.steps} if self.in_flight else set()
        told = {*self.schedule.places.released_ids}
        told.update(self.in_flight.released_sequence_ids if self.in_flight else ())
        for sequence in (item.sequence for item in self.expected):
            if sequence.end is not None and sequence not in in_flight:
                assert sequence.id not in self.group.known or sequence.id in told

    def teardown(self) -> None:
        if not hasattr(self, "schedule"):
            return
        self.clock.loop.close()
        if self.in_flight is not None:
            self.receive_the_answer()
        for _ in range(3000):
            if not self.schedule.has_work:
                break
            step(self.schedule, self.group)
        assert not self.schedule.has_work, "a sequence starves"
        assert self.schedule.blocks.num_free_blocks == self.group.opened.num_blocks
        for item in self.expected:
            sequence = item.sequence
            if sequence.end in (FinishReason.STOP, FinishReason.LENGTH):
                assert sequence.token_ids == item.token_ids
            else:
                assert sequence.token_ids == item.token_ids[: sequence.num_tokens]


ScheduleMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestEverySequenceGetsTheTokensItWouldGetAlone = ScheduleMachine.TestCase
