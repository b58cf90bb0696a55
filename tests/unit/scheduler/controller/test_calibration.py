"""What confidences are worth."""

import numpy as np
import pytest
from outrider_native.controller import Calibration, Drafts, Record

from services.scheduler.controller import Offer

NUM_DRAFTS, LENGTH = 16, 6


def sigmoid(score: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-score))


def drafts(rng: np.random.Generator, source: str = "suffix") -> tuple[list[Offer], np.ndarray, np.ndarray]:
    """Returns drafts, their raw confidences, and true chances, which depend on every term but the recent."""
    raw = rng.uniform(0.3, 0.97, (NUM_DRAFTS, LENGTH))
    matches = rng.integers(1, 16, NUM_DRAFTS)
    is_thinking = rng.random(NUM_DRAFTS) < 0.5
    offers = [
        Offer(
            source=source,
            confidences=tuple(row),
            match_length=int(match),
            phase="thinking" if thinking else "answer",
        )
        for row, match, thinking in zip(raw.tolist(), matches, is_thinking, strict=True)
    ]
    score = 0.6 * np.log(raw / (1 - raw)) - 0.8 - 0.4 * np.log(np.arange(1, LENGTH + 1))
    score += (0.5 * np.log2(matches + 1) / 3 + 0.7 * is_thinking)[:, None]
    return offers, raw, sigmoid(score)


def chances(calibration: Calibration, offers: list[Offer]) -> np.ndarray:
    return np.array(calibration.chances(Drafts([(Record(), offer, LENGTH) for offer in offers])))


def taught(num_steps: int, source: str = "suffix") -> Calibration:
    calibration, rng = Calibration(), np.random.default_rng(1)
    for _ in range(num_steps):
        offers, _, chance = drafts(rng, source)
        is_right = rng.random(chance.shape) < chance
        accepted = np.cumprod(is_right, axis=1).sum(axis=1)
        calibration.note(
            [(Record(), offer, LENGTH, int(count)) for offer, count in zip(offers, accepted, strict=True)]
        )
    return calibration


def log_loss(chance: np.ndarray, truth: np.ndarray) -> float:
    return float(-(truth * np.log(chance) + (1 - truth) * np.log(1 - chance)).mean())


def test_a_planted_fit_is_recovered_from_what_can_be_seen() -> None:
    offers, _, truth = drafts(np.random.default_rng(2))
    found = chances(taught(300), offers)
    assert np.abs(found - truth).mean() < 0.03
    assert np.abs(found - truth).max() < 0.12


def test_calibrated_chances_beat_raw_confidences() -> None:
    offers, raw, truth = drafts(np.random.default_rng(2))
    calibrated = log_loss(chances(taught(30), offers), truth)
    assert calibrated < log_loss(raw, truth) - 0.05
    assert calibrated < log_loss(chances(Calibration(), offers), truth)


def test_a_few_outcomes_draw_all_chances_to_the_mean_of_the_source() -> None:
    offers, _, truth = drafts(np.random.default_rng(2))
    found = chances(taught(3), offers)
    assert found.mean() == pytest.approx(truth.mean(), abs=0.08)


def test_sources_do_not_learn_from_each_other() -> None:
    calibration, (offers, *_) = taught(50, source="model"), drafts(np.random.default_rng(2))
    assert (chances(calibration, offers) == chances(Calibration(), offers)).all()
    assert calibration.of("suffix").trust == 0
    assert calibration.of("model").trust > 0.9


def test_trust_grows_with_outcomes() -> None:
    trusts = [calibration.of("suffix").trust for calibration in (Calibration(), taught(1), taught(20))]
    assert 0 == trusts[0] < trusts[1] < trusts[2] < 1


def test_confidences_that_make_no_sense_do_no_harm() -> None:
    offer = Offer(
        source="model", confidences=(float("nan"), float("inf"), -3.0, 1.0, 0.0), match_length=0, phase="text"
    )
    (found,) = Calibration().chances(Drafts([(Record(), offer, 5)]))
    assert all(0 < chance < 1 for chance in found)


def test_a_draft_ends_at_its_length() -> None:
    offers = [
        Offer(source="model", confidences=(0.9,) * count, match_length=0, phase="text") for count in (2, 5)
    ]
    several = Drafts([(Record(), offer, 3) for offer in offers])
    assert [len(found) for found in Calibration().chances(several)] == [2, 3]
    assert several.num_tokens == 5
