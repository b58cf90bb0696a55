"""Promise 1 from end to end: tokens are a function of the question alone, through four real processes."""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from outrider import AsyncClient
from outrider.client import Answer
from outrider.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2
from tests.stack import RunningStack

NUM_STREAMS = 64
SEED_SEVEN: dict[str, Any] = {
    "prompt": "What is 4785 + 2467?",
    "seed": 7,
    "temperature": 0.8,
    "max_tokens": 120,
    "ignore_eos": True,
}


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


async def resume(
    stack: RunningStack, question: dict[str, Any], token_ids: Sequence[int]
) -> tuple[list[gateway_pb2.Delta], gateway_pb2.Finished]:
    """Takes an answer up again as a client that has these tokens of it."""
    request = gateway_pb2.GenerateRequest(text=question["prompt"])
    sampling = {key: question[key] for key in ("temperature", "max_tokens", "min_tokens") if key in question}
    sampling["ignore_eos"] = question.get("ignore_eos", False)
    request.options.sampling.CopyFrom(sampling_pb2.SamplingParams(**sampling))
    if "regex" in question:
        request.options.grammar.regex = question["regex"]
    else:
        request.options.grammar.json_schema = json.dumps(question["json_schema"])
    request.options.resume.token_ids.extend(token_ids)
    request.options.resume.seed, request.options.resume.request_id = question["seed"], "resumed"
    async with grpc.aio.insecure_channel(stack.target) as channel:
        events = [event async for event in gateway_pb2_grpc.GatewayServiceStub(channel).Generate(request)]
    return [event.delta for event in events if event.HasField("delta")], events[-1].finished


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


@pytest.mark.parametrize(
    "question",
    [
        {"regex": "(yes|no)", "min_tokens": 9},
        {"regex": "(yes|no)", "ignore_eos": True},
        {"regex": "(yes|no)", "max_tokens": 3},
        {"json_schema": {"enum": ["a quick brown fox", {"a": [1, 2, 3]}]}},
    ],
)
async def test_a_grammar_ends_its_output_alike_with_drafts_on_or_off_and_resumed(
    stack: RunningStack, question: dict[str, Any]
) -> None:
    question = {"prompt": "Answer:", "seed": 3, "temperature": 1.0, "max_tokens": 60} | question
    async with AsyncClient(stack.target) as client:
        alone = await ask(client, question, speculation=False)
        for _ in range(2):
            assert essence(await ask(client, question)) == essence(alone)
    for num_tokens in range(1, len(alone.token_ids) + 1):
        deltas, finished = await resume(stack, question, alone.token_ids[:num_tokens])
        tokens = [token_id for delta in deltas for token_id in delta.token_ids]
        assert tokens == list(alone.token_ids[num_tokens:])
        assert finished.usage.completion_tokens == alone.usage.completion_tokens
        reason = gateway_pb2.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()
        assert (reason, finished.HasField("stop_token_id")) == (alone.finish_reason, False)


async def test_killing_the_drafter_half_way_changes_no_token(stack: RunningStack) -> None:
    question: dict[str, Any] = SEED_SEVEN | {"max_tokens": 300}
    async with AsyncClient(stack.target) as client:
        expected = essence(await ask(client, question, speculation=False))
        stream = client.generate(**question)
        num_tokens = 0
        async for delta in stream:
            before, num_tokens = num_tokens, num_tokens + len(delta.token_ids)
            if before < 100 <= num_tokens:
                stack.kill("drafter")
        assert essence(await stream.result()) == expected
        await until_no_block_is_in_use(client)
