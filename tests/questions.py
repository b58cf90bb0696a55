"""Questions of all kinds, and what of their answers must not change."""

import asyncio
import random
from collections import Counter
from typing import Any

from outrider import AsyncClient
from outrider.client import Answer

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
    end = (answer.finish_reason, answer.stop_string, answer.stop_token_id)
    return (answer.token_ids, answer.text, answer.logprobs, end, usage)


async def ask_each_alone(client: AsyncClient) -> list[Answer]:
    """Asks one question after the other, without speculation."""
    return [await client.generate(**question, speculation=False).result() for question in questions()]


async def ask_together(client: AsyncClient) -> list[Answer]:
    """Asks all questions at once."""
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(client.generate(**question).result()) for question in questions()]
    return [task.result() for task in asked]


def accepted(answers: list[Answer]) -> Counter[str]:
    """Counts the accepted tokens of each source that has any."""
    counts: Counter[str] = Counter()
    for source in (source for answer in answers for source in answer.stats.sources):
        counts[source.source] += source.num_accepted_tokens
    return +counts
