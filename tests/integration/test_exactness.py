"""Promise 1 from end to end: tokens are a function of the question alone, through four real processes."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import AsyncClient
from outrider.client import Answer
from tests.stack import RunningStack, running_stack

NUM_STREAMS = 64
SEED_SEVEN: dict[str, Any] = {
    "prompt": "What is 4785 + 2467?",
    "seed": 7,
    "temperature": 0.8,
    "max_tokens": 120,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with running_stack() as running:
        yield running


def questions(rng: random.Random) -> list[dict[str, Any]]:
    """Prompts of all lengths, some sharing a beginning, under all kinds of sampling."""
    shared = [rng.randrange(700) for _ in range(200)]
    return [
        {
            "prompt": shared[: rng.choice((0, 0, 37, 150))]
            + [rng.randrange(700) for _ in range(rng.randint(1, 90))],
            "max_tokens": rng.randint(1, 24),
            "temperature": rng.choice((0.0, 0.8, 1.5)),
            "seed": rng.randrange(2**53),
            "top_k": rng.choice((0, 20)),
            "top_p": rng.choice((1.0, 0.9)),
            "repetition_penalty": rng.choice((1.0, 1.2)),
            "frequency_penalty": rng.choice((0.0, 0.5)),
            "num_logprobs": rng.choice((0, 2)),
            "ignore_eos": rng.random() < 0.8,
        }
        for _ in range(NUM_STREAMS)
    ]


async def ask(client: AsyncClient, question: dict[str, Any], **options: Any) -> Answer:
    return await client.generate(**(question | options)).result()


async def ask_and_leave(client: AsyncClient, question: dict[str, Any]) -> None:
    async with client.generate(**question) as stream:
        async for _ in stream:
            return


async def ask_in_crowd(client: AsyncClient, asked: list[dict[str, Any]], rng: random.Random) -> list[Answer]:
    """Asks all at once, among others who leave after their first words."""
    async with asyncio.TaskGroup() as tasks:
        crowd = [tasks.create_task(ask(client, question)) for question in asked]
        for question in rng.sample(asked, 16):
            tasks.create_task(ask_and_leave(client, question))
    return [await task for task in crowd]


def essence(answer: Answer) -> tuple:
    """What must not change: tokens, text, log-probabilities, the end, and what is charged."""
    return (
        answer.token_ids,
        answer.text,
        answer.reasoning,
        answer.logprobs,
        answer.finish_reason,
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )


async def blocks_in_use(client: AsyncClient) -> int:
    (scheduler,) = await client.stats()
    load = scheduler.load
    return load.num_blocks - load.num_free_blocks + load.num_requests_running + load.num_requests_waiting


async def until_no_block_is_in_use(client: AsyncClient) -> None:
    async with asyncio.timeout(10):
        while await blocks_in_use(client):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_crowd_gets_the_tokens_that_each_would_get_alone_and_gives_all_blocks_back(
    stack: RunningStack,
) -> None:
    rng = random.Random(1)
    asked = questions(rng)
    async with AsyncClient(stack.target) as client:
        alone = [essence(await ask(client, question, speculation=False)) for question in asked]
        # The first crowd fills the drafter's memory, the second meets its own answers there.
        crowds = [await ask_in_crowd(client, asked, rng) for _ in range(2)]
        assert [[essence(answer) for answer in crowd] for crowd in crowds] == [alone, alone]
        assert sum(answer.stats.num_accepted_tokens for answer in crowds[1]) > 0
        await until_no_block_is_in_use(client)


async def test_seed_seven_gives_the_same_tokens_alone_in_a_crowd_and_with_drafts_on_or_off(
    stack: RunningStack,
) -> None:
    async with AsyncClient(stack.target) as client:
        expected = essence(await ask(client, SEED_SEVEN, speculation=False))
        assert essence(await ask(client, SEED_SEVEN)) == expected
        async with asyncio.TaskGroup() as tasks:
            for question in questions(random.Random(2)):
                tasks.create_task(ask(client, question))
            in_crowd = tasks.create_task(ask(client, SEED_SEVEN))
        assert essence(await in_crowd) == expected


@pytest.mark.parametrize("service", ["drafter", "worker", "scheduler", "gateway"])
async def test_killing_a_service_half_way_changes_no_token(stack: RunningStack, service: str) -> None:
    question: dict[str, Any] = SEED_SEVEN | {"max_tokens": 300}
    async with AsyncClient(stack.target) as client:
        expected = essence(await ask(client, question, speculation=False))
        stream = client.generate(**question)
        num_tokens = 0
        async for delta in stream:
            before, num_tokens = num_tokens, num_tokens + len(delta.token_ids)
            if before < 100 <= num_tokens:
                stack.kill(service)
        assert essence(await stream.result()) == expected
        await until_no_block_is_in_use(client)
