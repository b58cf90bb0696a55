"""`outrider bench`: puts load on a gateway and reports how it fared."""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from outrider.cli.connection import options_of, read, tls_of
from outrider.cli.parser import UsageError
from outrider.client import Answer, AsyncClient, Options


def run(arguments: argparse.Namespace) -> None:
    """Measures and prints."""
    report = asyncio.run(_measure(arguments))
    if arguments.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name:<38}{value:,.1f}" if isinstance(value, float) else f"{name:<38}{value:,}")


async def _measure(arguments: argparse.Namespace) -> dict[str, float | int]:
    prompts = islice(cycle(_prompts(arguments)), arguments.num_requests)
    async with AsyncClient(arguments.target, key=arguments.key, tls=tls_of(arguments)) as client:
        began = time.perf_counter()
        answers = await _ask_all(client, prompts, options_of(arguments), arguments.concurrency)
        return summary(answers, time.perf_counter() - began)


def _prompts(arguments: argparse.Namespace) -> list[str]:
    if arguments.prompts is None:
        return [arguments.prompt]
    lines = [line for line in read(arguments.prompts).splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{arguments.prompts}: holds no message")
    return lines


async def _ask_all(
    client: AsyncClient, prompts: Iterator[str], options: Options, concurrency: int
) -> list[Answer]:
    """Keeps `concurrency` requests in flight; the first error ends all."""
    answers: list[Answer] = []

    async def ask_in_turn() -> None:
        for prompt in prompts:
            answers.append(await client.chat(prompt, **options).result())

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(ask_in_turn())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return answers


def summary(answers: Sequence[Answer], seconds: float) -> dict[str, float | int]:
    """Returns the figures of a run that took `seconds`; medians are over requests."""
    stats = [answer.stats for answer in answers]
    num_tokens = sum(answer.usage.completion_tokens for answer in answers)
    num_drafts = sum(stat.num_draft_tokens for stat in stats)
    num_accepted = sum(stat.num_accepted_tokens for stat in stats)
    num_steps = sum(stat.num_steps for stat in stats)
    return {
        "num_requests": len(answers),
        "num_output_tokens": num_tokens,
        "seconds": seconds,
        "tokens_per_second": num_tokens / seconds,
        "median_tokens_per_second": statistics.median(stat.tokens_per_second for stat in stats),
        "median_ttft_ms": statistics.median(stat.ttft_ms for stat in stats),
        "max_ttft_ms": max(stat.ttft_ms for stat in stats),
        "median_time_to_first_answer_token_ms": statistics.median(
            stat.time_to_first_answer_token_ms for stat in stats
        ),
        "num_draft_tokens": num_drafts,
        "num_accepted_tokens": num_accepted,
        "tokens_per_step": num_tokens / num_steps if num_steps else 0.0,
    }
