"""Measures whether the first step of a shape is slower than later ones: whether warming shapes would pay.

    python -m benchmarks.first_shapes [--num-repeats 20]

Steps of many shapes run in a worker that has warmed up once, each shape for the first time and then again in
another order. The ratio of the first to the median of the rest says what a list of shapes seen before, warmed
at start, could save; once per shape.
"""

import argparse
import json
from collections.abc import Sequence
from random import Random
from statistics import median

from benchmarks.step_costs import Group, prompts

SHAPES = [(num_seqs, num_rows) for num_seqs in (1, 2, 3, 5, 8, 13, 21, 34) for num_rows in (1, 2, 4, 7)]
# No answer holds it, so that each step yields one token of each sequence.
WRONG_TOKEN = 799


def play(group: Group, asked: Sequence[list[int]], shapes: Sequence[tuple[int, int]]) -> list[float]:
    """Begins all sequences and runs a step of each shape, in this order; returns what they took."""
    group.start(asked)
    lengths = [len(prompt) + 1 for prompt in asked]
    found: list[float] = []
    for num_seqs, num_rows in shapes:
        seconds, _ = group.step(lengths[:num_seqs], [[WRONG_TOKEN] * (num_rows - 1)] * num_seqs)
        found.append(seconds)
        lengths = [length + (place < num_seqs) for place, length in enumerate(lengths)]
    return found


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-repeats", type=int, default=20)
    arguments = parser.parse_args()
    group, asked, rng = Group(), prompts(max(count for count, _ in SHAPES)), Random(0)
    first = dict(zip(SHAPES, play(group, asked, SHAPES), strict=True))
    later: dict[tuple[int, int], list[float]] = {shape: [] for shape in SHAPES}
    for _ in range(arguments.num_repeats):
        order = rng.sample(SHAPES, len(SHAPES))
        for shape, seconds in zip(order, play(group, asked, order), strict=True):
            later[shape].append(seconds)
    usual = {shape: median(times) for shape, times in later.items()}
    ratios = sorted(first[shape] / usual[shape] for shape in SHAPES)
    print(
        json.dumps(
            {
                "num_shapes": len(SHAPES),
                "median_ratio": round(median(ratios), 2),
                "highest_ratio": round(ratios[-1], 2),
                "extra_ms_over_all_shapes": round(
                    1000 * sum(first[shape] - usual[shape] for shape in SHAPES), 1
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
