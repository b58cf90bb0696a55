"""Whom to ask for drafts: a question costs, and one that does not pay is asked ever more seldom."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

from services.scheduler.controller.facts import SOURCES, Settings
from services.scheduler.controller.reading import number, table
from services.scheduler.controller.record import Record, SourceRecord

# A source that nothing is known of is hoped to win this many tokens per question.
_HOPED_YIELD = 0.3
_RECORD_SHARE = 1 / 8
_SOURCE_SHARE = 1 / 64
_COMPUTE_SHARE = 1 / 16
_MAX_INTERVAL = 32
# Where a sequence begins with a source that has not been paying.
_DOUBTFUL_INTERVAL = 8
# The own work of the scheduler on one question more in a message, and on its answer.
_OWN_SECONDS = 1e-5


class Asking:
    """Keeps the yield of each source, for each sequence and over all, against the price of its questions.

    Steps are numbered, and an interval of n asks in the steps that n divides: so the questions that are asked
    seldom share their messages, and which step asks is given by what happened before, not by chance.
    """

    def __init__(self, settings: Settings) -> None:
        self._shares_cores = settings.drafter_shares_cores
        self.mean_yield = dict.fromkeys(SOURCES, _HOPED_YIELD)
        self.compute_seconds = dict.fromkeys(SOURCES, 0.0)  # per draft
        self._num_settled = dict.fromkeys(SOURCES, 0)
        self._price = dict.fromkeys(SOURCES, 0.0)

    def due(self, record: Record, available: frozenset[str], step_number: int) -> tuple[str, ...]:
        """Returns the sources to ask for this sequence in the next step."""
        by_source, due = record.by_source, []
        for source in available:
            known = by_source.get(source) or self.record(record, source)
            if step_number % known.interval == 0:
                due.append(source)
        return tuple(due)

    def record(self, record: Record, source: str) -> SourceRecord:
        """Returns the sequence's own record of a source; it begins with what the source does for others."""
        known = record.by_source.get(source)
        if known is None:
            mean = self.mean_yield[source]
            interval = 1 if mean > self._price[source] else _DOUBTFUL_INTERVAL
            known = record.by_source[source] = SourceRecord(mean_yield=mean, interval=interval)
        return known

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

    def settle(self, known: SourceRecord, source: str, won: float) -> None:
        """Notes how many tokens a question won; one that paid is asked again at once."""
        known.is_open = False
        known.mean_yield += _RECORD_SHARE * (won - known.mean_yield)
        self._num_settled[source] += 1
        share = max(_SOURCE_SHARE, 1 / (self._num_settled[source] + 4))
        self.mean_yield[source] += share * (won - self.mean_yield[source])
        price = self._price[source]
        if won > price:
            known.interval = 1
            known.mean_yield = max(known.mean_yield, _RECORD_SHARE * won)
        elif known.mean_yield <= price:
            known.interval = min(2 * known.interval, _MAX_INTERVAL)

    def ask_again(self, record: Record) -> None:
        """Asks every source again: the text may have become predictable."""
        for source, known in record.by_source.items():
            known.interval = 1
            known.mean_yield = max(known.mean_yield, self.mean_yield[source])

    def note_answer(self, source: str, *, num_drafts: int, compute_seconds: float) -> None:
        """Follows what a draft of a source takes to make."""
        if num_drafts > 0 and compute_seconds >= 0:
            mean = self.compute_seconds[source]
            self.compute_seconds[source] = mean + _COMPUTE_SHARE * (compute_seconds / num_drafts - mean)

    def set_token_seconds(self, token_seconds: float) -> None:
        """Reckons prices in tokens: what could have been generated in the time that a question takes."""
        for source, seconds in self.compute_seconds.items():
            taken = _OWN_SECONDS + (seconds if self._shares_cores else 0.0)
            self._price[source] = taken / token_seconds

    def expected_yield(self, record: Record) -> float:
        """Returns the tokens that the answer for a sequence is expected to win, less its price."""
        best = 0.0
        for source, known in record.by_source.items():
            if known.is_open:
                best = max(best, known.mean_yield - self._price[source])
        return best

    def beats(self, record: Record, source: str, drafts: Mapping[str, Sequence[float]]) -> bool:
        """Returns whether to ask a source should win more than the drafts of other sources that are there.

        Their confidences are taken at their word, but for no more than was accepted of their source of late.
        """
        hoped = self.record(record, source).mean_yield - self._price[source]
        for other, confidences in drafts.items():
            known = self.record(record, other)
            rate = (known.num_accepted + 2) / (known.num_observed + 2)
            if sum(accumulate([min(confidence, rate) for confidence in confidences], mul)) >= hoped:
                return False
        return True

    def state(self) -> dict[str, Any]:
        """Returns what was learnt."""
        return {"mean_yield": dict(self.mean_yield), "compute_seconds": dict(self.compute_seconds)}

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up what was learnt: the older, the nearer to what is hoped."""
        yields, seconds = table(state, "mean_yield"), table(state, "compute_seconds")
        for source in SOURCES:
            kept = number(yields, source, least=-1000, most=1000)
            self.mean_yield[source] = decay * kept + (1 - decay) * _HOPED_YIELD
            self.compute_seconds[source] = number(seconds, source, least=0, most=1000)
