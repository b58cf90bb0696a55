"""What one step holds, and what becomes of its answer."""

import pytest

from outrider.rpc.errors import DeadlineExceeded, Internal, InvalidArgument, OutriderError
from services.scheduler.batch import BatchOutput, SequenceOutput
from services.scheduler.controller import Controller, ModelFacts, Settings, StepShape
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import FinishReason, Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup, alone
from tests.unit.scheduler.scenario import SETTINGS, SequenceMaker, make_schedule, run, step

VOCAB_SIZE = 11


def begin(
    group: ReferenceGroup,
    *sequences: Sequence,
    budget: int | None = None,
    max_num_seqs: int = 8,
    controller: Controller | None = None,
) -> Schedule:
    schedule = make_schedule(group, budget=budget, max_num_seqs=max_num_seqs)
    if controller is not None:
        schedule = make_schedule(group, prefill_chunk=100)
        schedule.controller = controller
    for sequence in sequences:
        schedule.add(sequence)
    return schedule


def right(sequence: Sequence, count: int) -> tuple[int, ...]:
    tokens = alone(
        sequence.token_ids,
        sequence.params.seed,
        num_tokens=sequence.num_tokens + count,
        stop=frozenset(),
        vocab_size=VOCAB_SIZE,
    )
    return tuple(tokens[sequence.num_tokens :])


def test_a_long_prompt_is_computed_in_chunks_while_others_go_on() -> None:
    make = SequenceMaker()
    short, long = make([1]), make([2] * 30)
    schedule = begin(group := ReferenceGroup(), short, long)
    for _ in range(3):
        step(schedule, group)
    assert short.num_tokens == 4
    assert long.num_computed_tokens == 24
    assert long.num_tokens == 30


def test_a_prompt_whose_tokens_are_all_cached_still_computes_one() -> None:
    make = SequenceMaker()
    schedule = begin(group := ReferenceGroup(), make([1, 2, 3, 4] * 2, max_num_tokens=9))
    run(schedule, group)
    again = make([1, 2, 3, 4] * 2, max_num_tokens=9)
    schedule.add(again)
    batch = step(schedule, group)
    assert batch.steps[0].num_computed_tokens == 4
    assert again.num_cached_tokens == 4


def test_rejected_drafts_never_enter_the_cache() -> None:
    make = SequenceMaker()
    sequence = make([1, 2], max_num_tokens=40)
    schedule = begin(group := ReferenceGroup(), sequence)
    step(schedule, group)
    wrong = tuple((token_id + 1) % VOCAB_SIZE for token_id in right(sequence, 4))
    drafted = [*sequence.token_ids, *wrong]
    step(schedule, group, {sequence.id: wrong})
    schedule.end(sequence, FinishReason.ABORTED)
    schedule.add(probe := make([*drafted, 0, 0, 0]))
    step(schedule, group)
    assert probe.num_cached_tokens == 0


def test_the_blocks_of_an_ended_sequence_are_found_by_the_next() -> None:
    make = SequenceMaker()
    sequence = make([1, 2, 3, 4, 5], max_num_tokens=20)
    schedule = begin(group := ReferenceGroup(), sequence)
    for _ in range(10):
        step(schedule, group)
    schedule.end(sequence, FinishReason.ABORTED)
    resumed = make(sequence.token_ids[:5], resumed=tuple(sequence.token_ids[5:]), max_num_tokens=20)
    schedule.add(resumed)
    batch = step(schedule, group)
    assert batch.steps[0].num_computed_tokens == (sequence.num_tokens - 1) // 4 * 4


def test_a_tenant_never_finds_the_blocks_of_another() -> None:
    make = SequenceMaker()
    schedule = begin(group := ReferenceGroup(), make([1] * 20, tenant="a", max_num_tokens=21))
    run(schedule, group)
    schedule.add(other := make([1] * 20, tenant="b", max_num_tokens=21))
    step(schedule, group)
    assert other.num_cached_tokens == 0


def test_accepted_drafts_come_with_a_bonus_token_in_one_step() -> None:
    sequence = SequenceMaker()([1, 2, 3])
    schedule = begin(group := ReferenceGroup(), sequence)
    step(schedule, group)
    before = sequence.num_tokens
    step(schedule, group, {sequence.id: right(sequence, 4)})
    assert sequence.num_tokens == before + 5
    assert schedule.counters.num_accepted_tokens_by_position == [1, 1, 1, 1]
    assert sequence.drafts_by_source["suffix"].num_accepted_tokens == 4


def test_the_shape_of_a_step_says_how_many_sequences_choose_tokens() -> None:
    make = SequenceMaker()
    schedule = begin(ReferenceGroup(), make([1] * 3), make([2] * 20))
    shape = schedule.schedule().shape
    assert (shape.num_sequences, shape.num_choosing) == (2, 1)


def test_drafts_are_trimmed_before_any_known_token_is_left_out() -> None:
    make = SequenceMaker()
    first, second, late = make([1]), make([2]), make([3] * 3)
    schedule = begin(group := ReferenceGroup(), first, second, budget=6)
    step(schedule, group)
    schedule.add(late)
    batch = step(schedule, group, {s.id: right(s, 4) for s in (first, second)})
    assert [part.num_new_tokens for part in batch.steps] == [1, 1, 3]
    assert batch.shape.num_rows == 6


