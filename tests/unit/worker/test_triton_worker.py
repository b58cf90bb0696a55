"""A worker on the kernels for GPUs, interpreted: the same tokens as on torch's, through the same code."""

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.rpc.errors import Internal
from services.worker.messages import Batch
from services.worker.step import Stepper
from tests.groups import BLOCK_SIZE, Scheduled, load_stepper, prompt_of, scheduled
from tests.unit.model.random_models import interpreted_config, write_checkpoint
from tests.unit.worker.runs import Run

SETTINGS = {"max_num_batched_tokens": 6, "graph_num_sequences": (1, 2), "graph_num_rows": (1, 2, 4, 6)}
NUM_OUTPUT_TOKENS = 4
KINDS = [{"temperature": 0}, {"temperature": 0.8, "seed": 3, "top_p": 0.95}]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("small"), interpreted_config())


@pytest.fixture(scope="module")
def steppers(small_model) -> dict[str, Stepper]:
    return {name: load_stepper(small_model, backend=name, **SETTINGS) for name in ("torch", "triton")}


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
