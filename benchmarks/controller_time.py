"""Measures what the controller itself takes per step.

    python -m benchmarks.controller_time [--num-seqs 1 64] [--num-steps 2000]

Every sequence has a draft of 15 tokens in every step, and everything is asked of the controller that the
scheduler asks: whom to ask, how long to wait, which offer, how long, and what became of all of it. Prints one
JSON line: milliseconds of processor time per step, the median and the mean (the fits come every few steps),
by number of sequences. Target: 0.2 for 64.
"""

import argparse
import json
import statistics
import time

import numpy as np

from services.scheduler.controller import Controller, ModelFacts, Offer, Record, Settings, StepShape

NUM_DRAFT_TOKENS = 15
NUM_WARM_UP_STEPS = 200
SOURCES = frozenset({"suffix"})


def step(controller: Controller, records: list[Record], offers: list[Offer], num_right: list[int]) -> float:
    """Takes one step; returns the processor time of the controller in seconds."""
    count = len(records)
    shape = StepShape(num_rows=count, num_sequences=count, num_context_tokens=500 * count)
    began = time.thread_time()
    sources = controller.sources(records, SOURCES)
    controller.note_questions(list(zip(records, sources, strict=True)))
    controller.wait_seconds(records, shape)
    controller.best([(record, [offer]) for record, offer in zip(records, offers, strict=True)])
    drafts = [(record, offer, NUM_DRAFT_TOKENS) for record, offer in zip(records, offers, strict=True)]
    counts = controller.allocate(shape, drafts, 2048)
    for record, offer, verified, right in zip(records, offers, counts, num_right, strict=True):
        if verified:
            controller.note_draft(record, offer, verified, min(verified, right))
    num_rows = count + sum(counts)
    seconds = 0.02 + 0.0005 * num_rows
    shape = StepShape(num_rows=num_rows, num_sequences=count, num_context_tokens=500 * count)
    controller.note_step(shape, seconds, [28, 29, 27, 28])
    controller.note_round_trip(0.001)
    return time.thread_time() - began


def measure(num_seqs: int, num_steps: int) -> dict[str, float]:
    """Returns milliseconds per step."""
    rng = np.random.default_rng(1)
    model = ModelFacts(num_experts=32, num_experts_per_token=4, num_moe_layers=4)
    controller = Controller(model, Settings(max_num_draft_tokens=NUM_DRAFT_TOKENS))
    records = [controller.new_record() for _ in range(num_seqs)]
    times = []
    for _ in range(NUM_WARM_UP_STEPS + num_steps):
        chances = rng.uniform(0.3, 0.99, (num_seqs, NUM_DRAFT_TOKENS))
        num_right = np.cumprod(rng.random(chances.shape) < chances, axis=1).sum(axis=1).tolist()
        offers = [
            Offer(source="suffix", confidences=tuple(row), match_length=5, phase="thinking")
            for row in chances.tolist()
        ]
        times.append(1000 * step(controller, records, offers, num_right))
    times = times[NUM_WARM_UP_STEPS:]
    return {"median_ms": round(statistics.median(times), 4), "mean_ms": round(statistics.mean(times), 4)}


def main() -> None:
    """Prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-seqs", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--num-steps", type=int, default=2000)
    arguments = parser.parse_args()
    print(json.dumps({str(count): measure(count, arguments.num_steps) for count in arguments.num_seqs}))


if __name__ == "__main__":
    main()
