"""What the tests of schedules start from: a schedule, sequences, and steps against the reference group."""

from functools import cache
from itertools import count
from typing import Any

from outrider.v1 import sampling_pb2
from services.scheduler.batch import Batch, BatchOutput, GroupFacts
from services.scheduler.controller import Controller, ModelFacts, Offer, Record, Settings, StepShape
from services.scheduler.counters import Counters
from services.scheduler.events import Outbox
from services.scheduler.places import Limits
from services.scheduler.schedule import Schedule
from services.scheduler.sequence import Draft, Sequence
from services.scheduler.tracing import Trace
from tests.unit.scheduler.reference_group import ReferenceGroup

SETTINGS = Settings(max_num_draft_tokens=8)


def make_schedule(
    group: ReferenceGroup, *, max_num_seqs: int = 8, prefill_chunk: int = 8, budget: int | None = None
) -> Schedule:
    """Makes a schedule for a group."""
    limits = Limits(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, prefill_chunk=prefill_chunk)
    return Schedule(GroupFacts.from_proto(group.opened), limits, make_controller(), Counters())


@cache
def _learnt() -> dict[str, Any]:
    """Returns what a controller knows that has seen drafts be right and further rows cost nothing."""
    controller = Controller(ModelFacts(), SETTINGS)
    for number in range(200):
        num_sequences, num_rows = 1 + number % 8, 1 + number % 8 + number % 33
        shape = StepShape(num_rows=num_rows, num_sequences=num_sequences, num_context_tokens=100)
        drafts = [
            (
                controller.new_record(),
                Offer(source=source, confidences=(0.9,) * 4, match_length=0, phase="text"),
            )
            for source in ("suffix", "grammar")
        ]
        controller.allocate(shape, [(record, offer, 4) for record, offer in drafts], 8)
        for record, offer in drafts:
            controller.note_draft(record, offer, 4, 4)
        controller.note_step(shape, 0.01, ())
    return controller.state()


def make_controller() -> Controller:
    """Makes a controller that has learnt to have all of a draft verified."""
    controller = Controller(ModelFacts(), SETTINGS)
    controller.restore(_learnt(), age_seconds=0.0)
    return controller


class SequenceMaker:
    """Makes sequences as the service does from a gateway's message."""

    def __init__(self) -> None:
        self._ids = count(1)

    def __call__(
        self,
        prompt: list[int],
        *,
        seed: int = 0,
        tenant: str = "a",
        tenant_weight: float = 1.0,
        priority: int = 0,
        resumed: tuple[int, ...] = (),
        stop: frozenset[int] = frozenset(),
        max_num_tokens: int = 40,
        max_num_draft_tokens: int = 4,
        phase_marks: dict[int, str] | None = None,
    ) -> Sequence:
        sampling = sampling_pb2.SamplingParams(stop_token_ids=sorted(stop))
        sequence_id = next(self._ids)
        return Sequence(
            id=sequence_id,
            client_id=sequence_id,
            request_id=f"request-{sequence_id}",
            tenant=tenant,
            tenant_weight=tenant_weight,
            priority=priority,
            token_ids=[*prompt, *resumed],
            num_prompt_tokens=len(prompt),
            num_resumed_tokens=len(resumed),
            params=sampling_pb2.SequenceParams(sampling=sampling, seed=seed),
            stop_token_ids=stop,
            max_num_tokens=max_num_tokens,
            max_num_draft_tokens=max_num_draft_tokens,
            outbox=Outbox(),
            trace=Trace(traceparent="", request_id="", num_prompt_tokens=len(prompt)),
            record=Record(),
            phase_marks=phase_marks or {},
        )


def step(
    schedule: Schedule, group: ReferenceGroup, drafts: dict[int, tuple[int, ...]] | None = None
) -> Batch:
    """Runs one step as the loop does, messages included; `drafts` are guesses by sequence id."""
    offer(schedule, drafts or {})
    batch = schedule.schedule()
    schedule.check()
    schedule.process(batch, BatchOutput.from_proto(group.step(batch.to_proto(1))))
    schedule.check()
    return batch


def offer(schedule: Schedule, drafts: dict[int, tuple[int, ...]]) -> None:
    """Gives running sequences that want one a draft."""
    for sequence in schedule.running.values():
        if sequence.wants_draft and sequence.id in drafts:
            token_ids = drafts[sequence.id]
            draft = Draft(
                base_length=sequence.num_tokens,
                token_ids=token_ids,
                confidences=(0.9,) * len(token_ids),
                source="suffix",
            )
            sequence.offers[draft.source] = draft


def run(schedule: Schedule, group: ReferenceGroup, *, max_num_steps: int = 2000) -> int:
    """Steps until nothing is left to do; returns the number of steps."""
    for num_steps in range(max_num_steps):
        if not schedule.has_work:
            return num_steps
        step(schedule, group)
    raise AssertionError("work is left: something starves")