def test_drafts_are_trimmed_to_the_blocks_there_are_and_preempt_nobody() -> None:
    make = SequenceMaker()
    first, second = make([1] * 7, max_num_tokens=12), make([2] * 7, max_num_tokens=12)
    schedule = begin(group := ReferenceGroup(num_blocks=5), first, second)
    step(schedule, group)
    # Each has filled two blocks, and one block is free: one draft goes there, the other nowhere.
    batch = step(schedule, group, {s.id: right(s, 4) for s in (first, second)})
    assert sorted(len(part.draft_token_ids) for part in batch.steps) == [0, 3]
    assert schedule.counters.num_preemptions == 0


def test_out_of_blocks_the_latest_of_the_most_served_tenant_is_preempted_and_keeps_its_tokens() -> None:
    make = SequenceMaker()
    modest, early, late = (
        make([1] * 7, tenant="modest", max_num_tokens=30),
        make([2] * 6, tenant="greedy", max_num_tokens=30),
        make([3] * 6, tenant="greedy", max_num_tokens=30),
    )
    schedule = begin(group := ReferenceGroup(num_blocks=9, max_num_batched_tokens=32), modest, early, late)
    while not schedule.counters.num_preemptions:
        step(schedule, group)
    assert late.num_preemptions == 1
    assert late.num_tokens > 6
    run(schedule, group)
    for sequence in (modest, early, late):
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        assert sequence.token_ids == alone(prompt, 0, num_tokens=30, stop=frozenset(), vocab_size=VOCAB_SIZE)


def test_of_two_sequences_of_a_tenant_the_one_of_lower_priority_is_preempted() -> None:
    make = SequenceMaker()
    low = make([1] * 6, priority=0, max_num_tokens=20)
    high = make([2] * 6, priority=1, max_num_tokens=20)
    schedule = begin(group := ReferenceGroup(num_blocks=6), low, high)
    while not schedule.counters.num_preemptions:
        step(schedule, group)
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)


@pytest.mark.parametrize("num_drafted", [0, 1, 4])
def test_the_output_ends_at_the_same_token_with_and_without_drafts(num_drafted: int) -> None:
    make = SequenceMaker()
    for limit in range(3, 12):
        sequence = make([1, 2], max_num_tokens=limit)
        schedule = begin(group := ReferenceGroup(), sequence)
        while schedule.has_work:
            drafts = {sequence.id: right(sequence, num_drafted)} if num_drafted else {}
            step(schedule, group, drafts)
        assert sequence.num_tokens == limit
        assert sequence.end is FinishReason.LENGTH


def test_a_stop_token_among_accepted_drafts_ends_the_output() -> None:
    make = SequenceMaker()
    tokens = alone([1, 2], 0, num_tokens=12, stop=frozenset(), vocab_size=VOCAB_SIZE)
    stop = frozenset([tokens[5]])
    sequence = make([1, 2], stop=stop)
    schedule = begin(group := ReferenceGroup(), sequence)
    while schedule.has_work:
        step(schedule, group, {sequence.id: tuple(tokens[sequence.num_tokens :][:4])})
    assert sequence.token_ids == alone([1, 2], 0, num_tokens=40, stop=stop, vocab_size=VOCAB_SIZE)
    assert sequence.end is FinishReason.STOP


def answer(schedule: Schedule, output: SequenceOutput | None) -> None:
    batch = schedule.schedule()
    outputs = {batch.steps[0].sequence.id: output} if output else {}
    schedule.process(batch, BatchOutput(outputs=outputs))
    schedule.check()


def test_a_complete_grammar_ends_the_output_with_its_last_token() -> None:
    sequence = SequenceMaker()([1])
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, SequenceOutput(token_ids=(7,), is_grammar_complete=True))
    assert sequence.token_ids == [1, 7]
    assert sequence.end is FinishReason.STOP


def test_a_resumed_output_whose_grammar_was_complete_ends_without_a_token() -> None:
    sequence = SequenceMaker()([1, 7])
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, SequenceOutput(is_grammar_complete=True))
    assert sequence.token_ids == [1, 7]
    assert sequence.end is FinishReason.STOP


def test_forced_tokens_become_the_next_draft() -> None:
    sequence = SequenceMaker()([1])
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, SequenceOutput(token_ids=(7,), forced_token_ids=(3, 4)))
    batch = schedule.schedule()
    step = batch.steps[0]
    assert step.offer is not None
    assert (tuple(step.draft_token_ids), step.offer.source) == ((3, 4), "grammar")


