"""What a confidence is worth: one logistic fit per source, learnt from which tokens were accepted."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from services.scheduler.controller.drafts_table import (
    LOGIT,
    MATCH,
    NUM_TERMS,
    PHASE,
    POSITION,
    RECENT,
    DraftsTable,
    lay_out,
    log_position,
)
from services.scheduler.controller.facts import PHASES, SOURCES, Offer
from services.scheduler.controller.reading import number, numbers, table

# A new source is taken at its word, but for a doubt; the terms are drawn to this, the constant hardly.
_PRIOR = np.array([-0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.0])
_PRIOR_PRECISION = np.array([0.5, 6.0, 3.0, 3.0, 3.0, 3.0, 6.0, 6.0])
_MAX_WEIGHT = 8.0
# Outcomes remembered, as a number of tokens; and how many make a source half trusted.
_MEMORY = 3000.0
_HALF_TRUST = 16.0
# While a source has shown fewer tokens than this its outcomes are learnt from at once, later when there are
# so many drafts or the last time was so many steps ago.
_NUM_NEW = 256
_NUM_PER_FIT = 256
_MAX_NUM_STEPS = 16
_BRIER_SHARE = 0.005
# What was learnt before a restart counts for no more tokens than this: the text may have become another.
_MAX_NUM_RESTORED = 300.0

DraftOutcome = tuple[float, Offer, int, int]
"""The recent acceptance of its sequence, the draft, how many tokens were verified and accepted."""


class Calibration:
    """Turns confidences into chances that agree with what is accepted.

    The fits are recursive Newton steps on the log loss, with forgetting, drawn to the prior: the less a
    source has shown of a term, the more its chances are those of its mean.
    """

    def __init__(self) -> None:
        count = len(SOURCES)
        self.weights = np.tile(_PRIOR, (count, 1))
        self.brier = np.full(count, 0.25)
        self.num_observed = np.zeros(count)
        # How far each source's chances are believed: not at all before anything was verified.
        self.trust = np.zeros(count)
        self._precision = np.tile(np.diag(_PRIOR_PRECISION), (count, 1, 1))
        self._pending: list[DraftOutcome] = []
        self._num_steps_pending = 0
        self._by_key = self._spread()

    def is_new(self, offers: Iterable[Offer]) -> bool:
        """Returns whether a source of these drafts is little known."""
        num_observed = self.num_observed
        return any(num_observed[SOURCES.index(source)] < _NUM_NEW for source in {o.source for o in offers})

    def chances(self, drafts: DraftsTable) -> np.ndarray:
        """Returns the chance of each token if those before it are right: [S, L]; 0 behind a draft's end."""
        constant, match, recent, logit, position = self._by_key[:, drafts.key]
        score = logit[:, None] * drafts.logit
        score += (constant + match * drafts.match + recent * drafts.recent)[:, None]
        score += position[:, None] * log_position(score.shape[1])
        return drafts.is_there * (1 / (1 + np.exp(-score)))

    def note(self, outcomes: Sequence[DraftOutcome], *, at_once: bool = False) -> None:
        """Takes in the drafts verified in a step; learns `at_once` or when it is worth the work."""
        self._pending += outcomes
        self._num_steps_pending += 1
        is_many = len(self._pending) >= _NUM_PER_FIT or self._num_steps_pending >= _MAX_NUM_STEPS
        if at_once or is_many or self.is_new(offer for _, offer, _, _ in outcomes):
            self._fit_all()

    def _fit_all(self) -> None:
        outcomes, self._pending, self._num_steps_pending = self._pending, [], 0
        recent, offers, num_verified, num_accepted = zip(*outcomes, strict=True)
        drafts = lay_out(recent, offers, num_verified)
        # Of a draft no more is known than up to its first wrong token.
        num_observed = np.minimum(np.add(num_accepted, 1), num_verified)
        draft = np.repeat(np.arange(len(offers)), num_observed)
        place = np.arange(len(draft)) - np.repeat(np.cumsum(num_observed) - num_observed, num_observed)
        terms, outcome, source = (
            drafts.rows(draft, place),
            place < np.array(num_accepted)[draft],
            drafts.source,
        )
        for code in np.flatnonzero(np.bincount(source)).tolist():
            mine = source[draft] == code
            self._fit(code, terms[mine], outcome[mine])
        self._settle()

    def _fit(self, code: int, terms: np.ndarray, outcome: np.ndarray) -> None:
        count = len(outcome)
        kept = (1 - 1 / _MEMORY) ** count
        weights = self.weights[code]
        chance = 1 / (1 + np.exp(-terms @ weights))
        error = outcome - chance
        self.brier[code] += (1 - (1 - _BRIER_SHARE) ** count) * (error @ error / count - self.brier[code])
        curvature = np.maximum(chance * (1 - chance), 0.01)
        precision = kept * self._precision[code] + terms.T @ (curvature[:, None] * terms)
        precision[np.diag_indices(NUM_TERMS)] += (1 - kept) * _PRIOR_PRECISION
        slope = terms.T @ error - (1 - kept) * _PRIOR_PRECISION * (weights - _PRIOR)
        weights = weights + np.linalg.solve(precision, slope)
        self.weights[code] = np.clip(weights, -_MAX_WEIGHT, _MAX_WEIGHT)
        self._precision[code] = precision
        self.num_observed[code] = kept * self.num_observed[code] + count

    def _settle(self) -> None:
        self.trust = self.num_observed / (self.num_observed + _HALF_TRUST)
        self._by_key = self._spread()

    def _spread(self) -> np.ndarray:
        """Returns constant and prices of the terms for each source and phase: [5, keys]."""
        by_phase = np.zeros((len(SOURCES), len(PHASES)))
        by_phase[:, 1:] = self.weights[:, PHASE:RECENT]
        constant = (self.weights[:, :1] + by_phase).ravel()
        others = self.weights[:, [MATCH, RECENT, LOGIT, POSITION]].T
        return np.vstack([constant, np.repeat(others, len(PHASES), axis=1)])

    def state(self) -> dict[str, Any]:
        """Returns what was learnt."""
        return {
            source: {
                "weights": self.weights[code].tolist(),
                "precision": self._precision[code].ravel().tolist(),
                "brier": float(self.brier[code]),
                "num_observed": float(self.num_observed[code]),
            }
            for code, source in enumerate(SOURCES)
        }

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up what was learnt, at a part of its weight."""
        for code, source in enumerate(SOURCES):
            item = table(state, source)
            precision = np.array(numbers(item, "precision", NUM_TERMS**2)).reshape(NUM_TERMS, NUM_TERMS)
            if not np.allclose(precision, precision.T) or np.linalg.eigvalsh(precision)[0] <= 0:
                raise ValueError(f"precision of {source} is not positive")
            weights = numbers(item, "weights", NUM_TERMS, least=-_MAX_WEIGHT, most=_MAX_WEIGHT)
            self.weights[code] = weights
            num_observed = number(item, "num_observed", least=0)
            kept = decay * min(1.0, _MAX_NUM_RESTORED / max(num_observed, 1))
            self._precision[code] = kept * precision + (1 - kept) * np.diag(_PRIOR_PRECISION)
            self.brier[code] = number(item, "brier", least=0, most=1)
            self.num_observed[code] = kept * num_observed
        self._settle()
