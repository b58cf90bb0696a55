"""Measures the pause of a running answer when a process dies under it, and where the time goes.

    python -m benchmarks.recovery [--num-repeats 10] [--cells 2x1 2x2 1x1] [--victims NAME ...]

A cell is RANKSxPAIRS of a local stack on the embedded model. One answer runs; a process of the pair that
runs it is killed or stopped; the pause is the longest silence from that moment on at the client. Then
everything is whole again before the next. `docs/recovery.md` is made of the results.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import recovery_page, results
from benchmarks.milestones import LogPlaces, milestones
from benchmarks.processes import Process, services_of
from benchmarks.progress import Progress
from benchmarks.stacks import stack
from outrider import AsyncClient

SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
PROMPT = "What is 4785 + 2467?"
OPTIONS: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 3900, "ignore_eos": True}
# Before the blow, so that the answer is under way and the usual silence is known.
BEFORE_SECONDS = 1.5
# After all is whole again, so that a second silence would show.
AFTER_SECONDS = 1.0
# What was sent before the blow is read by then.
SPURT_SECONDS = 0.3
WHOLE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The size of a stack."""

    num_ranks: int
    num_pairs: int

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """Reads RANKSxPAIRS."""
        num_ranks, _, num_pairs = text.partition("x")
        return cls(num_ranks=int(num_ranks), num_pairs=int(num_pairs))

    def victims(self) -> dict[str, tuple[str, ...]]:
        """Returns what dies, by name: services without the number of their pair."""
        ranks = [f"worker.{rank}" for rank in range(self.num_ranks)] if self.num_ranks > 1 else []
        group = {f"rank {rank}": (name,) for rank, name in enumerate(ranks)}
        return {
            **group,
            "agent" if ranks else "worker": ("worker",),
            "scheduler": ("scheduler",),
            "gateway": ("gateway",),
            "drafter": ("drafter",),
            "pair": ("worker", *ranks, "scheduler"),
        }


class Answer:
    """One answer that keeps coming, and when its tokens came on the clock of time.time."""

    def __init__(self, client: AsyncClient) -> None:
        self._stream = client.generate(PROMPT, **OPTIONS)
        self.times: list[float] = []

    async def read(self) -> None:
        """Reads until cancelled."""
        async for _ in self._stream:
            self.times.append(time.time())
        raise RuntimeError("the answer ended before it was measured")


def silence_from(times: Sequence[float], moment: float) -> tuple[float, float]:
    """Returns when the longest silence from a moment on began and ended."""
    pairs = [(max(begin, moment), end) for begin, end in itertools.pairwise(times) if end > moment]
    return max(pairs, key=lambda pair: pair[1] - pair[0])


def silences_before(times: Sequence[float], moment: float) -> list[float]:
    """Returns the times between tokens that came before a moment."""
    return [end - begin for begin, end in itertools.pairwise(times) if end <= moment]


