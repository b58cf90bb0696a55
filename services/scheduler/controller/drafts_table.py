"""The drafts of a step laid out for arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from services.scheduler.controller.facts import PHASES, SOURCES, Offer

# Terms: 1, log match length, three phases, the sequence's recent acceptance; logit, log position.
NUM_TERMS = 8
MATCH, PHASE, RECENT, LOGIT, POSITION = 1, 2, 5, 6, 7
# A source and a phase in one number.
NUM_KEYS = len(SOURCES) * len(PHASES)
_KEY = {
    (source, phase): code * len(PHASES) + place
    for code, source in enumerate(SOURCES)
    for place, phase in enumerate(PHASES)
}
_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.01, 0.99
_LONGEST_MATCH = 64
_PLACES = np.arange(64)
_LOG_POSITION = np.log(_PLACES + 1)
_MATCH_TERM = np.log2(np.arange(_LONGEST_MATCH + 1) + 1) / 3 - 1


@dataclass(frozen=True, slots=True)
class DraftsTable:
    """A row per draft, a column per token."""

    key: np.ndarray  # [S]
    match: np.ndarray  # [S]
    recent: np.ndarray  # [S]
    logit: np.ndarray  # [S, L]
    is_there: np.ndarray  # [S, L] False behind a draft's end

    @property
    def source(self) -> np.ndarray:
        """The code of each draft's source."""
        return self.key // len(PHASES)

    def rows(self, draft: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Returns the terms of tokens, each named by its draft and its place in it: [N, terms]."""
        terms = np.zeros((len(draft), NUM_TERMS))
        terms[:, 0] = 1
        terms[:, MATCH] = self.match[draft]
        phase = self.key[draft] % len(PHASES)
        terms[:, PHASE:RECENT] = phase[:, None] == np.arange(1, len(PHASES))
        terms[:, RECENT] = self.recent[draft]
        terms[:, LOGIT] = self.logit[draft, place]
        terms[:, POSITION] = log_position(self.logit.shape[1])[place]
        return terms


def lay_out(recent: Sequence[float], offers: Sequence[Offer], lengths: Sequence[int]) -> DraftsTable:
    """Lays out drafts, each as far as its length, beside the recent acceptance of each one's sequence.

    Confidences may be anything, NaN too: they are bounded.
    """
    key = np.array([_KEY[offer.source, offer.phase] for offer in offers])
    match = _MATCH_TERM[np.minimum([offer.match_length for offer in offers], _LONGEST_MATCH)]
    longest = max(lengths)
    places = _PLACES[:longest] if longest <= len(_PLACES) else np.arange(longest)
    is_there = places < np.array(lengths)[:, None]
    cut = [
        offer.confidences if len(offer.confidences) == length else offer.confidences[:length]
        for offer, length in zip(offers, lengths, strict=True)
    ]
    flat = np.fromiter(chain.from_iterable(cut), dtype=float, count=sum(lengths))
    flat = np.fmin(np.fmax(flat, _LEAST_CONFIDENCE), _MOST_CONFIDENCE)
    logit = np.zeros(is_there.shape)
    logit[is_there] = np.log(flat / (1 - flat))
    return DraftsTable(key, match, np.array(recent), logit, is_there)


def log_position(count: int) -> np.ndarray:
    """Returns the logarithm of each place in a draft, counted from 1."""
    return _LOG_POSITION[:count] if count <= len(_LOG_POSITION) else np.log(np.arange(1, count + 1))
