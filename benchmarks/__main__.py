"""Runs the benchmarks and writes their report, docs/benchmarks.md: `make bench`."""

import argparse
import asyncio
import platform
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path

import torch

from benchmarks import end_to_end, scheduler_overhead, speculation
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

## Speculation

The tiny model's own tasks, problems that training never saw, one stream, temperature 0, with drafts and
without (`benchmarks/speculation.py`): output tokens per step, the fraction of drafted tokens accepted, median
tokens per second and their ratio. Suffix memory alone, empty at the start.

{gained}
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


def processor() -> str:
    """Returns the processor's name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine()
    )


def main() -> None:
    """Runs everything and writes the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks.md"))
    arguments = parser.parse_args()
    overhead = scheduler_overhead.measure([1, 64], num_steps=1000)
    served = asyncio.run(end_to_end.measure(DEFAULT_MODEL, [1, 16], num_tokens=64, num_pairs=3))
    gained = asyncio.run(speculation.measure_alone(num_problems=16))
    report = HEAD.format(
        day=date.today().isoformat(),
        cpu=processor(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        overhead=table(overhead),
        served=table(served),
        gained=table([gained]),
    )
    arguments.output.write_text(report)
    print(report)


if __name__ == "__main__":
    main()
