"""Whom to ask for drafts: a question costs, and one that does not pay is asked ever more seldom."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from services.scheduler.controller.account import Account
from services.scheduler.controller.facts import SOURCES, Settings
from services.scheduler.controller.reading import number, table
from services.scheduler.controller.record import Record, SourceRecord

# A source that nothing is known of is hoped to win this many tokens per question.
_HOPED_YIELD = 0.3
_RECORD_SHARE = 1 / 8
# What a sequence's own questions won counts as much as what others' did once so many are settled, and never
# more than so much.
_NUM_OTHERS, _MOST_OWN = 2, 0.9
_SOURCE_SHARE = 1 / 64
_COMPUTE_SHARE = 1 / 16
_MAX_INTERVAL = 32
# Where a sequence begins with a source that has not been paying.
_DOUBTFUL_INTERVAL = 8
# The scheduler's own work on one question more and its answer, until it is measured, and the most it can be.
_OWN_SECONDS, _MAX_OWN_SECONDS = 1e-4, 1e-3
_OWN_SHARE = 1 / 32
# Where processes share cores, sending, reading and indexing a question's tokens take about so often as much.
_MESSAGE_FACTOR = 3.0
# Until a source has answered, its drafts are taken to be so dear: an index is read, a network is run.
_UNKNOWN_SECONDS = {"suffix": 1e-4, "model": 5e-3, "head": 5e-3, "grammar": 0.0}
# So many questions settled make a source known.
_NUM_KNOWN = 8
# Those of before a restart count for no more than so many.
_MAX_NUM_RESTORED = 32
# Questions that are not known to pay take no more than this part of the time, and at once no more than so
# many steps.
_SHARE_OF_TIME = 0.01
_MAX_NUM_STEPS = 8.0


class Asking:
    """Keeps the yield of each source, for each sequence and over all, against the price of its questions.

    Steps are numbered, and an interval of n asks in the steps that n divides: so the questions that are asked
    seldom share their messages, and which step asks is given by what happened before, not by chance.

    Questions that are not known to pay are paid for out of an account that a small part of all time flows
    into: however many sequences come and go, trying sources costs no more than that.
    """

    def __init__(self, settings: Settings) -> None:
        self._shares_cores = settings.drafter_shares_cores
        self.mean_yield = dict.fromkeys(SOURCES, _HOPED_YIELD)
        self.compute_seconds = dict(_UNKNOWN_SECONDS)  # per draft
        self._num_settled = dict.fromkeys(SOURCES, 0)
        self._price = dict.fromkeys(SOURCES, 0.0)
        self._own_seconds = _OWN_SECONDS
        self._plain_overhead: float | None = None  # between steps that asked nothing
        self._account = Account(share_of_time=_SHARE_OF_TIME, max_num_steps=_MAX_NUM_STEPS)
        self._promised = 0.0  # of the account, to questions of the coming step

    def due(self, record: Record, available: frozenset[str], step_number: int) -> tuple[str, ...]:
        """Returns the sources to ask for this sequence in the next step."""
        by_source, due = record.by_source, []
        for source in available:
            known = by_source.get(source) or self.record(record, source)
            if step_number % known.interval == 0 and (self._pays(known, source) or self._promise(source)):
                due.append(source)
        return tuple(due)

    def earn(self, step_seconds: float) -> None:
        """Credits a step, and forgets what was promised to questions that it did not ask."""
        self._account.earn(step_seconds)
        self._promised = 0.0

    def _pays(self, known: SourceRecord, source: str) -> bool:
        return self._num_settled[source] >= _NUM_KNOWN and self._expected(known, source) > self._price[source]

    def _promise(self, source: str) -> bool:
        """Returns whether the account can pay for one question more in the coming step."""
        promised = self._promised + self._seconds(source)
        if promised > self._account.seconds:
            return False
        self._promised = promised
        return True

    def _seconds(self, source: str) -> float:
        """Returns the time that a question takes from the sequences that run."""
        if self._shares_cores:
            return _MESSAGE_FACTOR * self._own_seconds + self.compute_seconds[source]
        return self._own_seconds

    def record(self, record: Record, source: str) -> SourceRecord:
        """Returns the sequence's own record of a source; it begins with what the source does for others."""
        known = record.by_source.get(source)
        if known is None:
            interval = 1 if self.mean_yield[source] > self._price[source] else _DOUBTFUL_INTERVAL
            known = record.by_source[source] = SourceRecord(interval=interval)
        return known

    def _expected(self, known: SourceRecord, source: str) -> float:
        """Returns the tokens that a question wins, as it did for this sequence; at first, for others."""
        weight = min(known.num_settled / (known.num_settled + _NUM_OTHERS), _MOST_OWN)
        return weight * known.mean_yield + (1 - weight) * self.mean_yield[source]

    def offered(self, record: Record, source: str) -> SourceRecord:
        """Returns the sequence's record of a source that has answered: its question has come to something."""
        known = record.by_source.get(source) or self.record(record, source)
        known.is_open = False
        return known

    def ask(self, record: Record, sources: Sequence[str]) -> None:
        """Notes questions; the one before, if nothing came of it, won nothing."""
        by_source = record.by_source
        for source in sources:
            known = by_source.get(source) or self.record(record, source)
            if known.is_open:
                self.settle(known, source, 0.0)
            known.is_open = True
            if not self._pays(known, source):
                self._account.spend(self._seconds(source))

    def settle(self, known: SourceRecord, source: str, won: float) -> None:
        """Notes how many tokens a question won; one that paid is asked again at once."""
        known.is_open = False
        known.num_settled += 1
        known.mean_yield += max(_RECORD_SHARE, 1 / known.num_settled) * (won - known.mean_yield)
        self._num_settled[source] += 1
        share = max(_SOURCE_SHARE, 1 / (self._num_settled[source] + 4))
        self.mean_yield[source] += share * (won - self.mean_yield[source])
        price = self._price[source]
        if won > price:
            known.interval = 1
        elif self._expected(known, source) <= price:
            self.defer(known)

    def defer(self, known: SourceRecord) -> None:
        """Asks more seldom, whatever the question won."""
        known.interval = min(2 * known.interval, _MAX_INTERVAL)

    def ask_again(self, record: Record) -> None:
        """Asks every source again: the text may have become predictable."""
        for known in record.by_source.values():
            known.interval, known.num_settled = 1, 0

    def note_answer(self, source: str, *, num_drafts: int, compute_seconds: float) -> None:
        """Follows what a draft of a source takes to make."""
        if num_drafts > 0 and compute_seconds >= 0:
            mean = self.compute_seconds[source]
            self.compute_seconds[source] = mean + _COMPUTE_SHARE * (compute_seconds / num_drafts - mean)

    def note_overhead(self, seconds: float, num_questions: int) -> None:
        """Learns from the time between two steps, waiting left out, what questions add to it."""
        plain = self._plain_overhead
        if not num_questions:
            seconds = seconds if plain is None else min(seconds, 4 * plain)
            self._plain_overhead = seconds if plain is None else plain + _OWN_SHARE * (seconds - plain)
        elif plain is not None:
            added = min(max(0.0, seconds - plain) / num_questions, _MAX_OWN_SECONDS)
            self._own_seconds += _OWN_SHARE * (added - self._own_seconds)

    def set_token_seconds(self, token_seconds: float) -> None:
        """Reckons prices in tokens: what could have been generated in the time that a question takes."""
        for source in SOURCES:
            self._price[source] = self._seconds(source) / token_seconds

    def expected_yield(self, record: Record) -> float:
        """Returns the tokens that the answer for a sequence is expected to win, less its price."""
        best = 0.0
        for source, known in record.by_source.items():
            if known.is_open:
                best = max(best, self._expected(known, source) - self._price[source])
        return best

    def beats(self, record: Record, source: str, drafts: Mapping[str, Sequence[float]]) -> bool:
        """Returns whether to ask a source should win more than the drafts of other sources that are there.

        Their confidences are taken at their word, but for no more than was accepted of their source of late.
        """
        hoped = self._expected(self.record(record, source), source) - self._price[source]
        for other, confidences in drafts.items():
            known = self.record(record, other)
            rate = (known.num_accepted + 2) / (known.num_observed + 2)
            if sum(accumulate([min(confidence, rate) for confidence in confidences], mul)) >= hoped:
                return False
        return True

    def state(self) -> dict[str, Any]:
        """Returns what was learnt."""
        return {
            "mean_yield": dict(self.mean_yield),
            "compute_seconds": dict(self.compute_seconds),
            "num_settled": dict(self._num_settled),
        }

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up what was learnt: the older, the nearer to what is hoped."""
        yields, seconds = table(state, "mean_yield"), table(state, "compute_seconds")
        counts = table(state, "num_settled")
        for source in SOURCES:
            kept = number(yields, source, least=-1000, most=1000)
            self.mean_yield[source] = decay * kept + (1 - decay) * _HOPED_YIELD
            self.compute_seconds[source] = number(seconds, source, least=0, most=1000)
            num_settled = number(counts, source, least=0)
            self._num_settled[source] = round(decay * min(num_settled, _MAX_NUM_RESTORED))
