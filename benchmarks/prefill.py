"""Measures what the learnt prefill chunk does for streams that run while long prompts come in.

    python -m benchmarks.prefill [--targets 0 100 60] [--num-streams 4] [--prompt-tokens 1600]
                                 [--num-prompts 6]

Streams without drafts decode all the while; now and then a long prompt comes that no cache has seen. A row is
one inter-token target in milliseconds (0: none, the prompt goes in pieces of a fixed size): how far apart the
streams' tokens came while a prompt was computed, and how long the prompt's own first token took.
"""

import argparse
import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.progress import Progress
from benchmarks.stacks import stack
from outrider import AsyncClient

VARIABLE = "OUTRIDER_SCHEDULER_INTER_TOKEN_TARGET_MS"
NUM_STREAM_TOKENS = 3000
PAUSE_SECONDS = 1.0


def prompts(num_tokens: int) -> Iterator[list[int]]:
    """Yields prompts that share no beginning."""
    for number in itertools.count():
        yield [(number * 7919 + place * place + 3 * place) % 500 for place in range(num_tokens)]


async def decode(client: AsyncClient, prompt: list[int], times: list[float]) -> None:
    """Notes when each token of an endless stream comes."""
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": NUM_STREAM_TOKENS, "ignore_eos": True}
    async for _ in client.generate(prompt, speculation=False, **options):
        times.append(time.perf_counter())


async def first_token_seconds(client: AsyncClient, prompt: list[int]) -> float:
    """Returns how long a prompt takes to its first token."""
    began = time.perf_counter()
    await client.generate(prompt, temperature=0.0, max_tokens=1, speculation=False).result()
    return time.perf_counter() - began


async def measure_target(
    client: AsyncClient, num_streams: int, prompt_tokens: int, num_prompts: int
) -> dict[str, float]:
    """Returns the gaps between tokens while prompts are computed, and what the prompts took."""
    times: list[list[float]] = [[] for _ in range(num_streams)]
    spans: list[tuple[float, float]] = []
    async with asyncio.TaskGroup() as tasks:
        short, long = prompts(16), prompts(prompt_tokens)
        streams = [tasks.create_task(decode(client, next(short), one)) for one in times]
        # The controller learns what steps of prompts take from the first prompt; it is not counted.
        for number in range(num_prompts + 1):
            await asyncio.sleep(PAUSE_SECONDS)
            began = time.perf_counter()
            seconds = await first_token_seconds(client, next(long))
            spans += [(began, began + seconds)] if number else []
        for stream in streams:
            stream.cancel()
    gaps = [
        later - earlier
        for one in times
        for earlier, later in itertools.pairwise(one)
        if any(began <= later and earlier <= end for began, end in spans)
    ]
    return {
        "median_gap_ms": round(1000 * float(np.median(gaps)), 1),
        "p99_gap_ms": round(1000 * float(np.percentile(gaps, 99)), 1),
        "first_token_ms": round(1000 * float(np.median([end - began for began, end in spans])), 1),
    }


async def measure(
    targets: Sequence[float], num_streams: int, prompt_tokens: int, num_prompts: int
) -> list[dict[str, float]]:
    """Returns a row per target, each of a stack of its own."""
    rows, progress = [], Progress(len(targets))
    for target in targets:
        os.environ.pop(VARIABLE, None)
        if target:
            os.environ[VARIABLE] = str(target)
        async with stack(drafter=()) as running, AsyncClient(running.grpc_address) as client:
            row = await measure_target(client, num_streams, prompt_tokens, num_prompts)
        rows.append({"target_ms": target, **row})
        progress.step(f"target {target:g} ms: {row}")
    return rows


def main() -> None:
    """Prints a line per target and writes docs/results/prefill.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=float, nargs="+", default=[0.0, 100.0, 60.0])
    parser.add_argument("--num-streams", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=1600)
    parser.add_argument("--num-prompts", type=int, default=6)
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    rows = asyncio.run(
        measure(arguments.targets, arguments.num_streams, arguments.prompt_tokens, arguments.num_prompts)
    )
    results.save("prefill", rows, arguments.results)
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
