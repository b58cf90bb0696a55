"""Which drafts are asked for and how long a step waits for them; what the drafter is told meanwhile."""

import time
from collections.abc import Iterable

import grpc

from services.scheduler.ahead import Ahead
from services.scheduler.batch import Batch, BatchOutput, Features, GroupFacts
from services.scheduler.config import Config
from services.scheduler.controller import Controller, StepShape
from services.scheduler.counters import Counters
from services.scheduler.drafter import Drafter
from services.scheduler.drafter_answer import Answer, Bounds
from services.scheduler.head_turns import MAX_NUM_PROMPT_FEATURES, HeadTurns
from services.scheduler.kept import KeptDrafts
from services.scheduler.recent import Recent
from services.scheduler.rows import shape_of
from services.scheduler.sequence import FinishReason, Sequence, SequenceState

BYTES_PER_FEATURE = 2


class Drafting:
    """Talks with the drafter about the sequences for which the controller finds that drafts pay.

    At most two messages a step: before it, what is wanted for the sequences that have no good draft yet;
    while the group computes, what it verifies, so that drafts for likely outcomes are there when it is done.
    """

    def __init__(self, channel: grpc.aio.Channel, config: Config, counters: Counters) -> None:
        self.drafter = Drafter(
            channel, on_answer=self._take, on_round_trip=self._note_round_trip, on_lost=self._lose
        )
        self._max_draft_tokens = config.max_draft_tokens
        self._counters = counters
        self._kept = KeptDrafts()
        self._head_turns = HeadTurns()
        self._ahead = Ahead(shares_cores=config.drafter_shares_cores)
        self._round_trip_seconds = Recent()
        self._controller: Controller | None = None
        self._feature_bytes = 0
        self._is_step_in_flight = False

    @property
    def controller(self) -> Controller:
        """Who judges; there is one from the moment a group was found."""
        assert self._controller is not None
        return self._controller

    def begin(self, facts: GroupFacts, controller: Controller) -> None:
        """Takes up a group."""
        self._controller = controller
        self._feature_bytes = BYTES_PER_FEATURE * facts.feature_size
        self.drafter.bounds = Bounds(max_num_tokens=self._max_draft_tokens, vocab_size=facts.vocab_size)

    async def collect(self, running: Iterable[Sequence]) -> float:
        """Gives sequences the drafts that fit and asks for those that lack; returns how long it waited."""
        self._is_step_in_flight = False
        self.drafter.news.drop_questions()
        wanting = [sequence for sequence in running if sequence.wants_draft]
        self._name_sources(wanting)
        missing: list[tuple[Sequence, tuple[str, ...]]] = []
        num_hits = 0
        for sequence in wanting:
            fitting = self._kept.fitting(sequence)
            sequence.offers |= fitting
            if lacking := self._lacking(sequence, sequence.sources or ()):
                missing.append((sequence, lacking))
            elif fitting:
                num_hits += 1
        self._counters.num_draft_hits += num_hits
        if num_hits and not missing:
            self._counters.draft_wait_saved_seconds += self._round_trip_seconds.value or 0.0
        if not missing or self.drafter.is_lagging:
            return 0.0
        return await self._ask(missing, shape_of(wanting))

    def _lacking(self, sequence: Sequence, sources: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the sources to ask: all where there is no draft, else those that do better than it."""
        if not sequence.offers:
            return sources
        there = {source: draft.confidences for source, draft in sequence.offers.items()}
        beats, record = self.controller.beats, sequence.record
        return tuple([source for source in sources if source not in there and beats(record, source, there)])

    async def _ask(self, missing: list[tuple[Sequence, tuple[str, ...]]], shape: StepShape) -> float:
        """Asks, and waits as long as it pays; not for a drafter that still owes an earlier answer."""
        may_wait = not self.drafter.owes_answer
        # In one message the drafter is told of no more than so many texts.
        asked = [item for item in missing if self.drafter.news.want(*item)]
        self.controller.note_questions([(sequence.record, sources) for sequence, sources in asked])
        self._counters.num_draft_questions += len(asked)
        self.drafter.send()
        seconds = self.controller.wait_seconds([sequence.record for sequence, _ in asked], shape)
        if not may_wait or seconds <= 0:
            return 0.0
        began = time.perf_counter()
        await self.drafter.wait(seconds)
        waited = time.perf_counter() - began
        self._counters.draft_wait_seconds += waited
        for sequence, _ in asked:
            sequence.offers |= self._kept.fitting(sequence)
        return waited

    def prepare(self, batch: Batch) -> None:
        """Asks the group for hidden vectors where the draft head is to be asked."""
        self._name_sources([step.sequence for step in batch.steps if step.sequence.sources is None])
        for step in batch.steps:
            step.wants_features = self._head_turns.wants_features(step)

    def follow(self, batch: Batch, step_seconds: float) -> None:
        """Tells the drafter what a step verifies that has just been sent."""
        self._is_step_in_flight = True
        if not self.drafter.is_connected:
            return
        news, ahead_seconds = self.drafter.news, self._ahead.seconds(step_seconds)
        news.drop_questions()
        cheap = self._ahead.worthwhile(self.drafter.sources, self.controller.compute_seconds, step_seconds)
        for step in batch.steps:
            sequence = step.sequence
            if not sequence.sources:
                continue
            ahead = [source for source in sequence.sources if source in cheap] if step.chooses else []
            if ahead and ahead_seconds and sequence.num_useful_draft_tokens > 0:
                news.verify(sequence, step.draft_token_ids, ahead)
            else:
                news.tell(sequence)
        news.allow(ahead_seconds)
        self.drafter.send()

    def show(self, batch: Batch, answer: BatchOutput) -> None:
        """Passes on the hidden vectors of a step whose tokens are committed."""
        if not answer.features or not self.drafter.is_connected:
            return
        sequences = {step.sequence.id: step.sequence for step in batch.steps if step.wants_features}
        for features in answer.features:
            sequence = sequences.get(features.sequence_id)
            if sequence is None or sequence.state is not SequenceState.RUNNING:
                continue
            rest = self._of_use(features, sequence)
            if rest is not None and self.drafter.news.show(sequence, rest):
                num_rows = len(rest.rows) // self._feature_bytes
                self._head_turns.note_shown(sequence, rest.offset, num_rows)

    def close(self, sequence: Sequence) -> None:
        """Tells the drafter that a sequence has ended, and the whole text of one it might learn from."""
        finished = sequence.end in (FinishReason.STOP, FinishReason.LENGTH)
        is_worth_learning = finished and sequence.max_num_draft_tokens > 0 and self.drafter.is_connected
        if is_worth_learning or self.drafter.news.knows(sequence.id):
            self.drafter.news.close(sequence)
            self.drafter.send()
        self._kept.forget(sequence.id)
        self._head_turns.forget(sequence.id)

    def _name_sources(self, sequences: list[Sequence]) -> None:
        """Notes which sources each sequence may be asked about."""
        if not sequences:
            return
        available = self.drafter.sources if self._feature_bytes else self.drafter.sources - {"head"}
        for sequence in sequences:
            sequence.sources = ()
        useful = [sequence for sequence in sequences if available and sequence.num_useful_draft_tokens > 0]
        named = self.controller.sources([sequence.record for sequence in useful], available)
        for sequence, sources in zip(useful, named, strict=True):
            sequence.sources = self._head_turns.sources(sequence, sources)

    def _of_use(self, features: Features, sequence: Sequence) -> Features | None:
        """Returns the hidden vectors without those far from a prompt's end; None if they make no sense."""
        num_rows, rest = divmod(len(features.rows), self._feature_bytes)
        if rest or features.offset + num_rows > sequence.num_tokens:
            return None
        first = max(features.offset, sequence.num_prompt_tokens - MAX_NUM_PROMPT_FEATURES)
        rows = features.rows[(first - features.offset) * self._feature_bytes :]
        return Features(sequence_id=sequence.id, offset=first, rows=rows) if rows else None

    def _take(self, answer: Answer) -> None:
        self._counters.num_unusable_drafts += answer.num_unusable_drafts
        # A sequence that has ended has no use for it.
        drafts = [item for item in answer.drafts if self.drafter.news.knows(item[0])]
        for sequence_id, base_hash, draft in drafts:
            self._kept.keep(sequence_id, base_hash, draft)
        if drafts and not answer.request_id:
            self._ahead.note_arrival(is_late=not self._is_step_in_flight)
        for item in answer.times if self._controller is not None else ():
            self.controller.note_answer(
                item.source, num_drafts=item.num_drafts, compute_seconds=item.compute_seconds
            )

    def _note_round_trip(self, seconds: float) -> None:
        self._round_trip_seconds.add(seconds)
        self.controller.note_round_trip(seconds)

    def _lose(self) -> None:
        self._kept.clear()
        self._head_turns.clear()
