"""The native part of the controller: it agrees with the reference, and refuses what it cannot read."""

import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from outrider_native.controller import (
    NUM_TERMS,
    SOURCES,
    Asking,
    Calibration,
    Drafts,
    Probing,
    Ranked,
    Record,
)

from services.scheduler.controller import Offer
from tests.calibration_reference import PHASES, Fit, terms_of

LENGTH = 6
NOTHING: Any = ()


def some_offers(rng: np.random.Generator, count: int) -> list[Offer]:
    return [
        Offer(
            source=SOURCES[rng.integers(2)],
            confidences=rng.uniform(0, 1, rng.integers(1, LENGTH + 1)).tolist(),
            match_length=int(rng.integers(0, 100)),
            phase=PHASES[rng.integers(4)],
        )
        for _ in range(count)
    ]


def terms_in(offer: Offer, recent: float) -> np.ndarray:
    return terms_of(offer.confidences, offer.match_length, offer.phase, recent)


def test_fits_and_chances_agree_with_the_reference() -> None:
    rng, calibration = np.random.default_rng(3), Calibration()
    fits = {source: Fit() for source in SOURCES}
    for _ in range(40):
        offers = some_offers(rng, 12)
        lengths = [len(offer.confidences) for offer in offers]
        accepted = [int(rng.integers(0, length + 1)) for length in lengths]
        records = [Record() for _ in offers]
        calibration.note(list(zip(records, offers, lengths, accepted, strict=True)), at_once=True)
        for source, fit in fits.items():
            seen = [
                (terms_in(offer, 0.0)[: count + 1], np.arange(min(count + 1, length)) < count)
                for offer, length, count in zip(offers, lengths, accepted, strict=True)
                if offer.source == source
            ]
            if seen:
                terms, is_right = zip(*seen, strict=True)
                fit.learn(np.concatenate(terms), np.concatenate(is_right))
    for source, fit in fits.items():
        assert calibration.of(source).weights == pytest.approx(fit.weights, rel=1e-9, abs=1e-12)
        assert np.array(calibration.of(source).precision) == pytest.approx(fit.precision, rel=1e-9, abs=1e-9)
    for offer in some_offers(rng, 20):
        (found,) = calibration.chances(Drafts([(Record(), offer, LENGTH)]))
        assert found == pytest.approx(fits[offer.source].chances(terms_in(offer, 0.0)))


def test_what_a_sequence_did_of_late_counts() -> None:
    asking, calibration, record = Asking(shares_cores=False), Calibration(), Record()
    (offer, *_) = some_offers(np.random.default_rng(3), 1)
    asking.note_outcomes([(record, offer, 4, 4)], 0.0)
    calibration.note([(record, offer, 1, 1)] * 50, at_once=True)
    fit = Fit()
    fit.learn(np.repeat(terms_in(offer, np.log(5))[:1], 50, axis=0), np.ones(50))
    assert calibration.of(offer.source).weights == pytest.approx(fit.weights)
    (found,) = calibration.chances(Drafts([(record, offer, LENGTH)]))
    assert found == pytest.approx(fit.chances(terms_in(offer, np.log(5))))


@pytest.mark.parametrize("kind", [tuple, list])
def test_drafts_hold_on_to_their_records_whatever_becomes_of_what_they_were_read_from(kind: type) -> None:
    (offer, *_) = some_offers(np.random.default_rng(3), 1)
    asking, calibration = Asking(shares_cores=False), Calibration()
    several: Any = [kind((Record(), offer, LENGTH)) for _ in range(100)]
    asking.note_outcomes([(fields[0], offer, 4, 4) for fields in several], 0.0)
    calibration.note([(fields[0], offer, 1, 1) for fields in several], at_once=True)
    drafts = Drafts(several)
    before = calibration.chances(drafts)
    while several:
        if kind is list:
            several[-1].clear()
        several.pop()
    gc.collect()
    others = [Record() for _ in range(200)]
    assert calibration.chances(drafts) == before
    assert len(others) == 200


def broken(**changes: Any) -> Callable[[], object]:
    fields: dict[str, Any] = {"source": "suffix", "confidences": (0.5,), "match_length": 1, "phase": "text"}
    return lambda: Drafts([(Record(), Offer(**fields | changes), 4)])


