"""The controller: one object per group, asked before each step and told what became of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from outrider_native.controller import (
    Asking,
    Calibration,
    Drafts,
    Probing,
    Ranked,
    Record,
    best_offers,
    decide,
)

from services.scheduler.controller import kept
from services.scheduler.controller.cost import CostModel
from services.scheduler.controller.facts import SOURCES, ModelFacts, Offer, Settings, StepShape
from services.scheduler.controller.reading import table
from services.scheduler.controller.surprise import Surprise
from services.scheduler.controller.token_time import TokenTime
from services.scheduler.controller.waiting import Waiting

VERSION = 2
HALF_LIFE_SECONDS = 86_400.0
# Prompts make progress whatever the target: in tiles of so many rows.
_LEAST_PREFILL_ROWS = 16
# Drafts that keep so little of what they promise are learnt from at once.
_SURPRISING = 0.7


class Controller:
    """Prices drafts and decides which are asked for, awaited and verified.

    In the order of a step: `sources`, `note_questions`, `wait_seconds`, `best`, `prefill_rows`,
    `allocate`; and when the step's answer is there `note_draft` for each draft verified, then `note_step`.
    Whatever is done for each sequence or token is in C++, and takes all sequences in one call.
    """

    def __init__(self, model: ModelFacts, settings: Settings) -> None:
        self.settings = settings
        self._model = model
        self._begin()

    def _begin(self) -> None:
        self.cost = CostModel(self._model)
        self.calibration = Calibration()
        self.asking = Asking(shares_cores=self.settings.drafter_shares_cores)
        self.waiting = Waiting(self.settings.max_wait_seconds)
        self.probing = Probing()
        self.num_steps = 0
        self._surprise = Surprise()
        self._token_time = TokenTime()
        self._num_questions = 0
        self._price_per_draft_token = 0.0
        self._outcomes: list[tuple[Record, Offer, int, int]] = []  # verified, accepted

    def new_record(self) -> Record:
        """Begins the record of a sequence."""
        return Record()

    def sources(self, records: Sequence[Record], available: frozenset[str]) -> list[tuple[str, ...]]:
        """Returns for each sequence which sources to ask for its next draft; none if no draft would pay."""
        return self.asking.due(records, available, self.num_steps)

    def beats(self, record: Record, source: str, drafts: Mapping[str, Sequence[float]]) -> bool:
        """Returns whether to ask a source should win more than drafts that are there, by confidences."""
        return self.asking.beats(record, source, drafts)

    def compute_seconds(self, source: str) -> float:
        """Returns what a draft of a source takes to make."""
        return self.asking.mean_of(source).compute_seconds

    def wait_seconds(self, records: Sequence[Record], shape: StepShape) -> float:
        """Returns how long the coming step may wait for drafts of these sequences; 0 not at all."""
        num_tokens = self.asking.expected_yield(records)
        if num_tokens and self.cost.is_ready:
            self._token_time.predict(shape, self.cost.expected(shape))
        return self.waiting.best_wait(num_tokens * self._token_time.seconds)

    def best(self, choices: Sequence[tuple[Record, Sequence[Offer]]]) -> list[int]:
        """Returns for each sequence the index of the offer with most expected accepted tokens."""
        return best_offers(choices, self.calibration, self.asking, self.num_steps)

    def allocate(
        self, shape: StepShape, drafts: Sequence[tuple[Record, Offer, int]], max_num_rows: int
    ) -> list[int]:
        """Returns how many tokens of each draft to verify, 0 included.

        `shape` is the step without drafts; the integer is the most tokens of that draft; `max_num_rows`
        what is left of the step.
        """
        several = Drafts(drafts)
        self.asking.note_offered(several)
        if several.num_tokens == 0 or max_num_rows <= 0 or not self.cost.is_ready:
            return [0] * len(drafts)
        ranked = Ranked(several, self.calibration, max_num_rows)
        counts = ranked.counts(self._choose(shape, ranked) if len(ranked) else 0)
        self.asking.note_allocated(several, counts, self.calibration)
        return counts

    def _choose(self, shape: StepShape, ranked: Ranked) -> int:
        """Returns how many positions to verify."""
        seconds, doubt = self.cost.predict(shape, len(ranked))
        total = ranked.total
        chosen = decide(
            num_base_tokens=shape.num_base_tokens,
            total=total,
            believed=self._surprise.factor * ranked.believed,
            seconds=seconds + self._token_time.overhead_seconds,
            doubt=doubt,
            probing=self.probing,
        )
        self._surprise.expect(float(total[chosen]))
        self._token_time.predict(shape, float(seconds[0]))
        further_seconds = float(seconds[chosen] - seconds[0])
        self._price_per_draft_token = further_seconds / self._token_time.seconds / max(1, chosen)
        return chosen

    def prefill_rows(self, shape: StepShape, max_num_rows: int) -> int:
        """Returns how many further prompt rows, up to `max_num_rows`, keep the step within the target.

        At least one tile's worth of them, so that prompts make progress.
        """
        target = self.settings.inter_token_target_seconds
        if target is None or max_num_rows <= 0 or not shape.num_sequences or not self.cost.is_ready:
            return max(0, max_num_rows)
        seconds, _ = self.cost.predict(shape, max_num_rows)
        target -= self._token_time.overhead_seconds
        within = int(np.searchsorted(seconds, target, side="right")) - 1
        return min(max_num_rows, max(_LEAST_PREFILL_ROWS, within))

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
        num_accepted = self._learn()
        self.num_steps += 1
        if seconds <= 0 or shape.num_rows <= 0:
            return
        self.cost.note(shape, seconds, num_distinct_experts)
        self.probing.settle(seconds, shape.num_base_tokens + num_accepted)
        self.probing.earn(seconds)
        self.asking.earn(seconds)
        self.asking.note_overhead(overhead_seconds, self._num_questions)
        self._num_questions = 0
        self._token_time.measure(shape, seconds, overhead_seconds)
        self.asking.set_token_seconds(self._token_time.seconds)

    def note_draft(self, record: Record, offer: Offer, num_verified: int, num_accepted: int) -> None:
        """Learns from a draft that was verified; before `note_step`."""
        self._outcomes.append((record, offer, num_verified, num_accepted))

    def _learn(self) -> int:
        """Learns from the drafts of a step; returns how many of their tokens were accepted."""
        outcomes, self._outcomes = self._outcomes, []
        num_accepted = sum([outcome[3] for outcome in outcomes])
        self._surprise.settle(num_accepted)
        if outcomes:
            # Before what they change in the sequences' records.
            self.calibration.note(outcomes, at_once=self._surprise.factor < _SURPRISING)
            self.asking.note_outcomes(outcomes, self._price_per_draft_token)
        return num_accepted

    def note_phase(self, record: Record, phase: str) -> None:
        """Notes the phase that a sequence is in: in a new one its text may have become predictable."""
        self.asking.note_phase(record, phase)

    def note_questions(self, questions: Sequence[tuple[Record, Sequence[str]]]) -> None:
        """Notes that these sources were asked for these sequences."""
        self._num_questions += self.asking.ask(questions)

    def note_answer(self, source: str, *, num_drafts: int, compute_seconds: float) -> None:
        """Notes what a source took for so many drafts, empty ones included."""
        self.asking.note_answer(source, num_drafts=num_drafts, compute_seconds=compute_seconds)

    def note_round_trip(self, seconds: float) -> None:
        """Notes the time from a question to its answer, that of a late answer too."""
        self.waiting.note(seconds)

    def figures(self) -> dict[str, float]:
        """Returns what the metrics show, by name."""
        return {
            "step_cost_error": self.cost.noise,
            "num_probes": self.probing.num_probes,
            "expert_overlap_by_sequence": self.cost.overlap.by_sequence,
            "expert_overlap_by_token": self.cost.overlap.by_token,
            "accepted_of_expected": self._surprise.factor,
            **{f"brier_{source}": self.calibration.of(source).brier for source in SOURCES},
        }

    def state(self) -> dict[str, Any]:
        """Returns what was learnt, fit for JSON."""
        return {
            "version": VERSION,
            "cost": self.cost.state(),
            "calibration": kept.calibration_state(self.calibration),
            "asking": kept.asking_state(self.asking),
        }

    def restore(self, state: Mapping[str, Any], age_seconds: float) -> None:
        """Takes up what was learnt so long ago; raises ValueError naming what is wrong, then is as new."""
        decay = 0.5 ** (max(0.0, age_seconds) / HALF_LIFE_SECONDS)
        self._begin()
        try:
            if state.get("version") != VERSION:
                raise ValueError(f"version is {state.get('version')!r:.50}, not {VERSION}")
            self.cost.restore(table(state, "cost"), decay)
            kept.restore_calibration(self.calibration, table(state, "calibration"), decay)
            kept.restore_asking(self.asking, table(state, "asking"), decay)
        except ValueError:
            self._begin()
            raise
