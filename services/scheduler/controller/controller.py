"""The controller: one object per group, asked before each step and told what became of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.controller.allocation import Ranked, rank
from services.scheduler.controller.asking import Asking
from services.scheduler.controller.best_offers import best_offers
from services.scheduler.controller.calibration import Calibration
from services.scheduler.controller.cost import CostModel
from services.scheduler.controller.decision import Prospect, decide
from services.scheduler.controller.drafts_table import lay_out
from services.scheduler.controller.facts import SOURCES, ModelFacts, Offer, Settings, StepShape
from services.scheduler.controller.probing import Probing
from services.scheduler.controller.reading import table as read_table
from services.scheduler.controller.record import Record, SourceRecord
from services.scheduler.controller.surprise import Surprise
from services.scheduler.controller.waiting import Waiting

VERSION = 2
_KEPT = ("cost", "calibration", "asking")
HALF_LIFE_SECONDS = 86_400.0
# A source's drafts that are not verified count against it once it is trusted so far.
_TRUSTED = 0.5
# A token that is reached and right no oftener than this never pays.
_LEAST_SURVIVAL = 0.01
# No more outcomes than about this are learnt from per step, of a batch in turn.
_NUM_LEARNT = 16
# Prompts make progress whatever the target: in tiles of so many rows.
_LEAST_PREFILL_ROWS = 16
_OVERHEAD_SHARE = 0.05
_TOKEN_SHARE = 0.25
# Drafts that keep so little of what they promise are learnt from at once.
_SURPRISING = 0.7


class Controller:
    """Prices drafts and decides which are asked for, awaited and verified.

    In the order of a step: `sources`, `note_question`, `wait_seconds`, `best`, `prefill_rows`,
    `allocate`; and when the step's answer is there `note_draft` for each draft verified, then `note_step`.
    """

    def __init__(self, model: ModelFacts, settings: Settings) -> None:
        self.settings = settings
        self._model = model
        self._begin()

    def _begin(self) -> None:
        self.cost = CostModel(self._model)
        self.calibration = Calibration()
        self.asking = Asking(self.settings)
        self.waiting = Waiting(self.settings.max_wait_seconds)
        self.probing = Probing()
        self.num_steps = 0
        self._surprise = Surprise()
        self._num_questions = 0
        self._turn = 0
        self._overhead_seconds = 0.0
        self._token_seconds = 0.0
        self._price_per_draft_token = 0.0
        self._outcomes: list[tuple[Record, Offer, int, int]] = []  # verified, accepted

    def new_record(self) -> Record:
        """Begins the record of a sequence."""
        return Record()

    def sources(self, record: Record, available: frozenset[str]) -> tuple[str, ...]:
        """Returns which sources to ask for the sequence's next draft; none if no draft would pay."""
        return self.asking.due(record, available, self.num_steps)

    def beats(self, record: Record, source: str, drafts: Mapping[str, Sequence[float]]) -> bool:
        """Returns whether to ask a source should win more than drafts that are there, by confidences."""
        return self.asking.beats(record, source, drafts)

    def wait_seconds(self, records: Sequence[Record], shape: StepShape) -> float:
        """Returns how long the coming step may wait for drafts of these sequences; 0 not at all."""
        num_tokens = sum(map(self.asking.expected_yield, records))
        if num_tokens and self.cost.is_ready:
            seconds, _ = self.cost.predict(shape, 0)
            self._token_seconds = float(seconds[0] + self._overhead_seconds) / shape.num_base_tokens
        return self.waiting.best_wait(num_tokens * self._token_seconds)

    def best(self, choices: Sequence[tuple[Record, Sequence[Offer]]]) -> list[int]:
        """Returns for each sequence the index of the offer with most expected accepted tokens.

        All sequences of a step go in one call: it is the number of calls that costs.
        """
        return best_offers(choices, self.calibration, self.asking, self.num_steps)

    def allocate(
        self, shape: StepShape, drafts: Sequence[tuple[Record, Offer, int]], max_num_rows: int
    ) -> list[int]:
        """Returns how many tokens of each draft to verify, 0 included.

        `shape` is the step without drafts; the integer is the most tokens of that draft; `max_num_rows`
        what is left of the step.
        """
        known, offers, lengths = [], [], []
        offered = self.asking.offered
        for record, offer, most in drafts:
            known.append(offered(record, offer.source))
            offers.append(offer)
            count = len(offer.confidences)
            lengths.append(count if count < most else most)
        num_positions = min(sum(lengths), max_num_rows)
        if num_positions <= 0 or not self.cost.is_ready:
            return [0] * len(drafts)
        table = lay_out([one.recent for one in known], offers, lengths)
        survival = np.cumprod(self.calibration.chances(table), axis=1)
        num_positions = min(num_positions, int(np.count_nonzero(survival > _LEAST_SURVIVAL)))
        counts = [0] * len(drafts)
        if num_positions:
            ranked = rank(survival, num_positions)
            believed = ranked.totals(survival * self.calibration.trust[table.source][:, None])
            num_chosen = self._choose(shape, ranked, self._surprise.factor * believed)
            self._surprise.expect(float(ranked.total[num_chosen]))
            counts = ranked.counts(num_chosen, len(drafts)).tolist()
        self._settle_unverified(known, drafts, counts)
        return counts

    def _choose(self, shape: StepShape, ranked: Ranked, believed: np.ndarray) -> int:
        """Returns how many positions to verify."""
        seconds, doubt = self.cost.predict(shape, len(ranked.order))
        prospect = Prospect(
            num_base_tokens=shape.num_base_tokens,
            total=ranked.total,
            believed=believed,
            seconds=seconds + self._overhead_seconds,
            doubt=doubt,
        )
        decision = decide(prospect, self.probing)
        self._token_seconds = decision.token_seconds
        self._price_per_draft_token = decision.price_per_draft_token
        return decision.num_positions

    def _settle_unverified(
        self, known: list[SourceRecord], drafts: Sequence[tuple[Record, Offer, int]], counts: list[int]
    ) -> None:
        """Notes the drafts that are not worth verifying: their questions won nothing.

        While a source is not trusted that is no judgement on it, but it is asked more seldom all the same.
        """
        is_trusted = self.calibration.trust > _TRUSTED
        for one, (_, offer, _), count in zip(known, drafts, counts, strict=True):
            if not count and is_trusted[SOURCES.index(offer.source)]:
                self.asking.settle(one, offer.source, 0.0)
            elif not count:
                self.asking.defer(one)

    def prefill_rows(self, shape: StepShape, max_num_rows: int) -> int:
        """Returns how many further prompt rows, up to `max_num_rows`, keep the step within the target.

        At least one tile's worth of them, so that prompts make progress.
        """
        target = self.settings.inter_token_target_seconds
        if target is None or max_num_rows <= 0 or not shape.num_sequences or not self.cost.is_ready:
            return max(0, max_num_rows)
        seconds, _ = self.cost.predict(shape, max_num_rows)
        within = int(np.searchsorted(seconds, target - self._overhead_seconds, side="right")) - 1
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
        self._overhead_seconds += _OVERHEAD_SHARE * (min(overhead_seconds, seconds) - self._overhead_seconds)
        if shape.num_rows == shape.num_sequences or not self._token_seconds:
            share = _TOKEN_SHARE if self._token_seconds else 1.0
            token_seconds = (seconds + self._overhead_seconds) / shape.num_base_tokens
            self._token_seconds += share * (token_seconds - self._token_seconds)
        self.asking.set_token_seconds(self._token_seconds)

    def note_draft(self, record: Record, offer: Offer, num_verified: int, num_accepted: int) -> None:
        """Learns from a draft that was verified; before `note_step`."""
        self._outcomes.append((record, offer, num_verified, num_accepted))

    def _learn(self) -> int:
        """Learns from the drafts of a step; returns how many of their tokens were accepted.

        The calibration learns from some of many, in turn; each sequence's own record from its own.
        """
        outcomes, self._outcomes = self._outcomes, []
        num_accepted = sum([outcome[3] for outcome in outcomes])
        self._surprise.settle(num_accepted)
        if not outcomes:
            return 0
        asking, price = self.asking, self._price_per_draft_token
        known = [asking.record(record, offer.source) for record, offer, _, _ in outcomes]
        every = 1 if self.calibration.is_new([outcome[1] for outcome in outcomes]) else _every(len(outcomes))
        self._turn += 1
        self.calibration.note(
            [(known[row].recent, *outcomes[row][1:]) for row in range(self._turn % every, len(known), every)],
            at_once=self._surprise.factor < _SURPRISING,
        )
        for one, (_, offer, verified, accepted) in zip(known, outcomes, strict=True):
            one.note(accepted, min(accepted + 1, verified))
            asking.settle(one, offer.source, accepted - verified * price)
        return num_accepted

    def note_phase(self, record: Record, phase: str) -> None:
        """Notes that the sequence has entered a phase: its text may have become predictable."""
        if phase != record.phase:
            record.phase = phase
            self.asking.ask_again(record)

    def note_question(self, record: Record, sources: Sequence[str]) -> None:
        """Notes that these sources were asked for the sequence."""
        self._num_questions += len(sources)
        self.asking.ask(record, sources)

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
            **{f"brier_{source}": float(self.calibration.brier[code]) for code, source in enumerate(SOURCES)},
        }

    def state(self) -> dict[str, Any]:
        """Returns what was learnt, fit for JSON."""
        return {"version": VERSION, **{name: getattr(self, name).state() for name in _KEPT}}

    def restore(self, state: Mapping[str, Any], age_seconds: float) -> None:
        """Takes up what was learnt so long ago; raises ValueError naming what is wrong, then is as new."""
        decay = 0.5 ** (max(0.0, age_seconds) / HALF_LIFE_SECONDS)
        self._begin()
        try:
            if state.get("version") != VERSION:
                raise ValueError(f"version is {state.get('version')!r:.50}, not {VERSION}")
            for name in _KEPT:
                getattr(self, name).restore(read_table(state, name), decay)
        except ValueError:
            self._begin()
            raise


def _every(count: int) -> int:
    """Returns of how many things one is looked at, so that about `_NUM_LEARNT` are."""
    return max(1, -(-count // _NUM_LEARNT))
