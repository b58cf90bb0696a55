"""Whom the controller asks, and what it verifies of what it is offered."""

import numpy as np
import pytest

from services.scheduler.controller import Controller, ModelFacts, Offer, Record, Settings, StepShape

SUFFIX = frozenset({"suffix"})
SUFFIX_ASKED = ("suffix",)
LENGTH = 4


def new(*, shares_cores: bool = True) -> Controller:
    settings = Settings(max_num_draft_tokens=8, drafter_shares_cores=shares_cores)
    return Controller(ModelFacts(), settings)


class Run:
    """Sequences that generate under a controller; each question costs, and is answered before the step."""

    def __init__(self, num_sequences: int, *, shares_cores: bool = True) -> None:
        self.controller = new(shares_cores=shares_cores)
        self.records = [self.controller.new_record() for _ in range(num_sequences)]
        self.rng = np.random.default_rng(1)
        self.num_questions = self.num_draft_tokens = self.num_tokens = self.num_steps = 0

    def step(self, chance: float, source: str = "suffix", confidence: float = 0.7) -> None:
        """Takes a step in which each drafted token is right with this chance."""
        controller, count = self.controller, len(self.records)
        named = controller.sources(self.records, frozenset({source}))
        asked = [record for record, sources in zip(self.records, named, strict=True) if sources]
        drafts: list[tuple[Record, Offer, int]] = []
        for record in asked:
            offer = Offer(source=source, confidences=(confidence,) * LENGTH, match_length=3, phase="text")
            drafts.append((record, offer, LENGTH))
        controller.note_questions([(record, (source,)) for record in asked])
        controller.note_answer(source, num_drafts=max(1, len(asked)), compute_seconds=1e-4 * len(asked))
        shape = StepShape(num_rows=count, num_sequences=count, num_context_tokens=100 * count)
        lengths = controller.allocate(shape, drafts, 1000) if drafts else []
        num_accepted = 0
        for (record, offer, _), length in zip(drafts, lengths, strict=True):
            if length:
                right = int(np.cumprod(self.rng.random(length) < chance).sum())
                controller.note_draft(record, offer, length, right)
                num_accepted += right
        num_rows = count + sum(lengths)
        shape = StepShape(num_rows=num_rows, num_sequences=count, num_context_tokens=100 * count)
        controller.note_step(shape, (0.02 + 0.001 * num_rows) * self.rng.lognormal(0, 0.1), [])
        self.num_questions += len(asked)
        self.num_draft_tokens += sum(lengths)
        self.num_tokens += count + num_accepted
        self.num_steps += 1

    def steps(self, count: int, chance: float) -> "Run":
        """Takes so many steps; returns itself with counts of these alone."""
        self.num_questions = self.num_draft_tokens = self.num_tokens = self.num_steps = 0
        for _ in range(count):
            self.step(chance)
        return self


@pytest.mark.parametrize("num_sequences", [1, 64])
def test_a_source_that_is_always_wrong_is_hardly_asked_and_hardly_verified(num_sequences: int) -> None:
    run = Run(num_sequences).steps(400, chance=0.0).steps(400, chance=0.0)
    assert run.num_questions <= 0.05 * num_sequences * run.num_steps
    assert run.num_draft_tokens <= 0.03 * num_sequences * run.num_steps


@pytest.mark.parametrize("num_sequences", [1, 64])
def test_a_source_that_is_right_is_asked_always_and_verified(num_sequences: int) -> None:
    run = Run(num_sequences).steps(100, chance=0.95).steps(100, chance=0.95)
    assert run.num_questions >= 0.75 * num_sequences * run.num_steps
    assert run.num_tokens >= 1.5 * num_sequences * run.num_steps


@pytest.mark.parametrize("num_sequences", [4, 16])
def test_text_that_becomes_predictable_again_is_noticed(num_sequences: int) -> None:
    run = Run(num_sequences).steps(400, chance=0.0)
    run.steps(600, chance=0.95)
    assert run.steps(100, chance=0.95).num_tokens >= 1.5 * num_sequences * 100


