"""Questions of all kinds, and what of their answers must not change."""

import asyncio
import random
from collections import Counter
from typing import Any

from outrider import AsyncClient
from outrider.client import Answer

TWO_DIGITS = [str(number) for number in range(10, 100)]
PROMPTS = ("What is 4785 + 2467?", "Sort 42, 7, 19, 3 and 56.", "Once upon a time", "1, 2, 3, 4,")


def _sampled(rng: random.Random, index: int) -> dict[str, Any]:
    """The first three have everything at once, one at each temperature; others some of it."""
    bias = {rng.randrange(700): 3.0, rng.randrange(700): -3.0}
    sampling = {
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 4.0,
        "logit_bias": bias,
        "num_logprobs": 3,
    }
    return {
        "prompt": PROMPTS[index % len(PROMPTS)],
        "max_tokens": rng.randint(12, 20),
        "temperature": (0.0, 0.8, 1.5)[index % 3],
        "ignore_eos": True,
        **{name: value for name, value in sampling.items() if index < 3 or rng.random() < 0.3},
    }


# Ends that a draft may cross, and constraints that it may break.
SPECIAL: tuple[dict[str, Any], ...] = (
    {"message": "What is 17 + 25?", "temperature": 0.8, "max_tokens": 24, "max_reasoning_tokens": 6},
    {"prompt": PROMPTS[0], "temperature": 0.0, "max_tokens": 1},
    {"prompt": PROMPTS[0], "temperature": 0.8, "max_tokens": 2, "ignore_eos": True},
    {"prompt": PROMPTS[3], "temperature": 0.8, "max_tokens": 24, "stop": ["7"], "ignore_eos": True},
    {"prompt": PROMPTS[3], "temperature": 0.0, "max_tokens": 24, "stop_token_ids": list(range(30, 60))},
    {"prompt": "Answer:", "temperature": 1.0, "max_tokens": 60, "regex": "([0-9]{2} (apples|pears), ){3}"},
    {"prompt": PROMPTS[2], "temperature": 1.5, "max_tokens": 16, "max_draft_tokens": 2, "ignore_eos": True},
    {"prompt": PROMPTS[0], "temperature": 0.8, "max_tokens": 16, "bad_words": TWO_DIGITS, "min_tokens": 12},
)


def questions() -> list[dict[str, Any]]:
    """All kinds of sampling, each with a seed of its own."""
    rng = random.Random(3)
    asked = [*(_sampled(rng, index) for index in range(6)), *SPECIAL]
    return [question | {"seed": 100 + index} for index, question in enumerate(asked)]


def essence(answer: Answer) -> tuple:
    """What must not change."""
    usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    end = (answer.finish_reason, answer.stop_string, answer.stop_token_id)
    return (answer.token_ids, answer.reasoning, answer.text, answer.logprobs, end, usage)


async def ask(client: AsyncClient, question: dict[str, Any]) -> Answer:
    """Asks for the answer to a message, or for the rest of a text."""
    if "message" in question:
        options = {name: value for name, value in question.items() if name != "message"}
        return await client.chat(question["message"], **options).result()
    return await client.generate(**question).result()


async def ask_each_alone(client: AsyncClient) -> list[Answer]:
    """Asks one question after the other, without speculation."""
    return [await ask(client, question | {"speculation": False}) for question in questions()]


async def ask_together(client: AsyncClient) -> list[Answer]:
    """Asks all questions at once."""
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(client, question)) for question in questions()]
    return [task.result() for task in asked]


def accepted(answers: list[Answer]) -> Counter[str]:
    """Counts the accepted tokens of each source that has any."""
    counts: Counter[str] = Counter()
    for source in (source for answer in answers for source in answer.stats.sources):
        counts[source.source] += source.num_accepted_tokens
    return +counts
