"""Measures whether speculation ever costs: tokens per second with drafts against without, cell by cell.

    python -m benchmarks.never_costs [--num-streams 1 4 16 64] [--kinds ...] [--num-pairs 10] [--seconds 3]
                                     [--cell-seconds 130] [--num-sessions 8] [--drafter suffix,model,head]
                                     [--name never_costs]

A cell is a kind of text and a number of streams. Its runs alternate in the order ABBA on one stack. A run
keeps so many streams busy with question after question, and counts tokens from the moment when every stream
has begun, for a fixed time. A pair's ratio is the rate with drafts by the rate without; a cell fails if the
upper bound of its median is below 0.97. A cell whose interval is wider than 3 % to either side gets more
pairs while its time lasts.

Cells of one kind follow each other, so that the memory holds what their runs before left there: for the
predictable kind answers to other problems, for the repetitive one the very same requests, for the
unpredictable one nothing, since answers that are cancelled are not remembered.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import results
from benchmarks.agent import sessions
from benchmarks.answers import Meter, asker
from benchmarks.intervals import interval
from benchmarks.progress import Progress
from benchmarks.runs import Cell, Run, measure_run
from benchmarks.stacks import stack
from benchmarks.workloads import Place, Repetitive, plays
from outrider import AsyncClient
from services.local.settings import DRAFT_SOURCES

FLOOR = 0.97
MAX_HALF_WIDTH = 0.03
# The unpredictable first, before the memory has seen anything.
KINDS = ("unpredictable", "predictable", "repetitive")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure each cell."""

    num_pairs: int
    seconds: float
    cell_seconds: float


async def measure_cell(client: AsyncClient, cell: Cell, plan: Plan, progress: Progress) -> dict[str, Any]:
    """Measures pairs until there are enough, the interval is narrow or the cell's time is over."""
    with_drafts: list[Run] = []
    without: list[Run] = []
    began = time.monotonic()
    while True:
        pair = len(without)
        for is_second in (False, True):
            drafts = is_second == bool(pair % 2)
            place = Place(cell=f"{cell.num_streams} streams", pair=pair, is_second=is_second)
            run = await measure_run(client, cell, place, plan.seconds, speculation=drafts)
            (with_drafts if drafts else without).append(run)
        row = _row(cell, with_drafts, without)
        if pair < plan.num_pairs:
            progress.step(
                f"{cell.kind}, {cell.num_streams} streams, pair {pair + 1}: {row['ratios'][-1]:.3f}"
            )
        is_narrow = row["half_width"] <= MAX_HALF_WIDTH
        if len(without) >= plan.num_pairs and (is_narrow or time.monotonic() - began > plan.cell_seconds):
            return row


def _row(cell: Cell, with_drafts: Sequence[Run], without: Sequence[Run]) -> dict[str, Any]:
    pairs = zip(with_drafts, without, strict=True)
    ratios = [on.tokens_per_second / off.tokens_per_second for on, off in pairs]
    found = interval(ratios)
    return {
        "kind": cell.kind,
        "num_streams": cell.num_streams,
        "num_pairs": len(ratios),
        **asdict(found),
        "half_width": found.half_width,
        "is_wide": found.half_width > MAX_HALF_WIDTH,
        "fails": found.high < FLOOR,
        "with_drafts": median(run.tokens_per_second for run in with_drafts),
        "without": median(run.tokens_per_second for run in without),
        "tokens_per_event": median(run.tokens_per_event for run in with_drafts),
        "ratios": ratios,
    }


async def measure(
    kinds: Sequence[str], num_streams: Sequence[int], plan: Plan, num_sessions: int, sources: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns a row per cell."""
    repetitive = Repetitive()
    played = plays(repetitive)
    cells = [Cell(kind=kind, play=played[kind], num_streams=count) for kind in kinds for count in num_streams]
    async with stack(drafter=tuple(sources)) as running, AsyncClient(running.grpc_address) as client:
        if "repetitive" in kinds:
            await repetitive.watch(asker(client, Meter(), speculation=True), sessions(num_sessions))
        progress = Progress(len(cells) * plan.num_pairs)
        return [await measure_cell(client, cell, plan, progress) for cell in cells]


def main() -> None:
    """Prints a line per cell and writes docs/results/NAME.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--num-pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--cell-seconds", type=float, default=130.0)
    parser.add_argument("--num-sessions", type=int, default=8)
    parser.add_argument("--drafter", default=",".join(DRAFT_SOURCES), help="the sources, by commas")
    parser.add_argument("--name", default="never_costs", help="of the result")
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    plan = Plan(num_pairs=arguments.num_pairs, seconds=arguments.seconds, cell_seconds=arguments.cell_seconds)
    sources = arguments.drafter.split(",")
    rows = asyncio.run(measure(arguments.kinds, arguments.num_streams, plan, arguments.num_sessions, sources))
    results.save(arguments.name, rows, arguments.results)
    for row in rows:
        print(json.dumps({name: value for name, value in row.items() if name != "ratios"}))


if __name__ == "__main__":
    main()
