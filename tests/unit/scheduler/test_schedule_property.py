"""Whatever arrives, ends, is drafted or lost: every sequence gets the tokens it would get alone."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from outrider.rpc.errors import DeadlineExceeded, Internal, OutriderError
from services.scheduler.batch import Batch, BatchOutput
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


class ScheduleMachine(RuleBasedStateMachine):
    """Arrivals, steps with good and bad drafts, ends at any moment, and lost groups."""

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
        self.expected: list[Expected] = []
        self.in_flight: Batch | None = None

    @rule(
        base=st.sampled_from(PROMPTS), length=st.integers(1, 18), seed=st.integers(0, 3),
        tenant=st.sampled_from("abc"), priority=st.integers(0, 2), num_output=st.integers(1, 24),
        stop=st.frozensets(st.integers(0, VOCAB_SIZE - 1), max_size=1), num_resumed=st.integers(0, 6),
    )  # fmt: skip
    def submit(
        self, base: list[int], length: int, seed: int, tenant: str, priority: int, num_output: int,
        stop: frozenset[int], num_resumed: int,
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
        self.expected.append(Expected(sequence, tokens))
        self.schedule.add(sequence)
        self.schedule.check()

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
        self.schedule.check()
        assert self.in_flight.shape.num_rows <= self.schedule.max_num_batched_tokens
        assert self.in_flight.steps

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def receive_the_answer(self) -> None:
        assert self.in_flight is not None
        answer = self.group.step(self.in_flight.to_proto(1))
        batch, self.in_flight = self.in_flight, None
        self.schedule.process(batch, BatchOutput.from_proto(answer))
        self.schedule.check()

    @precondition(lambda self: any(item.sequence.end is None for item in self.expected))
    @rule(data=st.data(), end=st.sampled_from([FinishReason.ABORTED, DeadlineExceeded("too late")]))
    def end_a_sequence(self, data: st.DataObject, end: FinishReason | OutriderError) -> None:
        live = [item.sequence for item in self.expected if item.sequence.end is None]
        self.schedule.end(data.draw(st.sampled_from(live)), end)
        self.schedule.check()

    @rule()
    def lose_the_group(self) -> None:
        self.group.void()
        self.schedule.void(self.schedule.facts)
        self.in_flight = None
        self.schedule.check()
        assert self.schedule.blocks.num_free_blocks == self.group.opened.num_blocks

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def fail_the_step(self) -> None:
        assert self.in_flight is not None
        batch, self.in_flight = self.in_flight, None
        self.schedule.fail(batch, Internal("the group could not run the step"))
        self.schedule.check()
        self.lose_the_group()

    def teardown(self) -> None:
        if not hasattr(self, "schedule"):
            return
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
