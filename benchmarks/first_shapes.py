"""Measures whether the first step of a shape is slower than later ones: whether warming shapes would pay.

    python -m benchmarks.first_shapes [--num-repeats 20]

Steps of many shapes run in a worker that has warmed up once, each shape for the first time and then again in
another order. The ratio of the first to the median of the rest says what a list of shapes seen before, warmed
at start, could save; once per shape.
"""

import argparse
import itertools
import json
import time
from random import Random
from statistics import median

from benchmarks.end_to_end import Loop
from services.local.settings import DEFAULT_MODEL
from services.worker.messages import SequenceStep

SHAPES = [(num_seqs, num_rows) for num_seqs in (1, 2, 3, 5, 8, 13, 21, 34) for num_rows in (1, 2, 4, 7)]
CONTEXT = 40


class Shapes(Loop):
    """A worker's code whose sequences all have a context to go on from."""

    def __init__(self) -> None:
        super().__init__(DEFAULT_MODEL)
        self.ids = [next(self._sequence_ids) for _ in range(max(count for count, _ in SHAPES))]
        tokens = [[(7 * place + name) % 500 for place in range(CONTEXT)] for name in self.ids]
        pairs = zip(self.ids, itertools.count(), tokens, strict=False)
        self._run([self._start(id_, place, prompt, 1000) for id_, place, prompt in pairs])

    def seconds(self, num_seqs: int, num_rows: int) -> float:
        """Runs a step that computes the last token of sequences and drafts behind it, all of them wrong."""
        steps = [
            SequenceStep(
                sequence_id=id_,
                start=None,
                num_computed_tokens=self._stepper.sequences[id_].num_tokens - 1,
                num_new_tokens=1,
                draft_token_ids=[799] * (num_rows - 1),
                new_block_ids=[],
            )
            for id_ in self.ids[:num_seqs]
        ]
        began = time.perf_counter()
        self._run(steps)
        return time.perf_counter() - began


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-repeats", type=int, default=20)
    arguments = parser.parse_args()
    shapes, rng, found = Shapes(), Random(0), {}
    for shape in SHAPES:
        found[shape] = [shapes.seconds(*shape)]
    for _ in range(arguments.num_repeats):
        for shape in rng.sample(SHAPES, len(SHAPES)):
            found[shape].append(shapes.seconds(*shape))
    ratios = sorted(times[0] / median(times[1:]) for times in found.values())
    extra = sum(times[0] - median(times[1:]) for times in found.values())
    print(
        json.dumps(
            {
                "num_shapes": len(SHAPES),
                "median_ratio": round(median(ratios), 2),
                "highest_ratio": round(ratios[-1], 2),
                "extra_ms_over_all_shapes": round(1000 * extra, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
