"""Measures how often what a source drafts is what the tiny model writes, place by place.

    python -m benchmarks.acceptance [--sources model head] [--temperatures 0 0.8 1.5] [--problems 2]

The tiny model answers problems of every task that training never saw. Its answers are then replayed: at every
fourth token the source is asked for a draft, which is compared with what came. `per_position` is the fraction
accepted of the tokens drafted at a place behind accepted ones. Drafts may end early; `mean_drafted` and
`mean_accepted` count tokens per draft. With `noise` independent the source draws with a seed of its own.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import structlog
from opentelemetry.trace import INVALID_SPAN
from tokenizers import Tokenizer

from benchmarks.progress import Progress
from outrider.model.sampling import Output
from outrider.params import SamplingParams, SequenceParams
from services.drafter.head_source import HeadSource
from services.drafter.model_source import ModelSource
from services.drafter.sequence import RunningSequence
from services.drafter.source import Question, Source
from services.local.settings import DEFAULT_MODEL
from services.worker.config import Config
from services.worker.load import load
from services.worker.messages import Batch, SequenceStart, SequenceStep
from services.worker.step import Stepper
from training.chat import render, special_id
from training.documents import call_turns, user
from training.tasks import WEIGHTS, draw

DRAFT_HEAD = DEFAULT_MODEL / "draft-head"
MAX_NUM_TOKENS = 600
# Room for a prompt and its answer.
MAX_LENGTH = 1024
# Answers written at the same time.
TOGETHER = 16
DRAFT_LENGTH = 8
EVERY = 4
KV_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt, what the tiny model wrote to it, what decided that, and the hidden vectors of its tokens."""

    prompt: list[int]
    output: list[int]
    params: SequenceParams
    features: bytearray = field(default_factory=bytearray)

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        ended = set(self.output[-1:]) & set(self.params.sampling.stop_token_ids)
        return bool(ended) or len(self.output) == MAX_NUM_TOKENS


def prompts(tokenizer: Tokenizer, num_problems: int) -> Iterator[list[int]]:
    """Yields held-out problems of every task, those with tools at every turn."""
    rng = Random(1)
    for task, _ in itertools.product(WEIGHTS, range(num_problems)):
        problem = draw(rng, held_out=True, task=task)
        for num_calls in range(len(problem.calls) + 1):
            text = render([user(problem), *call_turns(problem, num_calls)], tools=problem.tools)
            yield tokenizer.encode(text, add_special_tokens=False).ids


class Writer:
    """The tiny model answering several prompts together."""

    def __init__(self) -> None:
        self._stepper: Stepper = load(Config(model_dir=DEFAULT_MODEL, head_dir=DRAFT_HEAD), lambda: False)
        self._num_steps = itertools.count()

    def write(self, prompts: Sequence[list[int]], params: Sequence[SequenceParams]) -> list[Written]:
        """Returns the answers, each to its end or cut off."""
        written = [Written(prompt, [], each) for prompt, each in zip(prompts, params, strict=True)]
        while going := [(place, item) for place, item in enumerate(written) if not item.is_over]:
            steps = [self._step(place, item) for place, item in going]
            answer = self._stepper.run(Batch(step_id=next(self._num_steps), steps=steps))
            for features in answer.features:
                written[features.sequence_id].features.extend(features.rows)
            for place, item in going:
                outcome = answer.outcomes[place]
                assert isinstance(outcome, Output)
                item.output.extend(outcome.token_ids)
        self._stepper.forget_all()
        return written

    def _step(self, place: int, item: Written) -> SequenceStep:
        """Returns the first step of a sequence, or the one that computes its last token."""
        if item.output:
            start, num_computed, num_new, block_ids = (
                None,
                len(item.prompt) + len(item.output) - 1,
                1,
                range(0),
            )
        else:
            start = SequenceStart(
                token_ids=item.prompt, num_prompt_tokens=len(item.prompt), params=item.params.to_proto()
            )
            num_computed, num_new = 0, len(item.prompt)
            num_blocks = MAX_LENGTH // self._stepper.facts.block_size
            block_ids = range(place * num_blocks, (place + 1) * num_blocks)
        return SequenceStep(
            sequence_id=place,
            start=start,
            num_computed_tokens=num_computed,
            num_new_tokens=num_new,
            draft_token_ids=[],
            new_block_ids=list(block_ids),
            wants_features=True,
        )


def answers(writer: Writer, temperature: float, num_problems: int) -> list[Written]:
    """Returns the tiny model's answers to all problems."""
    tokenizer = Tokenizer.from_file(str(DEFAULT_MODEL / "tokenizer.json"))
    stops = tuple(special_id(tokenizer, name) for name in ("<|im_end|>", "[EOS]"))
    sampling = SamplingParams(temperature=temperature, stop_token_ids=stops)
    asked = list(prompts(tokenizer, num_problems))
    params = [SequenceParams(sampling=sampling, seed=seed) for seed in range(len(asked))]
    progress = Progress(len(asked))
    written: list[Written] = []
    for first in range(0, len(asked), TOGETHER):
        written += writer.write(asked[first : first + TOGETHER], params[first : first + TOGETHER])
        progress.step(f"answers at temperature {temperature:g}", len(written) - first)
    return written


