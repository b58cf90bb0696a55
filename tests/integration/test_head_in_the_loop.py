"""The tiny model and its draft head together: what the group sends is what the head drafts from."""

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from opentelemetry.trace import INVALID_SPAN
from tokenizers import Tokenizer

from outrider.model.sampling import Output
from outrider.params import SamplingParams, SequenceParams
from services.drafter.head_source import HeadSource
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question
from services.worker.messages import Batch
from services.worker.step import Stepper
from tests.groups import NUM_BLOCKS, Scheduled, load_stepper
from training.chat import render

TINY = Path(__file__).parents[2] / "models" / "tiny"
HEAD = TINY / "draft-head"
NUM_OUTPUT_TOKENS = 80
QUESTION = "What is 478 + 256?"


@pytest.fixture(scope="module")
def stepper() -> Stepper:
    return load_stepper(TINY, head_dir=HEAD)


def sequence_of(params: SequenceParams) -> Scheduled:
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    text = render([{"role": "user", "content": QUESTION}])
    prompt = tokenizer.encode(text, add_special_tokens=False).ids
    return Scheduled(1, params, prompt, len(prompt), list(range(NUM_BLOCKS)))


def write(stepper: Stepper, params: SequenceParams, source: HeadSource | None) -> tuple[list[int], int]:
    """The output, and the steps that it took."""
    scheduled, num_steps = sequence_of(params), 0
    running = RunningSequence(
        id=1, tenant="", num_prompt_tokens=len(scheduled.tokens), params=params.to_proto(), span=INVALID_SPAN
    )
    running.extend(array("I", scheduled.tokens))
    draft: tuple[int, ...] = ()
    while len(scheduled.output) < NUM_OUTPUT_TOKENS:
        num_steps += 1
        step = scheduled.step(draft=draft, wants_features=source is not None)
        output = stepper.run(Batch(step_id=num_steps, steps=[step]))
        outcome = output.outcomes[1]
        assert isinstance(outcome, Output)
        scheduled.commit(step, outcome)
        running.extend(array("I", outcome.token_ids))
        if source is not None:
            for item in output.features:
                running.add_features(item.offset, item.rows, 2 * source.feature_size)
            (guess,) = asyncio.run(source.guess([Question(sequence=running, max_num_tokens=6)]))
            draft = guess.token_ids
    stepper.forget_all()
    return scheduled.output[:NUM_OUTPUT_TOKENS], num_steps


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_shipped_head_saves_steps_and_changes_no_token(stepper: Stepper, temperature: float) -> None:
    params = SequenceParams(sampling=SamplingParams(temperature=temperature), seed=7)
    expected, num_steps = write(stepper, params, None)
    with ThreadPoolExecutor(1) as executor:
        source = HeadSource.load(HEAD, TINY, kv_cache_bytes=1 << 24, num_threads=1, executor=executor)
        output, num_steps_with_drafts = write(stepper, params, source)
    assert output == expected
    assert num_steps_with_drafts < 0.75 * num_steps
