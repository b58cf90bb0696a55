"""Measures what steps of the tiny model take, for `benchmarks.regret`.

    python -m benchmarks.step_costs costs.json [--num-sequences 1 4 16 64] [--num-rounds 12]

The worker's own code in one process writes answers to the tasks once; then the same tokens again, several per
step, as drafts that turn out right: so the experts that a step wakes are those of real text. A cell's time is
the median of its steps. What the services around it take is not in it.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.edits import encode
from benchmarks.progress import Progress
from benchmarks.workloads import Place, problems
from outrider.model.sampling import Output
from outrider.params import SamplingParams, SequenceParams
from services.local.settings import DEFAULT_MODEL
from services.worker.config import Config
from services.worker.load import load
from services.worker.messages import Batch, BatchOutput, SequenceStart, SequenceStep
from training.chat import render

ROWS_PER_SEQUENCE = (1, 2, 3, 5, 7, 9)
NUM_STEPS = 3
MAX_LENGTH = 512


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Steps of one shape."""

    num_sequences: int
    num_rows: int
    seconds: float
    num_distinct_experts: float


class Group:
    """The worker's code, and sequences that all have the same number of output tokens."""

    def __init__(self) -> None:
        self._stepper = load(Config(model_dir=DEFAULT_MODEL), lambda: False)
        self._step_ids = itertools.count()
        self._params = SequenceParams(
            sampling=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=MAX_LENGTH)
        ).to_proto()

    @property
    def facts(self) -> dict[str, int]:
        """Returns what the table says of the model."""
        facts = self._stepper.facts
        return {
            "num_experts": facts.num_experts,
            "num_experts_per_token": facts.num_experts_per_token,
            "num_moe_layers": facts.num_moe_layers,
        }

    def start(self, prompts: Sequence[list[int]]) -> list[int]:
        """Begins sequences, all others forgotten, and returns their first tokens."""
        self._stepper.forget_all()
        steps = [self._start(place, prompt) for place, prompt in enumerate(prompts)]
        return [tokens[0] for tokens in self._tokens(self._run(steps))]

    def step(self, num_tokens: Sequence[int], drafts: Sequence[list[int]]) -> tuple[float, BatchOutput]:
        """Computes every sequence's last token and its draft; returns the time and what came."""
        steps = [
            SequenceStep(
                sequence_id=place,
                start=None,
                num_computed_tokens=count - 1,
                num_new_tokens=1,
                draft_token_ids=draft,
                new_block_ids=[],
            )
            for place, (count, draft) in enumerate(zip(num_tokens, drafts, strict=True))
        ]
        began = time.perf_counter()
        output = self._run(steps)
        return time.perf_counter() - began, output

    def write(self, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
        """Returns so many tokens behind each prompt."""
        written = [[token_id] for token_id in self.start(prompts)]
        while len(written[0]) < num_tokens:
            lengths = [len(prompt) + len(done) for prompt, done in zip(prompts, written, strict=True)]
            _, output = self.step(lengths, [[] for _ in prompts])
            for done, tokens in zip(written, self._tokens(output), strict=True):
                done += tokens
        return written

    def _run(self, steps: list[SequenceStep]) -> BatchOutput:
        return self._stepper.run(Batch(step_id=next(self._step_ids), steps=steps))

    def _tokens(self, output: BatchOutput) -> list[list[int]]:
        outcomes = [output.outcomes[place] for place in range(len(output.outcomes))]
        return [outcome.token_ids for outcome in outcomes if isinstance(outcome, Output)]

    def _start(self, place: int, prompt: list[int]) -> SequenceStep:
        num_blocks = MAX_LENGTH // self._stepper.facts.block_size
        return SequenceStep(
            sequence_id=place,
            start=SequenceStart(token_ids=prompt, num_prompt_tokens=len(prompt), params=self._params),
            num_computed_tokens=0,
            num_new_tokens=len(prompt),
            draft_token_ids=[],
            new_block_ids=list(range(place * num_blocks, (place + 1) * num_blocks)),
        )


def prompts(count: int) -> list[list[int]]:
    """Returns questions as the gateway renders them."""
    drawn = problems(Place())
    return [
        encode(render([{"role": "user", "content": problem.question}]))
        for problem in itertools.islice(drawn, count)
    ]


def measure(num_sequences: Sequence[int], num_rounds: int) -> dict[str, Any]:
    """Returns the table; in each round every shape has its turn, in an order of chance."""
    group = Group()
    asked = prompts(max(num_sequences))
    written = group.write(asked, (1 + NUM_STEPS) * sum(ROWS_PER_SEQUENCE) + 1)
    progress = Progress(len(num_sequences) * num_rounds)
    order = random.Random(1)
    cells: list[Cell] = []
    for count in num_sequences:
        steps: dict[int, list[tuple[float, BatchOutput]]] = {rows: [] for rows in ROWS_PER_SEQUENCE}
        for _ in range(num_rounds):
            group.start(asked[:count])
            done = 1
            for rows in order.sample(ROWS_PER_SEQUENCE, len(ROWS_PER_SEQUENCE)):
                steps[rows] += run_of_steps(group, asked[:count], written[:count], done, rows)
                done += (1 + NUM_STEPS) * rows
            progress.step(f"{count} sequences")
        cells += [cell(count, rows, steps[rows]) for rows in ROWS_PER_SEQUENCE]
    return {**group.facts, "cells": [asdict(cell) for cell in cells]}


def run_of_steps(
    group: Group, asked: Sequence[list[int]], written: Sequence[list[int]], done: int, rows: int
) -> list[tuple[float, BatchOutput]]:
    """Returns steps of one shape after each other, as serving has them; the first is not counted."""
    steps: list[tuple[float, BatchOutput]] = []
    for first in range(done, done + (1 + NUM_STEPS) * rows, rows):
        lengths = [len(prompt) + first for prompt in asked]
        steps.append(group.step(lengths, [text[first : first + rows - 1] for text in written]))
    return steps[1:]


def cell(count: int, rows: int, steps: Sequence[tuple[float, BatchOutput]]) -> Cell:
    """Returns what steps of one shape took."""
    return Cell(
        num_sequences=count,
        num_rows=rows * count,
        seconds=median(seconds for seconds, _ in steps),
        num_distinct_experts=mean(mean(output.num_distinct_experts) for _, output in steps),
    )


def main() -> None:
    """Writes the file that is named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--num-sequences", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--num-rounds", type=int, default=12)
    arguments = parser.parse_args()
    table = measure(arguments.num_sequences, arguments.num_rounds)
    arguments.path.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