def test_no_token_is_drafted_for_a_sequence_without_speculation() -> None:
    sequence = SequenceMaker()([1], max_num_draft_tokens=0)
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, SequenceOutput(token_ids=(7,), forced_token_ids=(3, 4)))
    assert not sequence.wants_draft
    assert not schedule.schedule().steps[0].draft_token_ids


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (None, Internal),
        (SequenceOutput(), Internal),
        (SequenceOutput(token_ids=(VOCAB_SIZE,)), Internal),
        (SequenceOutput(token_ids=(1, 2), num_accepted_tokens=1), Internal),
        (SequenceOutput(failure=InvalidArgument("the grammar is wrong")), InvalidArgument),
    ],
)
def test_an_answer_that_cannot_be_used_ends_its_sequence_alone(
    output: SequenceOutput | None, error: type[OutriderError]
) -> None:
    sequence = SequenceMaker()([1])
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, output)
    assert isinstance(sequence.end, error)
    assert sequence.token_ids == [1]
    assert not schedule.has_work


def test_a_sequence_that_fails_in_its_first_chunk_ends_there() -> None:
    sequence = SequenceMaker()([1] * 30)
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, SequenceOutput(failure=InvalidArgument("a parameter is wrong")))
    assert isinstance(sequence.end, InvalidArgument)


def test_blocks_of_a_sequence_that_ends_in_flight_come_back_with_the_step() -> None:
    sequence = SequenceMaker()([1] * 6)
    schedule = begin(group := ReferenceGroup(num_blocks=4), sequence)
    batch = schedule.schedule()
    schedule.end(sequence, DeadlineExceeded("too late"))
    schedule.check()
    assert schedule.blocks.num_free_blocks == 2
    schedule.process(batch, BatchOutput.from_proto(group.step(batch.to_proto(1))))
    schedule.check()
    assert schedule.blocks.num_free_blocks == 4


def test_the_group_forgets_ended_sequences_with_the_next_step() -> None:
    make = SequenceMaker()
    first, second = make([1]), make([2])
    schedule = begin(group := ReferenceGroup(), first, second)
    step(schedule, group)
    schedule.end(first, FinishReason.ABORTED)
    step(schedule, group)
    assert list(group.known) == [second.id]


def test_beside_running_sequences_prompts_get_the_rows_that_keep_the_time_between_tokens() -> None:
    make = SequenceMaker()
    group = ReferenceGroup(num_blocks=200, max_num_batched_tokens=64)
    settings = Settings(max_num_draft_tokens=4, inter_token_target_seconds=0.025)
    schedule = begin(group, make([1]), controller=slow_by_rows(settings))
    step(schedule, group)
    long = make([2] * 200, max_num_tokens=210)
    schedule.add(long)
    batch = step(schedule, group)
    # A row takes a millisecond.
    assert batch.steps[1].sequence is long
    assert 16 <= batch.steps[1].num_new_tokens <= 28


def test_a_prompt_alone_gets_all_rows_whatever_the_time_between_tokens_is_to_be() -> None:
    group = ReferenceGroup(num_blocks=200, max_num_batched_tokens=64)
    settings = Settings(max_num_draft_tokens=4, inter_token_target_seconds=0.025)
    sequence = SequenceMaker()([2] * 200, max_num_tokens=210)
    schedule = begin(group, sequence, controller=slow_by_rows(settings))
    assert step(schedule, group).shape.num_rows == 64


def slow_by_rows(settings: Settings) -> Controller:
    """Makes a controller that has seen a row take a millisecond."""
    controller = Controller(ModelFacts(), settings)
    for number in range(400):
        num_rows = 1 + number % 64
        shape = StepShape(num_rows=num_rows, num_sequences=1 + number % 2, num_context_tokens=100)
        controller.note_step(shape, 0.001 * num_rows, ())
    return controller


def test_a_phase_begins_behind_its_mark() -> None:
    marks = {3: "thinking", 4: "answer"}
    sequence = SequenceMaker()([1, 3, 2], phase_marks=marks)
    assert sequence.phase == "thinking"
    schedule = begin(ReferenceGroup(), sequence)
    answer(schedule, SequenceOutput(token_ids=(5,)))
    assert sequence.phase == "thinking"
    answer(schedule, SequenceOutput(token_ids=(4,)))
    assert sequence.phase == "answer"


def test_without_marks_all_is_text() -> None:
    assert SequenceMaker()([1, 3, 2]).phase == "text"


def test_a_draft_is_offered_with_its_source_and_phase() -> None:
    sequence = SequenceMaker()([1, 3], phase_marks={3: "thinking"})
    schedule = begin(group := ReferenceGroup(), sequence)
    step(schedule, group)
    offer = step(schedule, group, {sequence.id: right(sequence, 2)}).steps[0].offer
    assert offer is not None
    assert (offer.source, offer.phase, len(offer.confidences)) == ("suffix", "thinking", 2)


def test_a_draft_that_is_not_worth_verifying_is_left_aside_and_counted() -> None:
    sequence = SequenceMaker()([1])
    # A controller that has seen no step yet verifies nothing.
    schedule = begin(group := ReferenceGroup(), sequence, controller=Controller(ModelFacts(), SETTINGS))
    step(schedule, group)
    batch = step(schedule, group, {sequence.id: right(sequence, 4)})
    assert (batch.shape.num_rows, batch.steps[0].offer) == (1, None)
    assert schedule.counters.drafts_by_source["suffix"].num_drafts_by_length == {0: 1}
    assert schedule.counters.num_drafts == 0
