"""Measures what drafts gain on the tiny model's own tasks, one stream at a time.

    python -m benchmarks.speculation [--num-problems 40]

Problems that training never saw are answered with drafts and without, turn and turn about in the order ABBA;
the drafter's memory begins empty and fills with what it has just answered. In each pair the sides see other
problems of the same kind, so that no answer has been seen before.
"""

import argparse
import asyncio
import json
import statistics
from collections.abc import Iterator
from random import Random

from benchmarks.stacks import stack
from outrider import AsyncClient
from outrider.client import Answer
from training.tasks import WEIGHTS, Problem, draw


def problem_pairs(seed: int) -> Iterator[tuple[Problem, Problem]]:
    """Yields two fresh problems of one task, again and again over all tasks that need no tool."""
    rng = Random(seed)
    seen: set[str] = set()
    while True:
        for task in WEIGHTS:
            pair = [draw(rng, held_out=True, task=task) for _ in range(2)]
            questions = {problem.question for problem in pair}
            if len(questions) == 2 and not questions & seen and not any(problem.tools for problem in pair):
                seen |= questions
                yield pair[0], pair[1]


async def ask(client: AsyncClient, problem: Problem, *, drafts: bool) -> Answer:
    return await client.chat(problem.question, temperature=0, speculation=drafts, max_tokens=600).result()


async def measure(client: AsyncClient, num_problems: int) -> dict[str, float]:
    """Returns how drafts fared over all problems."""
    with_drafts, without = [], []
    pairs = problem_pairs(seed=1)
    for number in range(num_problems + 2):
        on, off = next(pairs)
        if number % 2:
            with_drafts.append(await ask(client, on, drafts=True))
            without.append(await ask(client, off, drafts=False))
        else:
            without.append(await ask(client, off, drafts=False))
            with_drafts.append(await ask(client, on, drafts=True))
    # The first ones warm the services up.
    return _row(with_drafts[2:], without[2:])


def _row(with_drafts: list[Answer], without: list[Answer]) -> dict[str, float]:
    speeds = [
        [answer.stats.tokens_per_second for answer in side if answer.usage.completion_tokens > 20]
        for side in (with_drafts, without)
    ]
    on, off = map(statistics.median, speeds)
    drafted = sum(answer.stats.num_draft_tokens for answer in with_drafts)
    tokens = sum(answer.usage.completion_tokens for answer in with_drafts)
    return {
        "num_problems": len(with_drafts),
        "tokens_per_step": round(tokens / sum(answer.stats.num_steps for answer in with_drafts), 2),
        "accepted_fraction": round(
            sum(answer.stats.num_accepted_tokens for answer in with_drafts) / max(drafted, 1), 2
        ),
        "tokens_per_second": round(on, 1),
        "without_drafts": round(off, 1),
        "ratio": round(on / off, 2),
    }


async def measure_alone(num_problems: int) -> dict[str, float]:
    """Measures on a stack of its own."""
    async with stack() as running, AsyncClient(running.grpc_address) as client:
        return await measure(client, num_problems)


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-problems", type=int, default=40)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure_alone(arguments.num_problems))))


if __name__ == "__main__":
    main()