def test_text_that_becomes_unpredictable_is_left_soon() -> None:
    run = Run(4).steps(300, chance=0.95)
    run.steps(100, chance=0.0)
    assert run.steps(300, chance=0.0).num_draft_tokens <= 0.05 * 4 * 300


def test_a_new_phase_is_asked_about_at_once() -> None:
    run = Run(1).steps(400, chance=0.0)
    (record,) = run.records
    steps_asked = []
    for _ in range(8):
        steps_asked.append(run.controller.sources([record], SUFFIX) == [SUFFIX_ASKED])
        run.step(0.0)
    assert sum(steps_asked) <= 2
    run.controller.note_phase(record, "answer")
    assert run.controller.sources([record], SUFFIX) == [SUFFIX_ASKED]


def test_questions_that_nothing_comes_of_are_asked_more_seldom() -> None:
    controller, num_asked = new(), 0
    record = controller.new_record()
    shape = StepShape(num_rows=1, num_sequences=1, num_context_tokens=10)
    for _ in range(500):
        (sources,) = controller.sources([record], SUFFIX)
        num_asked += len(sources)
        controller.note_questions([(record, sources)])
        controller.note_step(shape, 0.02, [])
    assert num_asked < 100


def test_a_slow_source_on_the_same_cores_must_win_more() -> None:
    def share_asked(*, shares_cores: bool) -> float:
        run = Run(1, shares_cores=shares_cores)
        for _ in range(300):
            run.controller.note_answer("suffix", num_drafts=1, compute_seconds=0.2)
            run.step(0.8)
        run.num_questions = 0
        for _ in range(100):
            run.controller.note_answer("suffix", num_drafts=1, compute_seconds=0.2)
            run.step(0.8)
        return run.num_questions / 100

    assert share_asked(shares_cores=False) > 0.9
    assert share_asked(shares_cores=True) < 0.1


def test_trying_a_dear_source_costs_next_to_nothing_however_many_sequences_come_and_go() -> None:
    controller, available = new(), frozenset({"head"})
    step_seconds, question_seconds, num_sequences = 0.08, 0.004, 64
    shape = StepShape(num_rows=num_sequences, num_sequences=num_sequences, num_context_tokens=6400)
    records, num_asked = [controller.new_record() for _ in range(num_sequences)], 0
    for step in range(600):
        if step % 40 == 0:
            records = [controller.new_record() for _ in range(num_sequences)]
        named = controller.sources(records, available)
        asked = [record for record, sources in zip(records, named, strict=True) if sources]
        controller.note_questions([(record, ("head",)) for record in asked])
        if asked:
            controller.note_answer(
                "head", num_drafts=len(asked), compute_seconds=question_seconds * len(asked)
            )
        num_asked += len(asked)
        controller.note_step(shape, step_seconds, [])
    # One part in a hundred, and eight steps' worth at the start.
    assert 0 < num_asked * question_seconds <= (0.01 * 600 + 8) * step_seconds


def test_the_better_source_is_picked_and_the_other_one_checked_now_and_then() -> None:
    controller = new()
    record, rng = controller.new_record(), np.random.default_rng(1)
    shape = StepShape(num_rows=1, num_sequences=1, num_context_tokens=10)
    offers = [
        Offer(source=source, confidences=(0.8,) * LENGTH, match_length=3, phase="text")
        for source in ("suffix", "model")
    ]
    chosen = []
    for _ in range(600):
        (best,) = controller.best([(record, offers)])
        (length,) = controller.allocate(shape, [(record, offers[best], LENGTH)], 100)
        if length:
            chance = (0.4, 0.9)[best]
            right = int(np.cumprod(rng.random(length) < chance).sum())
            controller.note_draft(record, offers[best], length, right)
            chosen.append(best)
        rows = StepShape(num_rows=1 + length, num_sequences=1, num_context_tokens=10)
        controller.note_step(rows, 0.02 + 0.001 * length, [])
    assert np.mean(chosen[300:]) > 0.9
    assert 0 in chosen[300:]
