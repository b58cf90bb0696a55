"""What a confidence is worth: one logistic fit per source, learnt from which tokens were accepted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from services.scheduler.controller.facts import PHASES, SOURCES, Offer
from services.scheduler.controller.reading import number, numbers
from services.scheduler.controller.record import Record

# Terms: 1, log match length, three phases, the sequence's recent acceptance; logit, log position.
_NUM_DRAFT_TERMS = 6
_NUM_TERMS = 8
# A new source is taken at its word, but for a doubt; the terms are drawn to this, the constant hardly.
_PRIOR = np.array([-0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8, 0.0])
_PRIOR_PRECISION = np.array([0.5, 6.0, 3.0, 3.0, 3.0, 3.0, 6.0, 6.0])
_MAX_LOGIT = 4.5
# Outcomes remembered, as a number of tokens; and how many make a source half trusted.
_MEMORY = 3000.0
_HALF_TRUST = 16.0
_NUM_PER_FIT = 64
_MAX_NUM_PENDING = 16
_BRIER_SHARE = 0.005

_CODE = {source: code for code, source in enumerate(SOURCES)}
_PHASE_TERMS = {phase: tuple(float(phase == other) for other in PHASES[1:]) for phase in PHASES}


@dataclass(frozen=True, slots=True)
class Table:
    """Drafts laid out for arithmetic: a row each, a column per token."""

    source: np.ndarray  # [S] codes
    terms: np.ndarray  # [S, 6]
    logit: np.ndarray  # [S, L]
    length: np.ndarray  # [S]
    chance: np.ndarray  # [S, L] calibrated; 0 behind a draft's end


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
        self._precision = np.tile(np.diag(_PRIOR_PRECISION), (count, 1, 1))
        self._pending: list[tuple[Table, np.ndarray, np.ndarray, np.ndarray]] = []
        self._num_pending = 0

    @property
    def trust(self) -> np.ndarray:
        """How far each source's chances are believed: not at all before anything was verified."""
        return self.num_observed / (self.num_observed + _HALF_TRUST)

    def table(self, drafts: Sequence[tuple[Record, Offer]], lengths: Sequence[int]) -> Table:
        """Calibrates all drafts at once, each as far as its length."""
        num_columns = max(lengths)
        terms = np.array([_draft_terms(record, offer) for record, offer in drafts])
        source = np.array([_CODE[offer.source] for _, offer in drafts])
        length = np.array(lengths)
        is_there = np.arange(num_columns) < length[:, None]
        flat = np.fromiter(
            chain.from_iterable(
                offer.confidences[:count] for (_, offer), count in zip(drafts, lengths, strict=True)
            ),
            dtype=float,
            count=sum(lengths),
        )
        logit = np.zeros(is_there.shape)
        logit[is_there] = _logit(flat)
        weights = self.weights[source]
        score = np.einsum("st,st->s", terms, weights[:, :_NUM_DRAFT_TERMS])[:, None]
        score = score + weights[:, 6, None] * logit + weights[:, 7, None] * _log_position(num_columns)
        chance = _sigmoid(score) * is_there
        return Table(source, terms, logit, length, chance)

    def note(
        self, table: Table, slots: Sequence[int], num_verified: Sequence[int], num_accepted: Sequence[int]
    ) -> None:
        """Takes in outcomes; of a draft no more is known than up to its first wrong token."""
        outcome = table, np.array(slots), np.array(num_verified), np.array(num_accepted)
        self._pending.append(outcome)
        self._num_pending += int(np.minimum(outcome[3] + 1, outcome[2]).sum())
        is_new = bool((self.num_observed[table.source[outcome[1]]] < _NUM_PER_FIT).any())
        if is_new or self._num_pending >= _NUM_PER_FIT or len(self._pending) >= _MAX_NUM_PENDING:
            self._fit_all()

    def _fit_all(self) -> None:
        source, terms, chance, outcome = (
            np.concatenate(parts) for parts in zip(*(_rows(*item) for item in self._pending), strict=True)
        )
        self._pending, self._num_pending = [], 0
        for code in np.unique(source):
            mine = source == code
            self._fit(code, terms[mine], outcome[mine])
            error = (chance[mine] - outcome[mine]) ** 2
            share = 1 - (1 - _BRIER_SHARE) ** len(error)
            self.brier[code] += share * (error.mean() - self.brier[code])

    def _fit(self, code: int, terms: np.ndarray, outcome: np.ndarray) -> None:
        kept = (1 - 1 / _MEMORY) ** len(outcome)
        weights, precision = self.weights[code], self._precision[code]
        chance = _sigmoid(terms @ weights)
        curvature = np.maximum(chance * (1 - chance), 0.01)
        precision = kept * precision + terms.T @ (curvature[:, None] * terms)
        precision[np.diag_indices(_NUM_TERMS)] += (1 - kept) * _PRIOR_PRECISION
        slope = terms.T @ (outcome - chance) - (1 - kept) * _PRIOR_PRECISION * (weights - _PRIOR)
        self.weights[code] = np.clip(weights + np.linalg.solve(precision, slope), -8, 8)
        self._precision[code] = precision
        self.num_observed[code] = kept * self.num_observed[code] + len(outcome)

    def state(self) -> dict[str, Any]:
        """Returns what was learnt."""
        return {
            source: {
                "weights": self.weights[code].tolist(),
                "precision": self._precision[code].ravel().tolist(),
                "brier": float(self.brier[code]),
                "num_observed": float(self.num_observed[code]),
            }
            for source, code in _CODE.items()
        }

    def restore(self, state: Mapping[str, Any], decay: float) -> None:
        """Takes up what was learnt, at a part of its weight."""
        for source, code in _CODE.items():
            item = state.get(source)
            if not isinstance(item, Mapping):
                raise ValueError(f"{source} is missing")
            precision = np.array(numbers(item, "precision", _NUM_TERMS**2)).reshape(_NUM_TERMS, _NUM_TERMS)
            if not np.allclose(precision, precision.T) or np.linalg.eigvalsh(precision)[0] <= 0:
                raise ValueError(f"{source}: precision is not positive")
            self.weights[code] = numbers(item, "weights", _NUM_TERMS, least=-8, most=8)
            self._precision[code] = decay * precision + (1 - decay) * np.diag(_PRIOR_PRECISION)
            self.brier[code] = number(item, "brier", least=0, most=1)
            self.num_observed[code] = decay * number(item, "num_observed", least=0)


