"""How much of prompts a step takes."""

import numpy as np

from services.scheduler.controller import Controller, ModelFacts, Settings, StepShape


def seconds_of(num_rows: int) -> float:
    return 0.02 + 0.0005 * num_rows


def taught(target: float | None) -> Controller:
    settings = Settings(max_num_draft_tokens=8, inter_token_target_seconds=target)
    controller, rng = Controller(ModelFacts(), settings), np.random.default_rng(1)
    for _ in range(40):
        for num_rows in (8, 40, 72, 136, 264, 520):
            controller.note_step(shape(num_rows), seconds_of(num_rows) * rng.lognormal(0, 0.03), [])
    return controller


def shape(num_rows: int, num_sequences: int = 8) -> StepShape:
    return StepShape(num_rows=num_rows, num_sequences=num_sequences, num_context_tokens=800)


def test_the_step_keeps_the_target_and_uses_most_of_it() -> None:
    target = 0.12
    count = taught(target).prefill_rows(shape(8), 512)
    assert 0.8 * target <= seconds_of(8 + count) <= 1.1 * target


def test_prompts_make_progress_where_the_target_cannot_be_kept() -> None:
    assert taught(0.001).prefill_rows(shape(8), 512) == 16
    assert taught(0.001).prefill_rows(shape(8), 5) == 5


def test_nothing_is_held_back_without_a_target_or_without_running_streams() -> None:
    assert taught(None).prefill_rows(shape(8), 512) == 512
    assert taught(0.03).prefill_rows(shape(0, num_sequences=0), 512) == 512


def test_no_more_is_taken_than_there_is_room_for() -> None:
    assert taught(10.0).prefill_rows(shape(8), 64) == 64
    assert taught(0.1).prefill_rows(shape(8), 0) == 0