SUFFIX_OFFER = Offer(source="suffix", confidences=(0.5,) * 4, match_length=1, phase="text")


def restored(**changes: float) -> Callable[[], object]:
    fields = {"mean_yield": 1.0, "compute_seconds": 1e-4, "num_settled": 9.0, "decay": 1.0} | changes
    return lambda: Asking(shares_cores=True).restore("suffix", **fields)


def restored_fit(**changes: Any) -> Callable[[], object]:
    fit = Calibration().of("suffix")
    fields: dict[str, Any] = {"weights": fit.weights, "precision": fit.precision, "brier": 0.2}
    fields |= {"num_observed": 9.0, "decay": 1.0} | changes
    return lambda: fit.restore(**fields)


def answered(**changes: float) -> Callable[[], object]:
    fields = {"num_drafts": 1.0, "compute_seconds": 1e-4} | changes
    return lambda: Asking(shares_cores=True).note_answer("suffix", **fields)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (restored(mean_yield=math.nan), "mean_yield"),
        (restored(compute_seconds=math.inf), "compute_seconds"),
        (restored(compute_seconds=-1), "compute_seconds"),
        (restored(num_settled=-5), "num_settled"),
        (restored(decay=1.5), "decay"),
        (restored_fit(weights=[math.nan] * NUM_TERMS), "weights"),
        (restored_fit(num_observed=-1), "num_observed"),
        (restored_fit(decay=-0.5), "decay"),
        (answered(num_drafts=-1), "num_drafts"),
        (answered(compute_seconds=math.nan), "compute_seconds"),
        (lambda: Asking(shares_cores=True).earn(math.nan), "step_seconds"),
        (lambda: Asking(shares_cores=True).set_token_seconds(math.nan), "token_seconds"),
        (lambda: Asking(shares_cores=True).note_overhead(math.inf, 1), "seconds"),
        (
            lambda: Asking(shares_cores=True).note_outcomes([(Record(), SUFFIX_OFFER, 4, 4)], math.nan),
            "price_per_draft_token",
        ),
        (lambda: Asking(shares_cores=True).note_outcomes([(Record(), SUFFIX_OFFER, 2, 3)], 0.0), "accepted"),
        (lambda: Calibration().note([(Record(), SUFFIX_OFFER, 2, 3)]), "accepted"),
        (lambda: Probing().earn(-1), "seconds"),
        (lambda: Probing().settle(math.nan, 1), "seconds"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(read: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        read()


def test_more_accepted_than_verified_leaves_no_trace() -> None:
    asking, calibration, record = Asking(shares_cores=False), Calibration(), Record()
    with pytest.raises(ValueError, match="accepted"):
        asking.note_outcomes([(record, SUFFIX_OFFER, 1, 4)], 0.0)
    assert np.isfinite(calibration.chances(Drafts([(record, SUFFIX_OFFER, 4)]))).all()
    assert asking.mean_of("suffix").num_settled == 0


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (broken(source="magic"), ValueError),
        (broken(source=3), ValueError),
        (broken(phase="asleep"), ValueError),
        (broken(confidences=("high",)), TypeError),
        (broken(confidences=0.5), TypeError),
        (broken(match_length=1.5), TypeError),
        (lambda: Drafts([(Record(), *NOTHING)]), ValueError),
        (lambda: Drafts([(NOTHING, NOTHING, 4)]), TypeError),
        (lambda: Drafts([(Record(), NOTHING, 4)]), AttributeError),
        (lambda: Asking(shares_cores=True).due([NOTHING], ["suffix"], 0), TypeError),
        (lambda: Asking(shares_cores=True).due([], ["magic"], 0), ValueError),
        (lambda: Asking(shares_cores=True).note_allocated(Drafts([]), [1], Calibration()), ValueError),
    ],
)
def test_what_cannot_be_read_is_refused(read: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        read()


def test_nothing_at_all_is_ranked_without_drafts() -> None:
    ranked = Ranked(Drafts([]), Calibration(), 16)
    assert len(ranked) == 0
    assert ranked.total.tolist() == [0.0]
    assert ranked.counts(3) == []