def _draft_terms(record: Record, offer: Offer) -> tuple[float, ...]:
    known = record.by_source.get(offer.source)
    recent = known.recent if known is not None else 0.0
    return (1.0, min(offer.match_length, 64).bit_length() / 3 - 1, *_PHASE_TERMS[offer.phase], recent)


def _rows(
    table: Table, slots: np.ndarray, num_verified: np.ndarray, num_accepted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns the observed tokens: source, terms, the chance as it was given, and whether accepted."""
    num_observed = np.minimum(num_accepted + 1, num_verified)
    draft = np.repeat(np.arange(len(slots)), num_observed)
    place = np.arange(len(draft)) - np.repeat(np.cumsum(num_observed) - num_observed, num_observed)
    slot = slots[draft]
    logit, log_position = table.logit[slot, place], _log_position(table.logit.shape[1])[place]
    terms = np.column_stack([table.terms[slot], logit, log_position])
    return table.source[slot], terms, table.chance[slot, place], place < num_accepted[draft]


def _logit(chance: np.ndarray) -> np.ndarray:
    """The logit; whatever a drafter sends, NaN too, becomes a number within bounds."""
    with np.errstate(all="ignore"):
        values = np.log(chance / (1 - chance))
    return np.nan_to_num(np.clip(values, -_MAX_LOGIT, _MAX_LOGIT), nan=-_MAX_LOGIT)


def _sigmoid(score: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-score))


def _log_position(count: int) -> np.ndarray:
    return np.log1p(np.arange(count))
