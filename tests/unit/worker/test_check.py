"""A batch that breaks the contract is refused by name."""

from dataclasses import replace

import pytest

from outrider.rpc.errors import InvalidArgument
from services.worker.check import check_batch
from services.worker.messages import Batch
from tests.groups import NUM_BLOCKS, prompt_of, scheduled


@pytest.fixture
def known(stepper):
    """A sequence of which all ten tokens but the chosen one are computed."""
    sequence = scheduled(1, prompt_of(1, 9), temperature=0)
    step = sequence.step()
    batch = Batch(step_id=1, steps=[step])
    check_batch(batch, stepper.sequences, stepper.facts)
    sequence.commit(step, stepper.run(batch).outcomes[1])
    return sequence


def refusal(stepper, steps, released=()):
    before = {name: list(sequence.block_ids) for name, sequence in stepper.sequences.items()}
    with pytest.raises(InvalidArgument) as caught:
        check_batch(
            Batch(step_id=2, steps=steps, released_sequence_ids=list(released)),
            stepper.sequences,
            stepper.facts,
        )
    assert {name: sequence.block_ids for name, sequence in stepper.sequences.items()} == before
    return caught.value.field.removeprefix("batch.sequences[0].")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sequence_id": 5}, "start"),
        ({"num_new_tokens": 0}, "num_new_tokens"),
        ({"num_new_tokens": 2}, "num_new_tokens"),
        ({"num_computed_tokens": 8, "draft_token_ids": [1]}, "draft_token_ids"),
        ({"draft_token_ids": [97]}, "draft_token_ids"),
        ({"draft_token_ids": [1, 2, 3], "new_block_ids": []}, "new_block_ids"),
        ({"new_block_ids": [NUM_BLOCKS]}, "new_block_ids"),
        ({"draft_token_ids": [1] * 128}, "batch.sequences"),
    ],
)
def test_a_wrong_step_of_a_known_sequence_is_refused(stepper, known, changes, field):
    assert refusal(stepper, [replace(known.step(), **changes)]) == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": [1] * 10 + [97]}, "start.token_ids"),
        ({"token_ids": []}, "start.num_prompt_tokens"),
        ({"num_prompt_tokens": 0}, "start.num_prompt_tokens"),
        ({"num_prompt_tokens": 11}, "start.num_prompt_tokens"),
    ],
)
def test_a_wrong_start_is_refused(stepper, changes, field):
    step = scheduled(2, prompt_of(2, 10)).step()
    assert step.start is not None
    assert refusal(stepper, [replace(step, start=replace(step.start, **changes))]) == field


def test_a_sequence_may_be_in_a_batch_once(stepper, known):
    assert refusal(stepper, [known.step(), known.step()]) == "batch.sequences[1].sequence_id"


def test_a_running_sequence_is_not_started_again_unless_released(stepper, known):
    step = scheduled(1, prompt_of(1, 9)).step()
    assert refusal(stepper, [step]) == "start"
    check_batch(Batch(step_id=2, steps=[step], released_sequence_ids=[1]), stepper.sequences, stepper.facts)
    assert refusal(stepper, [known.step()], released=[1]) == "start"


def test_a_sequence_longer_than_the_model_takes_is_refused(stepper):
    sequence = scheduled(3, prompt_of(3, 10))
    sequence.tokens += [1] * 1020
    step = replace(sequence.step(max_rows=20), num_computed_tokens=1010, new_block_ids=[0] * 300)
    assert refusal(stepper, [step]) == "batch.sequences[0]"
