"""The streams that run through the chaos: questions of all kinds, by clients of whom some leave early."""

import random
from dataclasses import dataclass
from typing import Any

from outrider import AsyncClient
from outrider.client import Answer, AsyncStream
from tests.questions import essence

WORDS = ("apple", "river", "stone", "cloud", "green", "seven")
TOOL = {
    "name": "calculator",
    "description": "Computes.",
    "parameters": {"type": "object", "properties": {"sum": {"type": "string"}}, "required": ["sum"]},
}
# Longer than any pause: a stream that takes so long is stuck.
DEADLINE_SECONDS = 150.0


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and after how many tokens the client leaves; None: it stays."""

    options: dict[str, Any]
    leaves_after: int | None = None


def questions(seed: int, count: int) -> list[Question]:
    """Returns so many questions; all kinds are among any few dozen of them."""
    rng = random.Random(seed)
    makers = (_continuation, _continuation, _continuation, _sum, _sum, _constrained, _call, _ended)
    made = []
    for index in range(count):
        options = makers[index % len(makers)](rng) | {"seed": rng.randrange(2**53)}
        leaves_after = rng.randint(1, 20) if rng.random() < 0.1 else None
        made.append(Question(options=options, leaves_after=leaves_after))
    return made


def _continuation(rng: random.Random) -> dict[str, Any]:
    """Token ids under any edits of the scores; some prompts share a beginning, some outputs are long."""
    shared = [number * 7919 % 500 for number in range(rng.choice((0, 0, 40, 160)))]
    edits: dict[str, Any] = {
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.5,
        "logit_bias": {rng.randrange(450): 3.0, rng.randrange(450): -3.0},
        "num_logprobs": 3,
    }
    return {
        "prompt": shared + [rng.randrange(450) for _ in range(rng.randint(1, 60))],
        "temperature": rng.choice((0.0, 0.8, 1.5)),
        "max_tokens": rng.randint(120, 240) if rng.random() < 0.12 else rng.randint(1, 50),
        "ignore_eos": rng.random() < 0.8,
        **{name: value for name, value in edits.items() if rng.random() < 0.3},
    }


def _sum(rng: random.Random) -> dict[str, Any]:
    """A task of the model's own, thought about."""
    limit = {"max_reasoning_tokens": rng.randint(4, 30)} if rng.random() < 0.3 else {}
    return {
        "message": f"What is {rng.randrange(1000)} + {rng.randrange(1000)}?",
        "temperature": rng.choice((0.0, 0.7)),
        "max_tokens": rng.randint(20, 80),
        **limit,
    }


def _constrained(rng: random.Random) -> dict[str, Any]:
    """An output with a grammar."""
    grammar = rng.choice(
        (
            {"regex": "([0-9]{2} (apples|pears), ){3}"},
            {"regex": f"({'|'.join(WORDS)})( {rng.choice(WORDS)}){{1,9}}"},
            {"json_schema": {"enum": ["a quick brown fox", {"a": [1, 2, rng.randrange(9)]}]}},
        )
    )
    return {"prompt": "Answer:", "temperature": 1.0, "max_tokens": 40, **grammar}


def _call(rng: random.Random) -> dict[str, Any]:
    """A conversation with a tool to call."""
    message = f"Use the calculator: {rng.randrange(100)} * {rng.randrange(100)}"
    return {"message": message, "tools": [TOOL], "temperature": 0.7, "max_tokens": 60}


def _ended(rng: random.Random) -> dict[str, Any]:
    """An output that ends early, or must not."""
    end = rng.choice(
        (
            {"stop": [str(rng.randrange(10))]},
            {"stop_token_ids": list(range(30, 60))},
            {"bad_words": [str(number) for number in range(10, 100)], "min_tokens": 12},
        )
    )
    return {"prompt": "1, 2, 3, 4,", "temperature": 0.8, "max_tokens": 40, "ignore_eos": True, **end}


def ask(client: AsyncClient, question: Question, **more: Any) -> AsyncStream:
    """Begins an answer."""
    options: dict[str, Any] = question.options | {"timeout": DEADLINE_SECONDS} | more
    if "message" in options:
        return client.chat(options.pop("message"), **options)
    return client.generate(**options)


def whole(answer: Answer) -> tuple:
    """Returns all that must not change."""
    return (*essence(answer), answer.tool_calls, answer.seed)


async def check(client: AsyncClient, question: Question, expected: Answer) -> None:
    """Asks, and raises AssertionError unless the answer is as expected, or begins so if the client leaves."""
    if question.leaves_after is None:
        assert whole(await ask(client, question).result()) == whole(expected)
        return
    token_ids: list[int] = []
    async with ask(client, question) as stream:
        async for delta in stream:
            token_ids += delta.token_ids
            if len(token_ids) >= question.leaves_after:
                break
    assert tuple(token_ids) == expected.token_ids[: len(token_ids)]
