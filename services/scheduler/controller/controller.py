"""The controller: one object per group, asked before each step and told what became of it."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from services.scheduler.controller.facts import ModelFacts, Offer, Settings, StepShape
from services.scheduler.controller.record import Record


class Controller:
    """Prices drafts and decides which are asked for, awaited and verified.

    In the order of a step: `sources`, `note_question`, `wait_seconds`, `note_wait`, `best`, `prefill_rows`,
    `allocate`; and when the step's answer is there `note_draft` for each draft verified, then `note_step`.
    """

    def __init__(self, model: ModelFacts, settings: Settings) -> None:
        self.model = model
        self.settings = settings

    def new_record(self) -> Record:
        """Begins the record of a sequence."""
        return Record()

    def sources(self, record: Record, available: frozenset[str]) -> tuple[str, ...]:
        """Returns which sources to ask for the sequence's next draft; none if no draft would pay."""
        return tuple(sorted(available))

    def wait_seconds(self, records: Sequence[Record], shape: StepShape) -> float:
        """Returns how long the coming step may wait for drafts of these sequences; 0 not at all."""
        return self.settings.max_wait_seconds if records else 0.0

    def best(self, choices: Sequence[tuple[Record, Sequence[Offer]]]) -> list[int]:
        """Returns for each sequence the index of the offer with most expected accepted tokens.

        All sequences of a step go in one call: it is the number of calls that costs.
        """
        return [
            max(range(len(offers)), key=lambda n: sum(accumulate(offers[n].confidences, mul)))
            for _, offers in choices
        ]

    def allocate(
        self, shape: StepShape, drafts: Sequence[tuple[Record, Offer, int]], max_num_rows: int
    ) -> list[int]:
        """Returns how many tokens of each draft to verify, 0 included.

        `shape` is the step without drafts; the integer is the most tokens of that draft; `max_num_rows` is
        how many rows the step has left.
        """
        counts = []
        for _, offer, most in drafts:
            counts.append(min(most, len(offer.confidences), max_num_rows))
            max_num_rows -= counts[-1]
        return counts

    def prefill_rows(self, shape: StepShape, max_num_rows: int) -> int:
        """Returns how many further prompt rows, up to `max_num_rows`, keep the step within the target.

        At least one tile's worth of them, so that prompts make progress.
        """
        return max_num_rows

    def note_step(
        self,
        shape: StepShape,
        seconds: float,
        num_distinct_experts: Sequence[int],
        overhead_seconds: float = 0.0,
    ) -> None:
        """Learns from a step, drafts included in its shape.

        `overhead_seconds` is what passed since the step before it, waiting for drafts left out.
        """

    def note_draft(self, record: Record, offer: Offer, num_verified: int, num_accepted: int) -> None:
        """Learns from a draft that was verified; before `note_step`."""

    def note_phase(self, record: Record, phase: str) -> None:
        """Notes that the sequence has entered a phase: its text may have become predictable."""
        record.phase = phase

    def note_question(self, record: Record, sources: Sequence[str]) -> None:
        """Notes that these sources were asked for the sequence."""

    def note_answer(self, source: str, *, num_drafts: int, compute_seconds: float) -> None:
        """Notes what a source took for so many drafts, empty ones included."""

    def note_round_trip(self, seconds: float) -> None:
        """Notes the time from a question to its answer, that of a late answer too."""

    def note_wait(self, seconds: float) -> None:
        """Notes that a step waited so long for drafts."""

    def figures(self) -> dict[str, float]:
        """Returns what the metrics show, by name."""
        return {}

    def state(self) -> dict[str, Any]:
        """Returns what was learnt, fit for JSON."""
        return {"version": 1}

    def restore(self, state: Mapping[str, Any], age_seconds: float) -> None:
        """Takes up what was learnt so long ago; raises ValueError naming what is wrong, then is as new."""
        if state.get("version") != 1:
            raise ValueError(f"version is {state.get('version')}, not 1")