@dataclass(slots=True)
class Tally:
    """Drafts counted: tokens drafted behind accepted ones, by place, and how many of these were right."""

    drafted: list[int]
    accepted: list[int]
    num_drafts: int = 0
    num_drafted: int = 0
    seconds: float = 0.0

    def count(self, draft: Sequence[int], came: Sequence[int]) -> None:
        """Compares a draft with the tokens that came."""
        self.num_drafts += 1
        self.num_drafted += len(draft)
        for place, (guessed, token_id) in enumerate(zip(draft, came, strict=False)):
            self.drafted[place] += 1
            if guessed != token_id:
                return
            self.accepted[place] += 1

    def row(self) -> dict[str, object]:
        """Returns the figures."""
        pairs = zip(self.accepted, self.drafted, strict=True)
        return {
            "per_position": [round(right / drafted, 3) if drafted else None for right, drafted in pairs],
            "mean_accepted": round(sum(self.accepted) / self.num_drafts, 2),
            "mean_drafted": round(self.num_drafted / self.num_drafts, 2),
            "num_drafts": self.num_drafts,
            "ms_per_draft": round(1e3 * self.seconds / self.num_drafts, 2),
            "ms_per_draft_token": round(1e3 * self.seconds / max(self.num_drafted, 1), 2),
        }


async def replay(source: Source, written: Sequence[Written], tally: Tally) -> None:
    """Asks the source about all these answers together, step by step as they were written."""
    sequences = [opened(number, item) for number, item in enumerate(written)]
    for sequence in sequences:
        source.open(sequence)
    for place in range(0, max(len(item.output) for item in written) - 1, EVERY):
        going = [pair for pair in zip(sequences, written, strict=True) if place < len(pair[1].output) - 1]
        for sequence, item in going:
            news = array("I", item.output[max(0, place - EVERY) : place])
            sequence.extend(news)
            source.extend(sequence, len(news))
            send_features(sequence, item, first=len(item.prompt) + place - EVERY - 1 if place else 0)
        questions = [Question(sequence=sequence, max_num_tokens=DRAFT_LENGTH) for sequence, _ in going]
        began = time.perf_counter()
        guesses = await source.guess(questions)
        tally.seconds += time.perf_counter() - began
        for guess, (_, item) in zip(guesses, going, strict=True):
            tally.count(guess.token_ids, item.output[place:])
    for sequence in sequences:
        await source.close(sequence, finished=True)


def send_features(sequence: RunningSequence, item: Written, first: int) -> None:
    """Gives the sequence the vectors from token `first` on that a scheduler would have by now."""
    num_tokens = len(item.prompt) + len(item.output) - 1
    row_bytes = len(item.features) // num_tokens
    rows = item.features[first * row_bytes : (len(sequence.token_ids) - 1) * row_bytes]
    sequence.add_features(first, bytes(rows), row_bytes)


def opened(number: int, item: Written) -> RunningSequence:
    """Returns the sequence as the drafter knows it before its first token."""
    sequence = RunningSequence(
        id=number,
        tenant="",
        num_prompt_tokens=len(item.prompt),
        params=item.params.to_proto(),
        span=INVALID_SPAN,
    )
    sequence.extend(array("I", item.prompt))
    return sequence


def measure(
    make: Callable[[Executor], Source], written: Sequence[Written], num_seqs: int, *, same_noise: bool = True
) -> dict[str, object]:
    """Replays the answers, so many at a time, to a fresh source."""
    if not same_noise:
        written = [
            replace(item, params=replace(item.params, seed=item.params.seed + 1000)) for item in written
        ]
    tally = Tally([0] * DRAFT_LENGTH, [0] * DRAFT_LENGTH)
    with ThreadPoolExecutor(1) as executor:
        source = make(executor)
        for first in range(0, len(written), num_seqs):
            asyncio.run(replay(source, written[first : first + num_seqs], tally))
    return tally.row()


def draft_model(executor: Executor) -> Source:
    """Makes the source of the tiny model's draft model."""
    directory: Path = DEFAULT_MODEL / "draft-model"
    return ModelSource.load(
        directory, DEFAULT_MODEL, kv_cache_bytes=KV_CACHE_BYTES, num_threads=1, executor=executor
    )


def draft_head(executor: Executor) -> Source:
    """Makes the source of the tiny model's draft head."""
    return HeadSource.load(
        DRAFT_HEAD, DEFAULT_MODEL, kv_cache_bytes=KV_CACHE_BYTES, num_threads=1, executor=executor
    )


SOURCES: Mapping[str, Callable[[Executor], Source]] = {"model": draft_model, "head": draft_head}
# Those that draw tokens.
SAMPLING = ("model", "head")


def main() -> None:
    """Prints one JSON object per source, temperature, noise and number of sequences asked about together."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8, 1.5])
    parser.add_argument("--problems", type=int, default=2, help="per task")
    parser.add_argument("--num-seqs", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    # Standard output is for the results.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    writer = Writer()
    for temperature in arguments.temperatures:
        written = answers(writer, temperature, arguments.problems)
        for name, num_seqs in itertools.product(arguments.sources, arguments.num_seqs):
            noises = ["same", "independent"] if name in SAMPLING and temperature > 0 else ["same"]
            for noise in noises:
                row = measure(SOURCES[name], written, num_seqs, same_noise=noise == "same")
                about = {"source": name, "temperature": temperature, "noise": noise, "num_seqs": num_seqs}
                print(json.dumps(about | row), flush=True)


if __name__ == "__main__":
    main()
