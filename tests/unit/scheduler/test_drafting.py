"""What is asked of the group for the drafter's sake, and what of it is passed on."""

from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from services.scheduler.batch import Batch, BatchOutput, Features, GroupFacts
from services.scheduler.config import Config
from services.scheduler.counters import Counters
from services.scheduler.drafting import MAX_NUM_PROMPT_FEATURES, NUM_STEPS_WITH_FEATURES, Drafting
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import Sequence
from tests.unit.scheduler.reference_group import ReferenceGroup
from tests.unit.scheduler.scenario import SequenceMaker, make_controller, make_schedule, step

GROUP = ReferenceGroup(num_blocks=2000, max_num_batched_tokens=2048, max_model_len=8000, feature_size=2)
FACTS = GroupFacts.from_proto(GROUP.opened)


@pytest.fixture
async def drafting() -> AsyncIterator[Drafting]:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        drafting = Drafting(channel, Config(worker="a worker"), Counters())
        drafting.begin(FACTS, make_controller())
        drafting.drafter.sources = frozenset({"head"})
        yield drafting


def begin(num_prompt_tokens: int, *, chunk: int = 512) -> tuple[Schedule, Sequence]:
    GROUP.void()
    schedule = make_schedule(GROUP, prefill_chunk=chunk)
    sequence = SequenceMaker()([1] * num_prompt_tokens, max_num_tokens=num_prompt_tokens + 100)
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


async def test_a_head_that_is_asked_now_and_then_gets_what_lies_between(drafting: Drafting) -> None:
    schedule, sequence = begin(10)
    assert prepared(drafting, schedule).steps[0].wants_features
    sequence.sources = ()
    wanted = [prepared(drafting, schedule).steps[0].wants_features for _ in range(NUM_STEPS_WITH_FEATURES)]
    assert wanted == [True] * (NUM_STEPS_WITH_FEATURES - 1) + [False]


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
