"""How many distinct experts are expected."""

import numpy as np
import pytest

from services.scheduler.controller import ModelFacts
from services.scheduler.controller.overlap import Overlap

MODEL = ModelFacts(num_experts=384, num_experts_per_token=8, num_moe_layers=20)
SHAPES = [(1, 2), (1, 4), (1, 8), (4, 12), (8, 8), (8, 40), (16, 48)]


def woken(rng: np.random.Generator, num_sequences: int, num_rows: int, kept: float) -> float:
    """Returns the mean over layers if each further token keeps so much of the one before it."""
    counts = []
    for _ in range(MODEL.num_moe_layers):
        awake: set[int] = set()
        for _ in range(num_sequences):
            experts = rng.choice(MODEL.num_experts, MODEL.num_experts_per_token, replace=False)
            awake.update(experts.tolist())
            for _ in range(num_rows // num_sequences - 1):
                fresh = rng.choice(MODEL.num_experts, MODEL.num_experts_per_token, replace=False)
                experts = np.where(rng.random(len(experts)) < kept, experts, fresh)
                awake.update(experts.tolist())
        counts.append(len(awake))
    return float(np.mean(counts))


def test_independent_tokens_are_expected_first() -> None:
    expected = Overlap(MODEL).expected(1, np.array([1, 4, 64]))
    assert expected == pytest.approx([8.0, 31.0, 284.2], abs=0.1)


@pytest.mark.parametrize("kept", [0.0, 0.4, 0.8])
def test_the_sharing_of_neighbouring_tokens_is_learnt(kept: float) -> None:
    overlap, rng = Overlap(MODEL), np.random.default_rng(1)
    for _ in range(5):
        for num_sequences, num_rows in SHAPES:
            overlap.note(num_sequences, num_rows, woken(rng, num_sequences, num_rows, kept))
    for num_sequences, num_rows in SHAPES:
        found = overlap.expected(num_sequences, np.array([num_rows]))[0]
        assert found == pytest.approx(woken(rng, num_sequences, num_rows, kept), rel=0.12)


def test_steps_that_wake_all_experts_teach_nothing() -> None:
    overlap = Overlap(MODEL)
    for _ in range(100):
        overlap.note(2000, 4000, 384.0)
    assert overlap.by_sequence == 1
    assert overlap.by_token == 1


def test_a_dense_model_has_no_experts() -> None:
    overlap = Overlap(ModelFacts())
    overlap.note(1, 4, 0.0)
    assert overlap.expected(1, np.array([1, 4])).tolist() == [0, 0]
