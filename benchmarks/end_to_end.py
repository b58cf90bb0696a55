"""Measures what four services cost: client to client, against the same model code looped in one process.

    python -m benchmarks.end_to_end [--model DIR] [--num-seqs 1 16] [--num-tokens 128] [--num-pairs 5]

Both decode prompts of one length with drafts off, turn and turn about in the order ABBA; the ratio is the
median of the pairs' ratios.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.stacks import stack
from outrider import AsyncClient
from outrider.params import SamplingParams, SequenceParams
from services.local.settings import DEFAULT_MODEL
from services.worker.config import Config
from services.worker.load import load
from services.worker.messages import Batch, SequenceStart, SequenceStep
from services.worker.step import Stepper

PROMPT_LENGTH = 24


class Loop:
    """The model code of the worker, stepped by a plain loop."""

    def __init__(self, model: Path) -> None:
        self._stepper: Stepper = load(Config(model_dir=model), lambda: False)
        self._sequence_ids = itertools.count()
        self._step_ids = itertools.count()

    def tokens_per_second(self, prompts: list[list[int]], num_tokens: int) -> float:
        """Decodes all prompts together; counts from the first tokens to the last."""
        ids = [next(self._sequence_ids) for _ in prompts]
        starts = zip(ids, itertools.count(), prompts, strict=False)
        self._run([self._start(id_, place, prompt, num_tokens) for id_, place, prompt in starts])
        began = time.perf_counter()
        for n in range(num_tokens - 1):
            self._run([_next(id_, PROMPT_LENGTH + n) for id_ in ids])
        seconds = time.perf_counter() - began
        self._stepper.forget_all()
        return len(prompts) * (num_tokens - 1) / seconds

    def _run(self, steps: list[SequenceStep]) -> None:
        self._stepper.run(Batch(step_id=next(self._step_ids), steps=steps))

    def _start(self, id_: int, place: int, prompt: list[int], num_tokens: int) -> SequenceStep:
        num_blocks = -(-(len(prompt) + num_tokens) // self._stepper.facts.block_size)
        params = SequenceParams(
            sampling=SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
        )
        return SequenceStep(
            sequence_id=id_,
            start=SequenceStart(token_ids=prompt, num_prompt_tokens=len(prompt), params=params.to_proto()),
            num_computed_tokens=0,
            num_new_tokens=len(prompt),
            draft_token_ids=[],
            new_block_ids=list(range(place * num_blocks, (place + 1) * num_blocks)),
        )


def _next(id_: int, num_computed_tokens: int) -> SequenceStep:
    return SequenceStep(
        sequence_id=id_,
        start=None,
        num_computed_tokens=num_computed_tokens,
        num_new_tokens=1,
        draft_token_ids=[],
        new_block_ids=[],
    )


async def served_tokens_per_second(client: AsyncClient, prompts: list[list[int]], num_tokens: int) -> float:
    """The same through a gateway: counts from the first event of any stream to the last of all."""
    events: list[tuple[float, int]] = []

    async def ask(prompt: list[int]) -> None:
        options = {"temperature": 0.0, "max_tokens": num_tokens, "ignore_eos": True, "speculation": False}
        async for delta in client.generate(prompt, **options):  # type: ignore[arg-type]
            events.append((time.perf_counter(), len(delta.token_ids)))

    async with asyncio.TaskGroup() as tasks:
        for prompt in prompts:
            tasks.create_task(ask(prompt))
    return sum(count for _, count in events[1:]) / (events[-1][0] - events[0][0])


def _prompts(num_seqs: int, fresh: Iterator[int]) -> list[list[int]]:
    """Prompts that no cache has seen."""
    return [[(next(fresh) * 7919 + n * n) % 500 for n in range(PROMPT_LENGTH)] for _ in range(num_seqs)]


async def compare(
    client: AsyncClient, loop: Loop, num_seqs: int, *, num_tokens: int, num_pairs: int, fresh: Iterator[int]
) -> dict[str, float]:
    """Returns both speeds for a number of sequences, and their ratio."""
    looped, served = [], []
    for pair in range(num_pairs + 1):
        for side in ("looped", "served")[:: 1 if pair % 2 else -1]:
            prompts = _prompts(num_seqs, fresh)
            if side == "looped":
                looped.append(await asyncio.to_thread(loop.tokens_per_second, prompts, num_tokens))
            else:
                served.append(await served_tokens_per_second(client, prompts, num_tokens))
    # The first pair warms both up.
    return _row(num_seqs, looped[1:], served[1:])


async def measure(
    model: Path, num_seqs: list[int], *, num_tokens: int, num_pairs: int
) -> list[dict[str, float]]:
    """Returns a row for each number of sequences."""
    fresh = itertools.count(1)
    async with stack(model) as running, AsyncClient(running.grpc_address) as client:
        loop = await asyncio.to_thread(Loop, model)
        return [
            await compare(client, loop, count, num_tokens=num_tokens, num_pairs=num_pairs, fresh=fresh)
            for count in num_seqs
        ]


def _row(count: int, looped: list[float], served: list[float]) -> dict[str, float]:
    ratios = sorted(b / a for a, b in zip(looped, served, strict=True))
    return {
        "num_seqs": count,
        "looped_tokens_per_second": round(statistics.median(looped), 1),
        "served_tokens_per_second": round(statistics.median(served), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_low": round(ratios[0], 3),
        "ratio_high": round(ratios[-1], 3),
    }


def main() -> None:
    """Prints one JSON object per number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL)
    parser.add_argument("--num-seqs", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--num-tokens", type=int, default=128)
    parser.add_argument("--num-pairs", type=int, default=5)
    arguments = parser.parse_args()
    rows = asyncio.run(
        measure(
            arguments.model,
            arguments.num_seqs,
            num_tokens=arguments.num_tokens,
            num_pairs=arguments.num_pairs,
        )
    )
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
