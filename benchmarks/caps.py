"""Confirms end to end that the controller needs no help: against caps on draft lengths, as the kind changes.

    python -m benchmarks.caps [--num-streams 4] [--num-rounds 8] [--seconds 2.5]

A request can cap its drafts but not fix their length, so this compares the controller left alone with the
controller under a cap of 0 (no drafts), 1, 2 and 4 tokens. A round plays the three kinds of text one after
the other under each cap, in an order that rotates from round to round; its rate is that of as many tokens of
each kind. Fixed lengths proper are compared by `benchmarks.regret`.
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

from benchmarks import results
from benchmarks.agent import sessions
from benchmarks.answers import Meter, asker
from benchmarks.intervals import interval
from benchmarks.progress import Progress
from benchmarks.runs import Cell, measure_run
from benchmarks.stacks import stack
from benchmarks.workloads import Place, Repetitive, plays
from outrider import AsyncClient
from services.local.settings import DRAFT_SOURCES

UNCAPPED = "none"
CAPS: Mapping[str, Mapping[str, object]] = {
    UNCAPPED: {},
    "0": {"speculation": False},
    "1": {"max_draft_tokens": 1},
    "2": {"max_draft_tokens": 2},
    "4": {"max_draft_tokens": 4},
}


async def measure(
    num_streams: int, num_rounds: int, seconds: float, num_sessions: int, sources: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns a row per cap."""
    repetitive = Repetitive()
    played = plays(repetitive)
    found: dict[str, list[float]] = {cap: [] for cap in CAPS}
    async with stack(drafter=sources) as running, AsyncClient(running.grpc_address) as client:
        await repetitive.watch(asker(client, Meter()), sessions(num_sessions))
        progress = Progress(num_rounds * len(CAPS))
        for number in range(num_rounds):
            for cap in _rotated(list(CAPS), number):
                place = Place(cell=f"cap {cap}", pair=number)
                rates = []
                for kind, play in played.items():
                    cell = Cell(kind=kind, play=play, num_streams=num_streams)
                    run = await measure_run(client, cell, place, seconds, **CAPS[cap])
                    rates.append(run.tokens_per_second)
                found[cap].append(harmonic_mean(rates))
                progress.step(f"cap {cap}: {found[cap][-1]:.1f} tokens/s")
    return [_row(cap, num_streams, rates, found[UNCAPPED]) for cap, rates in found.items()]


def _rotated(caps: list[str], by: int) -> list[str]:
    by %= len(caps)
    return caps[by:] + caps[:by]


def _row(cap: str, num_streams: int, rates: Sequence[float], uncapped: Sequence[float]) -> dict[str, Any]:
    ratios = [free / capped for free, capped in zip(uncapped, rates, strict=True)]
    return {
        "cap": cap,
        "num_streams": num_streams,
        "num_rounds": len(rates),
        "tokens_per_second": median(rates),
        "uncapped_to_capped": asdict(interval(ratios)),
    }


def main() -> None:
    """Prints a line per cap and writes docs/results/caps.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-streams", type=int, default=4)
    parser.add_argument("--num-rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--num-sessions", type=int, default=4)
    parser.add_argument("--drafter", default=",".join(DRAFT_SOURCES), help="the sources, by commas")
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    rows = asyncio.run(
        measure(
            arguments.num_streams,
            arguments.num_rounds,
            arguments.seconds,
            arguments.num_sessions,
            tuple(arguments.drafter.split(",")),
        )
    )
    results.save("caps", rows, arguments.results)
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
