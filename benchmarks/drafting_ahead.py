"""Measures what drafting ahead saves, as the scheduler's own counters tell.

    python -m benchmarks.drafting_ahead [--num-streams 1 4] [--seconds 10] [--drafter suffix,model,head]

A sequence's draft is a hit when it was there before the scheduler had to ask for it. What waiting a step was
spared is the time that answers take at the moment; what it waited all the same is measured. Rows also say
whose drafts were accepted.
"""

import argparse
import asyncio
import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import results
from benchmarks.agent import sessions
from benchmarks.answers import Meter, asker
from benchmarks.progress import Progress
from benchmarks.runs import Cell, measure_run
from benchmarks.stacks import stack
from benchmarks.workloads import Place, Repetitive, plays
from outrider import AsyncClient
from services.local.settings import DRAFT_SOURCES

ACCEPTED = "outrider_spec_decode_source_accepted_tokens_total"


def scrape(url: str) -> dict[str, float]:
    """Returns a service's metrics; those with a source are summed over their other labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = " ".join([sample.name, *filter(None, [sample.labels.get("source")])])
            found[name] = found.get(name, 0.0) + sample.value
    return found


async def measure(
    num_streams: Sequence[int], seconds: float, num_sessions: int, sources: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Returns a row per kind and number of streams."""
    repetitive = Repetitive()
    played = plays(repetitive)
    rows: list[dict[str, Any]] = []
    async with stack(drafter=sources) as running, AsyncClient(running.grpc_address) as client:
        await repetitive.watch(asker(client, Meter()), sessions(num_sessions))
        progress = Progress(len(played) * len(num_streams))
        url = running.children["scheduler"].program.http_url
        for count in num_streams:
            for kind, play in played.items():
                before = await asyncio.to_thread(scrape, url)
                cell = Cell(kind=kind, play=play, num_streams=count)
                await measure_run(client, cell, Place(cell=f"{count} streams"), seconds)
                after = await asyncio.to_thread(scrape, url)
                grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
                rows.append({"kind": kind, "num_streams": count, **_row(grown)})
                progress.step(f"{kind}, {count} streams")
    return rows


def _row(grown: dict[str, float]) -> dict[str, Any]:
    num_steps = grown["outrider_num_steps_total"]
    hits, questions = grown["outrider_num_draft_hits_total"], grown["outrider_num_draft_questions_total"]
    num_tokens = grown["outrider_num_output_tokens_total"]
    by_source = {
        name.removeprefix(f"{ACCEPTED} "): value / num_tokens
        for name, value in grown.items()
        if name.startswith(f"{ACCEPTED} ")
    }
    return {
        "hit_rate": hits / max(1.0, hits + questions),
        "waited_ms_per_step": 1000 * grown["outrider_draft_wait_seconds_total"] / num_steps,
        "saved_ms_per_step": 1000 * grown["outrider_draft_wait_saved_seconds_total"] / num_steps,
        "accepted_part_of_output": by_source,
    }


def main() -> None:
    """Prints a line per kind and number of streams, and writes docs/results/drafting_ahead.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--num-sessions", type=int, default=4)
    parser.add_argument("--drafter", default=",".join(DRAFT_SOURCES), help="the sources, by commas")
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    arguments = parser.parse_args()
    sources = tuple(arguments.drafter.split(","))
    rows = asyncio.run(measure(arguments.num_streams, arguments.seconds, arguments.num_sessions, sources))
    results.save("drafting_ahead", rows, arguments.results)
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
