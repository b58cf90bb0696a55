"""Runs the benchmarks of the services and writes their report, docs/benchmarks.md; part of `make bench`."""

import argparse
import asyncio
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

import torch

from benchmarks import end_to_end, results, scheduler_overhead
from services.local.settings import DEFAULT_MODEL

HEAD = """# Benchmarks

Measured {day} by `make bench` on {cpu}, {threads} threads, torch {torch}.
Medians. A shared machine varies from run to run, so ratios are taken within one run.

## The scheduler's own work

Milliseconds per step, against a group that answers at once (`benchmarks/scheduler_overhead.py`).
Targets: own work at most 0.15 for 1 sequence and 1.5 for 64; with the stream to the group 0.5 and 2.5.

{overhead}

## Four services against a plain loop

Tokens per second on `models/tiny` with drafts off, client to client, against the worker's code looped in one
process (`benchmarks/end_to_end.py`). Target: a ratio of at least 0.7.

{served}
"""


def table(rows: Iterable[Mapping[str, float]]) -> str:
    """Returns rows of one kind as a Markdown table."""
    rows = list(rows)
    lines = [
        list(rows[0]),
        ["---"] * len(rows[0]),
        *([f"{value:g}" for value in row.values()] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Runs everything and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks.md"))
    arguments = parser.parse_args()
    overhead = scheduler_overhead.measure([1, 64], num_steps=1000)
    served = asyncio.run(end_to_end.measure(DEFAULT_MODEL, [1, 16], num_tokens=64, num_pairs=3))
    report = HEAD.format(
        day=date.today().isoformat(),
        cpu=results.processor(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        overhead=table(overhead),
        served=table(served),
    )
    arguments.output.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
