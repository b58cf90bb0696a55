"""Measures what hidden vectors for the draft head cost the worker: bytes and milliseconds per step.

    python -m benchmarks.features [--pairs 40]

The tiny model decodes some sequences, each with a draft, in pairs of steps with vectors and without, in the
order ABBA. `added_ms` is the median difference within pairs; `bytes` are those of a step with vectors. The
row with `num_new_tokens` above 1 reads prompts. All tokens are random, so hardly any draft is accepted.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import dataclass
from random import Random

import structlog

from outrider.model.sampling import Output
from outrider.params import SamplingParams, SequenceParams
from services.local.settings import DEFAULT_MODEL
from services.worker.config import Config
from services.worker.load import load
from services.worker.messages import Batch, BatchOutput, SequenceStart, SequenceStep
from services.worker.step import Stepper

DRAFT_HEAD = DEFAULT_MODEL / "draft-head"
PROMPT_LENGTH = 200
MAX_LENGTH = 512
# Sequences, new tokens of each and draft tokens of each.
CASES = ((1, 1, 0), (1, 1, 4), (16, 1, 0), (16, 1, 4), (1, PROMPT_LENGTH, 0))


@dataclass(slots=True)
class Running:
    """A sequence in the group: its place among others, and the tokens known and computed."""

    id: int
    place: int
    num_tokens: int = PROMPT_LENGTH
    num_computed: int = 0


class Group:
    """The tiny model, stepping sequences of random tokens."""

    def __init__(self) -> None:
        config = Config(model_dir=DEFAULT_MODEL, head_dir=DRAFT_HEAD)
        self._stepper: Stepper = load(config, lambda: False)
        self._step_ids = itertools.count(1)
        self._rng = Random(0)

    def time_pairs(self, num_seqs: int, num_new: int, num_drafts: int, num_pairs: int) -> dict[str, float]:
        """Steps in pairs, with vectors and without; prompts begin anew for every step."""
        times: dict[bool, list[float]] = {True: [], False: []}
        num_bytes: list[int] = []
        running = self._start(num_seqs)
        if num_new == 1:
            self._step(running, PROMPT_LENGTH - 1, 0, wants_features=False)
        for pair in range(num_pairs):
            for wants_features in (True, False) if pair % 2 else (False, True):
                if num_new > 1:
                    running = self._start(num_seqs)
                began = time.perf_counter()
                output = self._step(running, num_new, num_drafts, wants_features=wants_features)
                times[wants_features].append(1e3 * (time.perf_counter() - began))
                if wants_features:
                    num_bytes.append(sum(len(item.rows) for item in output.features))
        added = [on - off for on, off in zip(times[True], times[False], strict=True)]
        return {
            "step_ms": round(statistics.median(times[False]), 3),
            "added_ms": round(statistics.median(added), 3),
            "bytes": round(statistics.mean(num_bytes)),
        }

    def _start(self, num_seqs: int) -> list[Running]:
        self._stepper.forget_all()
        return [Running(id=next(self._step_ids), place=place) for place in range(num_seqs)]

    def _step(
        self, running: list[Running], num_new: int, num_drafts: int, *, wants_features: bool
    ) -> BatchOutput:
        steps = [self._sequence_step(item, num_new, num_drafts, wants_features) for item in running]
        output = self._stepper.run(Batch(step_id=next(self._step_ids), steps=steps))
        for item in running:
            outcome = output.outcomes.get(item.id)
            item.num_computed += num_new
            if isinstance(outcome, Output):
                item.num_tokens += len(outcome.token_ids)
                item.num_computed += outcome.num_accepted_tokens
        return output

    def _sequence_step(
        self, item: Running, num_new: int, num_drafts: int, wants_features: bool
    ) -> SequenceStep:
        start, block_ids = None, range(0)
        if not item.num_computed:
            params = SequenceParams(sampling=SamplingParams(temperature=0)).to_proto()
            start = SequenceStart(
                token_ids=self._tokens(PROMPT_LENGTH), num_prompt_tokens=PROMPT_LENGTH, params=params
            )
            num_blocks = MAX_LENGTH // self._stepper.facts.block_size
            block_ids = range(item.place * num_blocks, (item.place + 1) * num_blocks)
        return SequenceStep(
            sequence_id=item.id,
            start=start,
            num_computed_tokens=item.num_computed,
            num_new_tokens=num_new,
            draft_token_ids=self._tokens(num_drafts),
            new_block_ids=list(block_ids),
            wants_features=wants_features,
        )

    def _tokens(self, count: int) -> list[int]:
        return [self._rng.randrange(512) for _ in range(count)]


def main() -> None:
    """Prints one JSON object per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    arguments = parser.parse_args()
    # Standard output is for the results.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    group = Group()
    for num_seqs, num_new, num_drafts in CASES:
        row = group.time_pairs(num_seqs, num_new, num_drafts, arguments.pairs)
        about = {"num_seqs": num_seqs, "num_new_tokens": num_new, "num_draft_tokens": num_drafts}
        print(json.dumps(about | row), flush=True)


if __name__ == "__main__":
    main()
