"""A sequence that ends, in whatever state, has given everything back once the step in flight is done."""

from collections.abc import Callable

import pytest

from outrider.rpc.errors import DeadlineExceeded, OutriderError, Unavailable
from services.scheduler.batch import Batch, BatchOutput
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import FinishReason, Sequence, SequenceState
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SequenceMaker, make_schedule, offer, step

PROMPT = [1, 2, 3, 4] * 5
NUM_BLOCKS = 16
Scene = Callable[[Schedule, ReferenceGroup, Sequence], Batch | None]


def waiting(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> None:
    assert sequence.state is SequenceState.WAITING


def first_chunk(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> Batch:
    batch = schedule.schedule()
    (part,) = batch.steps
    assert (part.is_start, part.chooses) == (True, False)
    return batch


def between_chunks(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> None:
    step(schedule, group)
    assert 0 < sequence.num_computed_tokens < len(PROMPT)


def decoding(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> Batch:
    while sequence.num_tokens < len(PROMPT) + 2:
        step(schedule, group)
    return schedule.schedule()


def verifying(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> Batch:
    while sequence.num_tokens < len(PROMPT) + 2:
        step(schedule, group)
    offer(schedule, {sequence.id: (7, 7, 7, 7)})
    batch = schedule.schedule()
    assert batch.steps[0].draft_token_ids
    return batch


def preempted(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> None:
    decoding_batch = decoding(schedule, group, sequence)
    schedule.process(decoding_batch, BatchOutput.from_proto(group.step(decoding_batch.to_proto(1))))
    schedule.places.preempt(sequence)
    assert sequence.state is SequenceState.WAITING


def recovering(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> None:
    verifying(schedule, group, sequence)
    group.void()
    schedule.void(schedule.facts)
    assert sequence.state is SequenceState.WAITING


def recomputing(schedule: Schedule, group: ReferenceGroup, sequence: Sequence) -> Batch:
    recovering(schedule, group, sequence)
    batch = schedule.schedule()
    assert batch.steps[0].is_start
    return batch


@pytest.mark.parametrize(
    "end", [FinishReason.ABORTED, DeadlineExceeded("too late"), Unavailable("shutting down")], ids=str
)
@pytest.mark.parametrize(
    "scene",
    [waiting, first_chunk, between_chunks, decoding, verifying, preempted, recovering, recomputing],
)
def test_everything_is_free_after_the_step_in_flight(scene: Scene, end: FinishReason | OutriderError) -> None:
    group = ReferenceGroup(num_blocks=NUM_BLOCKS)
    schedule = make_schedule(group, prefill_chunk=8)
    sequence = SequenceMaker()(PROMPT)
    schedule.add(sequence)
    in_flight = scene(schedule, group, sequence)
    schedule.check()
    schedule.end(sequence, end)
    schedule.check()
    if in_flight is not None:
        schedule.process(in_flight, BatchOutput.from_proto(group.step(in_flight.to_proto(1))))
    schedule.check()
    assert not schedule.has_work
    assert schedule.blocks.num_free_blocks == NUM_BLOCKS
    if schedule.owes_step:
        step(schedule, group)
    assert not group.known
    assert schedule.take_ended() == [sequence]
