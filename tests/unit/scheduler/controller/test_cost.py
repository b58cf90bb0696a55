"""What a step is expected to take."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.controller import ModelFacts, StepShape
from services.scheduler.controller.cost import CostModel

DENSE = ModelFacts()
SHAPES = [(1, 1), (1, 4), (1, 9), (4, 4), (4, 12), (16, 16), (16, 48), (64, 64), (64, 192), (64, 512)]


def shape(num_sequences: int, num_rows: int, context: int = 200) -> StepShape:
    return StepShape(
        num_rows=num_rows, num_sequences=num_sequences, num_context_tokens=context * num_sequences
    )


def planted(step: StepShape) -> float:
    return 0.02 + 4e-4 * step.num_rows + 3e-4 * step.num_sequences + 1e-7 * step.num_context_tokens


def expected(model: CostModel, step: StepShape) -> float:
    return float(model.predict(step, 0)[0][0])


def taught(num_rounds: int = 60, noise: float = 0.05, stalls: float = 0.05) -> CostModel:
    model, rng = CostModel(DENSE), np.random.default_rng(1)
    for _ in range(num_rounds):
        for num_sequences, num_rows in SHAPES:
            step = shape(num_sequences, num_rows, int(rng.integers(100, 400)))
            seconds = planted(step) * rng.lognormal(0, noise) * (10 if rng.random() < stalls else 1)
            model.note(step, seconds, [])
    return model


@pytest.mark.parametrize("step", [shape(1, 2), shape(1, 6), shape(8, 24), shape(32, 64), shape(64, 300)])
def test_a_planted_law_is_recovered_though_steps_stall(step: StepShape) -> None:
    assert expected(taught(), step) == pytest.approx(planted(step), rel=0.08)


def test_one_stalled_step_moves_nothing() -> None:
    model, step = taught(stalls=0.0), shape(16, 48)
    before = expected(model, step)
    model.note(step, 10 * planted(step), [])
    model.note(step, planted(step), [])
    assert expected(model, step) == pytest.approx(before, rel=0.02)


def test_a_first_step_that_stalled_is_forgotten() -> None:
    model, step = CostModel(DENSE), shape(4, 4)
    model.note(step, 10 * planted(step), [])
    for _ in range(10):
        model.note(step, planted(step), [])
    assert expected(model, step) == pytest.approx(planted(step), rel=0.02)


def test_prompts_do_not_spoil_what_is_known_of_decoding() -> None:
    model = taught(stalls=0.0)
    steps = [shape(1, 1), shape(1, 4), shape(16, 16), shape(16, 48)]
    before = [expected(model, step) for step in steps]
    for _ in range(300):
        model.note(StepShape(num_rows=700, num_sequences=3, num_context_tokens=3000), 0.9, [])
    assert [expected(model, step) for step in steps] == pytest.approx(before, rel=0.05)


def test_the_steps_of_tiles_are_learnt() -> None:
    model, rng = CostModel(DENSE), np.random.default_rng(1)

    def tiled(num_rows: int) -> float:
        return 0.02 + 0.02 * -(-num_rows // 16)

    for _ in range(300):
        num_rows = int(rng.integers(4, 49))
        model.note(shape(4, num_rows), tiled(num_rows) * rng.lognormal(0, 0.05), [])
    seconds, _ = model.predict(shape(4, 4), 44)
    assert seconds[16 - 4] == pytest.approx(tiled(16), rel=0.1)
    assert seconds[20 - 4] == pytest.approx(tiled(20), rel=0.1)
    assert seconds[40 - 4] == pytest.approx(tiled(40), rel=0.1)


def test_what_was_never_seen_is_doubted_more() -> None:
    model = CostModel(DENSE)
    for _ in range(50):
        model.note(shape(64, 64), 0.08, [])
    _, doubt = model.predict(shape(64, 64), 512)
    assert doubt[0] < 0.05
    assert doubt[512] > 0.2


def test_a_machine_that_becomes_slower_is_followed() -> None:
    model, step = taught(stalls=0.0), shape(16, 16)
    for _ in range(150):
        model.note(step, 2 * planted(step), [])
    assert expected(model, step) == pytest.approx(2 * planted(step), rel=0.15)


steps = st.tuples(st.integers(1, 64), st.integers(0, 500), st.integers(0, 3000), st.floats(1e-4, 10))


@settings(max_examples=50)
@given(st.lists(steps, min_size=1, max_size=30))
def test_more_rows_never_take_less_time(steps: list[tuple[int, int, int, float]]) -> None:
    model = CostModel(ModelFacts(num_experts=32, num_experts_per_token=4, num_moe_layers=4))
    for num_sequences, num_further, context, seconds in steps:
        model.note(shape(num_sequences, num_sequences + num_further, context), seconds, [8, 9])
    seconds, doubt = model.predict(shape(4, 4), 600)
    assert np.isfinite(seconds).all()
    assert (np.diff(seconds) >= 0).all()
    assert (doubt > 0).all()
