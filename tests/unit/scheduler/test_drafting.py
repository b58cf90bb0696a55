"""What is asked of the group for the drafter's sake, and what of it is passed on."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import grpc
import pytest

from services.scheduler.batch import Batch, BatchOutput, Features, GroupFacts
from services.scheduler.config import Config
from services.scheduler.controller import StepShape
from services.scheduler.counters import Counters
from services.scheduler.drafting import BYTES_PER_FEATURE, Drafting
from services.scheduler.head_turns import MAX_NUM_PROMPT_FEATURES, NUM_STEPS_WITH_FEATURES
from services.scheduler.news import MAX_NUM_OPENED_BYTES
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import Sequence, SequenceState
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SequenceMaker, make_controller, make_schedule, step

GROUP = ReferenceGroup(num_blocks=2000, max_num_batched_tokens=2048, max_model_len=8000, feature_size=2)
FACTS = GroupFacts.from_proto(GROUP.opened)


@pytest.fixture
async def drafting() -> AsyncIterator[Drafting]:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        drafting = Drafting(channel, Config(worker="a worker"), Counters())
        drafting.begin(FACTS, make_controller())
        # After so long a step there is time to try the head.
        drafting.controller.note_step(StepShape(num_rows=1, num_sequences=1, num_context_tokens=1), 10.0, ())
        drafting.drafter.sources = frozenset({"head"})
        yield drafting


def begin(
    num_prompt_tokens: int, *, chunk: int = 512, max_num_tokens: int = 4000
) -> tuple[Schedule, Sequence]:
    GROUP.void()
    schedule = make_schedule(GROUP, prefill_chunk=chunk)
    sequence = SequenceMaker()([1] * num_prompt_tokens, max_num_tokens=max_num_tokens)
    schedule.add(sequence)
    return schedule, sequence


def prepared(drafting: Drafting, schedule: Schedule) -> Batch:
    """Returns the next step, which is run, as it was sent."""
    batch = schedule.schedule()
    drafting.prepare(batch)
    schedule.process(batch, BatchOutput.from_proto(GROUP.step(batch.to_proto(1))))
    return batch


async def test_of_a_long_prompt_hidden_vectors_are_wanted_near_its_end_only(drafting: Drafting) -> None:
    schedule, _ = begin(2100)
    wanted = [prepared(drafting, schedule).steps[0].wants_features for _ in range(5)]
    assert wanted == [False, False, True, True, True]


async def test_no_hidden_vectors_are_wanted_of_a_group_that_has_none(drafting: Drafting) -> None:
    drafting.begin(replace(FACTS, feature_size=0), make_controller())
    schedule, _ = begin(10)
    assert not prepared(drafting, schedule).steps[0].wants_features


async def test_no_hidden_vectors_are_wanted_where_no_head_drafts(drafting: Drafting) -> None:
    drafting.drafter.sources = frozenset({"suffix"})
    schedule, _ = begin(10)
    assert not prepared(drafting, schedule).steps[0].wants_features


async def test_a_head_is_asked_at_any_interval_with_all_it_needs_and_only_then(drafting: Drafting) -> None:
    schedule, sequence = begin(10, max_num_tokens=400)
    asked: list[int] = []
    end_of_shown = 0
    for number in range(300):
        await drafting.collect(schedule.running.values())
        if drafting.drafter.news.take().wanted:
            asked.append(number)
            assert end_of_shown == sequence.num_tokens - 1
        batch = prepared(drafting, schedule)
        if batch.steps[0].wants_features:
            end_of_shown = batch.steps[0].num_tokens_after
            first = batch.steps[0].num_computed_tokens
            rows = bytes((end_of_shown - first) * FACTS.feature_size * BYTES_PER_FEATURE)
            features = Features(sequence_id=sequence.id, offset=first, rows=rows)
            drafting.show(batch, BatchOutput(outputs={}, features=[features]))
        drafting.controller.note_step(batch.shape, 0.002, ())
    # No question wins anything, so they become few.
    gaps = [after - before for before, after in pairwise(asked)]
    assert gaps[0] == 1
    assert max(gaps) > NUM_STEPS_WITH_FEATURES


def shown(drafting: Drafting, batch: Batch, *features: Features) -> list[tuple[int, int]]:
    """Passes hidden vectors on; returns where they begin and how many bytes there are."""
    drafting.show(batch, BatchOutput(outputs={}, features=features))
    return [(item.offset, len(item.rows)) for item in drafting.drafter.news.take().features]


async def test_hidden_vectors_far_from_the_end_of_a_prompt_are_left_out(drafting: Drafting) -> None:
    schedule, sequence = begin(2000, chunk=2000)
    batch = prepared(drafting, schedule)
    assert batch.steps[0].wants_features
    features = Features(sequence_id=sequence.id, offset=0, rows=bytes(4 * 2000))
    assert shown(drafting, batch, features) == [(2000 - MAX_NUM_PROMPT_FEATURES, 4 * MAX_NUM_PROMPT_FEATURES)]


@pytest.mark.parametrize(
    "changes", [{"rows": bytes(39)}, {"offset": 5}, {"sequence_id": 77}, {"rows": bytes(400)}, {"rows": b""}]
)
async def test_hidden_vectors_that_make_no_sense_are_dropped(drafting: Drafting, changes: dict) -> None:
    schedule, sequence = begin(10)
    batch = prepared(drafting, schedule)
    features = Features(sequence_id=sequence.id, offset=0, rows=bytes(40))
    assert shown(drafting, batch, replace(features, **changes)) == []
    assert shown(drafting, batch, features) == [(0, 40)]


async def test_a_sequence_without_use_for_drafts_has_no_source(drafting: Drafting) -> None:
    schedule, sequence = begin(10)
    sequence.max_num_draft_tokens = 0
    step(schedule, GROUP)
    assert await drafting.collect(schedule.running.values()) == 0.0
    prepared(drafting, schedule)
    assert sequence.sources == ()
    assert drafting.drafter.news.is_empty


async def test_only_sequences_that_the_drafter_is_told_of_are_asked_about(drafting: Drafting) -> None:
    drafting.drafter.sources = frozenset({"suffix"})
    make, sequences = SequenceMaker(), []
    for _ in range(4):
        sequence = make([7] * (MAX_NUM_OPENED_BYTES // 8), max_num_tokens=MAX_NUM_OPENED_BYTES)
        sequence.state, sequence.num_computed_tokens = SequenceState.RUNNING, sequence.num_tokens - 1
        sequences.append(sequence)
    drafting.drafter._asked[0] = 0.0  # An answer is owed, so nobody waits.
    for asked in ([1, 2], [1, 2, 3, 4]):
        num_before = drafting._counters.num_draft_questions
        await drafting.collect(sequences)
        assert [item.sequence_id for item in drafting.drafter.news.take().wanted] == asked
        assert drafting._counters.num_draft_questions == num_before + len(asked)
    asking = drafting.controller.asking
    assert all(asking.expected_yield([sequence.record]) > 0 for sequence in sequences)
