"""Promise 1 under everything that speculation can do: no drafter, however bad, changes an answer."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from outrider.client import Answer
from outrider.v1 import drafter_pb2
from services.scheduler import learnt
from tests import hostile_tricks as tricks
from tests.hostile_drafter import HEAD, MODEL, SUFFIX, HostileDrafter, Manner, Trick, plainly, rightly
from tests.speculating import Reckless, Speculating, serving_drafter, speculating

pytestmark = pytest.mark.asyncio(loop_scope="module")
VOCAB_SIZE = 800
PROMPTS = ("What is 4785 + 2467?", "Sort 42, 7, 19, 3 and 56.", "Once upon a time", "1, 2, 3, 4,")


def _sampled(rng: random.Random, index: int) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[index % len(PROMPTS)],
        "max_tokens": rng.randint(8, 20),
        "temperature": (0.0, 0.8, 1.5)[index % 3],
        "min_p": rng.choice((0.0, 0.05)),
        "repetition_penalty": rng.choice((1.0, 1.3)),
        "presence_penalty": rng.choice((0.0, 0.7)),
        "frequency_penalty": rng.choice((0.0, 1.5)),
        "logit_bias": rng.choice(({}, {rng.randrange(700): 3.0, rng.randrange(700): -3.0})),
        "num_logprobs": rng.choice((0, 3)),
        "ignore_eos": True,
    }


# Ends that a draft may cross, and constraints that it may break.
SPECIAL: tuple[dict[str, Any], ...] = (
    {"prompt": PROMPTS[0], "temperature": 0.0, "max_tokens": 1},
    {"prompt": PROMPTS[0], "temperature": 0.8, "max_tokens": 2, "ignore_eos": True},
    {"prompt": PROMPTS[3], "temperature": 0.8, "max_tokens": 24, "stop": ["7"], "ignore_eos": True},
    {"prompt": PROMPTS[3], "temperature": 0.0, "max_tokens": 24, "stop_token_ids": list(range(30, 60))},
    {"prompt": "Answer:", "temperature": 1.0, "max_tokens": 60, "regex": "([0-9]{2} (apples|pears), ){3}"},
    {"prompt": PROMPTS[2], "temperature": 1.5, "max_tokens": 16, "max_draft_tokens": 2, "ignore_eos": True},
    {"prompt": PROMPTS[2], "temperature": 0.8, "max_tokens": 16, "bad_words": ["e", "1"], "min_tokens": 12},
)


def questions() -> list[dict[str, Any]]:
    """All kinds of sampling, each with a seed of its own."""
    rng = random.Random(3)
    asked = [*(_sampled(rng, index) for index in range(6)), *SPECIAL]
    return [question | {"seed": 100 + index} for index, question in enumerate(asked)]


def essence(answer: Answer) -> tuple:
    """What must not change."""
    usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return (answer.token_ids, answer.text, answer.logprobs, answer.finish_reason, answer.stop_string, usage)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack() -> AsyncIterator[Speculating]:
    drafter = HostileDrafter(vocab_size=VOCAB_SIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learnt, "Controller", Reckless)
        async with serving_drafter(drafter) as port, speculating(drafter, port) as running:
            yield running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def undrafted(stack: Speculating) -> list[tuple]:
    """The answers without drafts, each asked alone; the drafter learns them."""
    answers = []
    for question in questions():
        answer = await stack.client.generate(**question, speculation=False).result()
        assert answer.stats.num_draft_tokens == 0
        stack.drafter.truths[question["seed"]] = answer.token_ids
        answers.append(essence(answer))
    return answers


async def ask_together(stack: Speculating) -> list[Answer]:
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(stack.client.generate(**question).result()) for question in questions()]
    return [task.result() for task in asked]


async def check_answers_beside(
    stack: Speculating,
    undrafted: list[tuple],
    *,
    trick: Trick = rightly,
    manner: Manner = plainly,
    sources: Sequence[drafter_pb2.DraftSource] = (SUFFIX,),
) -> list[Answer]:
    """Asks all questions at once beside such a drafter; the answers are what they were without."""
    await stack.have_drafter(trick=trick, manner=manner, sources=sources)
    num_answers, num_preemptions = stack.drafter.num_answers, stack.scheduler.counters.num_preemptions
    answers = await ask_together(stack)
    assert [essence(answer) for answer in answers] == undrafted
    assert stack.drafter.num_answers > num_answers
    assert not stack.drafter.complaints
    # A draft that the group refuses would have everything computed again.
    assert stack.scheduler.counters.num_preemptions == num_preemptions
    stack.scheduler.schedule.check()
    return answers


def accepted(answers: list[Answer]) -> Counter[str]:
    """Counts the accepted tokens by source."""
    counts: Counter[str] = Counter()
    for source in (source for answer in answers for source in answer.stats.sources):
        counts[source.source] += source.num_accepted_tokens
    return counts


@pytest.mark.parametrize("trick", tricks.TRICKS, ids=lambda trick: trick.__name__)
async def test_no_draft_changes_an_answer(stack: Speculating, undrafted: list[tuple], trick: Trick) -> None:
    await check_answers_beside(stack, undrafted, trick=trick)


@pytest.mark.parametrize("manner", tricks.MANNERS, ids=lambda manner: manner.__name__)
async def test_no_manner_of_answering_changes_an_answer(
    stack: Speculating, undrafted: list[tuple], manner: Manner
) -> None:
    await check_answers_beside(stack, undrafted, manner=manner)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ((MODEL,), {"model"}),
        ((HEAD,), {"head"}),
        ((SUFFIX, HEAD), {"suffix", "head"}),
        ((SUFFIX, MODEL, HEAD), {"suffix", "model", "head"}),
    ],
)
async def test_no_mix_of_sources_changes_an_answer(
    stack: Speculating, undrafted: list[tuple], sources: Sequence[drafter_pb2.DraftSource], names: set[str]
) -> None:
    answers = await check_answers_beside(stack, undrafted, sources=sources)
    # What the grammar forces is drafted too.
    assert (
        names
        <= {source for source, num_tokens in accepted(answers).items() if num_tokens}
        <= names | {"grammar"}
    )
    await check_answers_beside(
        stack, undrafted, sources=sources, trick=tricks.anyhow, manner=tricks.in_any_manner
    )


async def test_grammar_and_suffix_memory_guess_in_turn(stack: Speculating, undrafted: list[tuple]) -> None:
    answers = await check_answers_beside(stack, undrafted)
    (constrained,) = [answer for answer in answers if "apples" in answer.text or "pears" in answer.text]
    assert {source for source, num_tokens in accepted([constrained]).items() if num_tokens} == {
        "grammar",
        "suffix",
    }


async def test_right_drafts_are_accepted_and_wrong_ones_are_not(
    stack: Speculating, undrafted: list[tuple]
) -> None:
    """Else nothing else here would test anything."""
    right = await check_answers_beside(stack, undrafted)
    wrong = await check_answers_beside(stack, undrafted, trick=tricks.wrong_everywhere)
    num_steps = [sum(answer.stats.num_steps for answer in answers) for answers in (right, wrong)]
    assert num_steps[0] < 0.7 * num_steps[1]
    assert accepted(wrong).total() == accepted(wrong)["grammar"]
    assert sum(answer.stats.num_draft_tokens for answer in wrong) > 100


async def test_a_drafter_that_dies_and_comes_back_changes_no_answer(
    stack: Speculating, undrafted: list[tuple]
) -> None:
    num_streams = stack.drafter.num_streams
    await check_answers_beside(stack, undrafted, manner=tricks.dying, trick=tricks.anyhow)
    stack.drafter.hang_up()
    await stack.until_drafter_is_lost()
    answers = await check_answers_beside(stack, undrafted)
    assert stack.drafter.num_streams > num_streams
    assert accepted(answers)["suffix"]
