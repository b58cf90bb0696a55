"""One run: streams of one kind kept busy for a fixed time, and the rate at which their tokens come."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.answers import Meter, asker
from benchmarks.workloads import Place, Play
from outrider import AsyncClient

# So that cancelled streams are gone before the next run begins.
PAUSE_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A kind of text, as streams of it are played, and a number of streams."""

    kind: str
    play: Play
    num_streams: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run showed."""

    tokens_per_second: float
    tokens_per_event: float


async def measure_run(
    client: AsyncClient, cell: Cell, place: Place, seconds: float, **options: object
) -> Run:
    """Keeps the cell's streams busy, and looks at them for so long once all have begun."""
    meters = [Meter() for _ in range(cell.num_streams)]
    async with asyncio.TaskGroup() as tasks:
        streams = [
            tasks.create_task(cell.play(asker(client, meter, **options), replace(place, stream=stream)))
            for stream, meter in enumerate(meters)
        ]
        for meter in meters:
            await meter.has_begun.wait()
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        for stream in streams:
            stream.cancel()
    await asyncio.sleep(PAUSE_SECONDS)
    return _run(meters, began)


def _run(meters: Sequence[Meter], began: float) -> Run:
    events = sorted(event for meter in meters for event in meter.events if event[0] >= began)
    num_tokens = sum(count for _, count in events[1:])
    return Run(
        tokens_per_second=num_tokens / (events[-1][0] - events[0][0]),
        tokens_per_event=num_tokens / (len(events) - 1),
    )
