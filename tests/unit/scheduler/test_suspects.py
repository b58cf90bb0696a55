"""A sequence that makes steps fail ends alone; a failure by chance ends nobody."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.rpc.errors import Internal
from services.scheduler.batch import Batch, BatchOutput
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import FinishReason, Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup, alone
from tests.unit.scheduler.scenario import SequenceMaker, make_schedule

VOCAB_SIZE = 11


def run_failing(schedule: Schedule, group: ReferenceGroup, fails: Callable[[Batch], bool]) -> int:
    """Steps to the end as the loop does on a group that fails some batches; returns how many failed."""
    num_failures = 0
    for _ in range(2000):
        if not schedule.has_work:
            return num_failures
        batch = schedule.schedule()
        schedule.check()
        if fails(batch):
            num_failures += 1
            schedule.fail(batch, Internal("the group could not run the step"))
            group.void()
            schedule.void(schedule.facts)
        else:
            schedule.process(batch, BatchOutput.from_proto(group.step(batch.to_proto(1))))
        schedule.check()
    raise AssertionError("work is left: something starves")


def holds(poison: Sequence) -> Callable[[Batch], bool]:
    return lambda batch: any(step.sequence is poison for step in batch.steps)


def assert_complete(sequence: Sequence) -> None:
    prompt = sequence.token_ids[: sequence.num_prompt_tokens]
    limit = sequence.max_num_tokens
    assert sequence.end is FinishReason.LENGTH
    assert sequence.token_ids == alone(prompt, 0, num_tokens=limit, stop=frozenset(), vocab_size=VOCAB_SIZE)


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    data=st.data(),
    num_blocks=st.integers(8, 40),
    budget=st.integers(2, 32),
)
@settings(max_examples=40, deadline=None)
def test_a_poisonous_sequence_ends_and_takes_no_other_with_it(
    lengths: list[int], data: st.DataObject, num_blocks: int, budget: int
) -> None:
    make = SequenceMaker()
    sequences = [make([1] * length, max_num_tokens=length + 8) for length in lengths]
    poison = data.draw(st.sampled_from(sequences))
    group = ReferenceGroup(num_blocks=num_blocks)
    schedule = make_schedule(group, budget=budget, max_num_seqs=4)
    for sequence in sequences:
        schedule.add(sequence)
    assert run_failing(schedule, group, holds(poison)) == 3
    assert isinstance(poison.end, Internal)
    for sequence in sequences:
        if sequence is not poison:
            assert_complete(sequence)
    assert schedule.blocks.num_free_blocks == num_blocks


@pytest.mark.parametrize("num_failures", [1, 2])
def test_a_failure_by_chance_ends_no_sequence(num_failures: int) -> None:
    make = SequenceMaker()
    sequences = [make([2] * length) for length in (1, 5, 9, 14)]
    schedule = make_schedule(group := ReferenceGroup())
    for sequence in sequences:
        schedule.add(sequence)
    outcomes = iter([False, False, *[True] * num_failures])
    assert run_failing(schedule, group, lambda _: next(outcomes, False)) == num_failures
    for sequence in sequences:
        assert_complete(sequence)


def test_a_batch_that_fails_only_together_still_comes_to_its_end() -> None:
    make = SequenceMaker()
    sequences = [make([3] * length, max_num_tokens=20) for length in (2, 6, 10)]
    schedule = make_schedule(group := ReferenceGroup())
    for sequence in sequences:
        schedule.add(sequence)
    run_failing(schedule, group, lambda batch: len(batch.steps) > 1)
    for sequence in sequences:
        assert_complete(sequence)


def test_suspects_run_alone_the_newest_first() -> None:
    make = SequenceMaker()
    sequences = [make([4]) for _ in range(3)]
    schedule = make_schedule(group := ReferenceGroup())
    for sequence in sequences:
        schedule.add(sequence)
    together: list[list[int]] = []

    def fail_twice(batch: Batch) -> bool:
        together.append([step.sequence.id for step in batch.steps])
        return len(together) <= 2

    run_failing(schedule, group, fail_twice)
    assert together[:6] == [[1, 2, 3], [1, 2, 3], [3], [2], [1], [1, 2, 3]]