class Measuring:
    """Strikes the processes of one stack, one blow after another."""

    def __init__(self, client: AsyncClient, cell: Cell) -> None:
        self._client = client
        self._cell = cell
        self._pid = os.getpid()

    async def strike(self, victims: Sequence[str], number: signal.Signals) -> dict[str, Any]:
        """Returns what one blow did to an answer."""
        answer = Answer(self._client)
        reading = asyncio.create_task(answer.read())
        await asyncio.sleep(BEFORE_SECONDS)
        before = services_of(self._pid)
        suffix = await self._suffix_of_busy_pair(before)
        struck = [before[_named(victim, suffix)] for victim in victims]
        places = LogPlaces(self._pid)
        struck_at = time.time()
        for process in struck:
            # A rank dies with its agent.
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        await self._until_whole(before, struck, answer)
        await asyncio.sleep(AFTER_SECONDS)
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        began_at, ended_at = silence_from(answer.times, struck_at)
        usual = silences_before(answer.times, struck_at)
        return {
            "seconds": ended_at - began_at,
            "usual_seconds": median(usual),
            "usual_max_seconds": max(usual),
            "milestones": milestones(places, self._pid, before, struck_at, ended_at),
        }

    async def _suffix_of_busy_pair(self, services: Mapping[str, Process]) -> str:
        """Returns what the names of the services that run the answer end with."""
        if self._cell.num_pairs == 1:
            return ""
        busy = [one.address for one in await self._client.stats() if one.load.num_requests_running]
        for name, process in services.items():
            port = process.variables().get("OUTRIDER_SCHEDULER_GRPC_PORT")
            if name.startswith("scheduler") and busy and busy[0].endswith(f":{port}"):
                return name.removeprefix("scheduler")
        raise RuntimeError("no scheduler runs the answer")

    async def _until_whole(
        self, before: Mapping[str, Process], struck: Sequence[Process], answer: Answer
    ) -> None:
        """Returns when others have taken the places of those that were struck, and the answer goes on."""
        struck_at = time.time()
        async with asyncio.timeout(WHOLE_SECONDS):
            while not (self._is_replaced(before, struck) and await self._is_connected()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            while answer.times[-1] < struck_at + SPURT_SECONDS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    def _is_replaced(self, before: Mapping[str, Process], struck: Sequence[Process]) -> bool:
        now = services_of(self._pid)
        gone = {(process.pid, process.started) for process in struck}
        there = {(process.pid, process.started) for process in now.values()}
        return before.keys() == now.keys() and not gone & there

    async def _is_connected(self) -> bool:
        try:
            schedulers = await self._client.stats(timeout=1.0)
        except Exception:
            return False
        return all(one.connected and one.load.has_group and one.load.drafter_connected for one in schedulers)


def _named(victim: str, suffix: str) -> str:
    service, dot, rank = victim.partition(".")
    return service + (suffix if service in ("worker", "scheduler") else "") + dot + rank


async def measure(cell: Cell, wanted: Sequence[str], num_repeats: int) -> list[dict[str, Any]]:
    """Returns a row for each victim and signal."""
    cases = [
        (name, manner)
        for manner in SIGNALS
        for name in cell.victims()
        # An agent that is stopped harms nobody while its ranks serve.
        if (not wanted or name in wanted) and (name, manner) != ("agent", "stopped")
    ]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {case: [] for case in cases}
    progress = Progress(num_repeats * len(cases))
    async with (
        stack(num_ranks=cell.num_ranks, num_pairs=cell.num_pairs) as running,
        AsyncClient(running.grpc_address) as client,
    ):
        measuring = Measuring(client, cell)
        # By turns: what dies often is started again later each time.
        for _, (name, manner) in itertools.product(range(num_repeats), cases):
            blow = await measuring.strike(cell.victims()[name], SIGNALS[manner])
            found[name, manner].append(blow)
            progress.step(f"{name} {manner}: {blow['seconds']:.2f} s {blow['milestones']}")
    return [_row(cell, name, manner, blows) for (name, manner), blows in found.items()]


def _row(cell: Cell, name: str, manner: str, blows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds = [blow["seconds"] for blow in blows]
    return {
        "num_ranks": cell.num_ranks,
        "num_pairs": cell.num_pairs,
        "victim": name,
        "manner": manner,
        "num": len(blows),
        "median_seconds": round(median(seconds), 3),
        "max_seconds": round(max(seconds), 3),
        **{
            name: round(median(blow[name] for blow in blows), 4)
            for name in ("usual_seconds", "usual_max_seconds")
        },
        "milestones": dict(_medians([blow["milestones"] for blow in blows])),
    }


def _medians(found: Sequence[Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    """Yields the milestones that most blows passed, in their order."""
    names = dict.fromkeys(name for one in found for name in one)
    medians = {
        name: median(one[name] for one in found if name in one)
        for name in names
        if 2 * sum(name in one for one in found) > len(found)
    }
    yield from sorted(((name, round(at, 2)) for name, at in medians.items()), key=lambda item: item[1])


def main() -> None:
    """Prints a row per victim and writes docs/results/recovery.json and docs/recovery.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-repeats", type=int, default=10)
    parser.add_argument(
        "--cells", nargs="+", type=Cell.parse, default=[*map(Cell.parse, ("1x1", "2x1", "2x2"))]
    )
    parser.add_argument("--victims", nargs="+", default=[])
    parser.add_argument("--dry", action="store_true", help="print the rows and write nothing")
    arguments = parser.parse_args()
    rows = [
        row
        for cell in arguments.cells
        for row in asyncio.run(measure(cell, arguments.victims, arguments.num_repeats))
    ]
    for row in rows:
        print(json.dumps(row))
    if not arguments.dry:
        results.save("recovery", rows)
        recovery_page.main()


if __name__ == "__main__":
    sys.exit(main())
