"""A worker on the kernels for GPUs, interpreted: the same tokens as on torch's, through the same code."""

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.kernels.triton.launch import Launch
from outrider.rpc.errors import Internal
from services.worker import step
from services.worker.messages import Batch
from services.worker.step import Stepper
from tests.groups import BLOCK_SIZE, Scheduled, load_stepper, prompt_of, scheduled
from tests.unit.model.random_models import interpreted_config, write_checkpoint
from tests.unit.worker.runs import Run

SETTINGS = {"max_num_batched_tokens": 6, "graph_num_sequences": (1, 2), "graph_num_rows": (1, 2, 4, 6)}
NUM_OUTPUT_TOKENS = 4
RUN, CHOOSE = Launch.run, step.choose
KINDS = [{"temperature": 0}, {"temperature": 0.8, "seed": 3, "top_p": 0.95}]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), interpreted_config())


def kernel_of(launch: Launch) -> tuple[object, ...]:
    return launch.kernel.fn.__name__, *sorted(launch.constants.items())


@pytest.fixture(scope="module")
def start(small_model) -> tuple[Stepper, set[tuple[object, ...]], list[tuple[int, bool]]]:
    """A worker, the kernels that its start launched, and the rows that it chose tokens of, edited or not."""
    kernels, chosen = set(), []

    def run(launch: Launch) -> None:
        kernels.add(kernel_of(launch))
        RUN(launch)

    def choose(logits, chains, backend):
        chosen.append((len(logits), not any(chain.state.is_plain for chain in chains)))
        return CHOOSE(logits, chains, backend)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Launch, "run", run)
        patched.setattr(step, "choose", choose)
        return load_stepper(small_model, backend="triton", **SETTINGS), kernels, chosen


@pytest.fixture(scope="module")
def steppers(small_model, start) -> dict[str, Stepper]:
    return {"torch": load_stepper(small_model, backend="torch", **SETTINGS), "triton": start[0]}


def pair() -> list[Scheduled]:
    return [scheduled(index, prompt_of(index, 3 + 2 * index), **kind) for index, kind in enumerate(KINDS)]


def outputs(stepper: Stepper, guesses: list[list[int]] | None = None) -> list[list[int]]:
    """Both sequences together, prompts in chunks, with drafts of which some are right."""
    generator, together = np.random.default_rng(1), pair()

    def draft(sequence: Scheduled) -> list[int]:
        if guesses is None:
            return []
        known = len(sequence.output)
        return guesses[sequence.id][known : known + 2] if generator.random() < 0.6 else [1, 2]

    found = Run(stepper).until(together, NUM_OUTPUT_TOKENS, max_rows=2, draft=draft)
    stepper.forget_all()
    return [tokens[:NUM_OUTPUT_TOKENS] for tokens in found]


def test_its_tokens_are_torch_s_with_chunks_and_drafts_right_and_wrong(steppers):
    expected = outputs(steppers["torch"])
    assert outputs(steppers["triton"], expected) == expected


def test_it_counts_the_experts_of_its_rows_and_not_of_padding(steppers):
    counts = []
    for stepper in steppers.values():
        # Three rows, in a bucket of four.
        steps = [sequence.step(max_rows=2 - index) for index, sequence in enumerate(pair())]
        counts.append(stepper.run(Batch(step_id=1, steps=steps)).num_distinct_experts)
        stepper.forget_all()
    assert counts[0] == counts[1]


def test_a_sequence_whose_logits_are_not_finite_fails_alone(steppers):
    stepper = steppers["triton"]
    run, (good, bad) = Run(stepper), pair()
    run.step([bad], max_rows=4)
    slot = stepper._runner.kv_cache.layers[0][bad.blocks[0] * BLOCK_SIZE]
    before = slot.clone()
    slot.fill_(torch.nan)
    outcomes = run.step([good, bad]).outcomes
    slot.copy_(before)
    stepper.forget_all()
    assert isinstance(outcomes[bad.id], Internal)
    assert good.output == outputs(steppers["torch"])[good.id][:1]


def test_its_numerics_are_its_own(steppers):
    assert len({stepper.facts.numerics_id for stepper in steppers.values()}) == 2


@pytest.mark.parametrize("edits", [{}, {"repetition_penalty": 1.2, "logit_bias": {1: 2.0}}])
@pytest.mark.parametrize("kind", [*KINDS, {"top_k": 3}, {"min_p": 0.2}, {"top_k": 3, "top_p": 0.5}])
def test_no_request_waits_for_a_kernel_to_be_compiled(start, monkeypatch, kind, edits):
    stepper, kernels, _ = start
    new = set()

    def run(launch: Launch) -> None:
        new.add(kernel_of(launch))
        RUN(launch)

    monkeypatch.setattr(Launch, "run", run)
    Run(stepper).step([scheduled(0, prompt_of(0, 2), **kind, **edits)])
    stepper.forget_all()
    assert new - kernels == set()


def test_the_largest_step_at_start_chooses_a_token_of_every_row_by_edited_scores(start):
    _, _, chosen = start
    assert (SETTINGS["max_num_batched_tokens"], True) in chosen
