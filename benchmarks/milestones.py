"""What the services' logs and the start of their processes tell of a recovery."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from benchmarks.processes import Process, logs_of, services_of

# What happened, by the event that a service logs of it.
EVENTS = {
    "group_stream_broken": "scheduler lost group",
    "scheduler_lost": "gateway lost scheduler",
    "loading_model": "worker imported",
    "model_loaded": "model loaded",
    "group_found": "scheduler found group",
    "scheduler_connected": "gateway found scheduler",
}


class LogPlaces:
    """How far each log of a stack goes at one moment."""

    def __init__(self, stack_pid: int) -> None:
        self._sizes = {path: path.stat().st_size for path in logs_of(stack_pid).values()}

    def events_since(self) -> Iterator[tuple[str, float]]:
        """Yields what was logged since, and when."""
        for path, size in self._sizes.items():
            yield from _events(path, size)


def _events(path: Path, begin: int) -> Iterator[tuple[str, float]]:
    with path.open("rb") as log:
        log.seek(begin)
        for line in log:
            try:
                record = json.loads(line)
                yield record["event"], datetime.fromisoformat(record["timestamp"]).timestamp()
            except (ValueError, KeyError, TypeError):
                continue


def milestones(
    places: LogPlaces, stack_pid: int, before: Mapping[str, Process], struck_at: float, ended_at: float
) -> dict[str, float]:
    """Returns the seconds from the blow to each thing that happened first or last before the next token.

    Of several ranks that load the last one counts, and of several processes that start.
    """
    found: dict[str, float] = {}
    for event, at in places.events_since():
        if event in EVENTS and struck_at <= at <= ended_at:
            name = EVENTS[event]
            found[name] = max(found.get(name, 0.0), round(at - struck_at, 3))
    old = {(process.pid, process.started) for process in before.values()}
    for name, process in services_of(stack_pid).items():
        at = process_start(process) - struck_at
        if (process.pid, process.started) not in old and at <= ended_at - struck_at:
            service = name.partition("-")[0] if "." not in name else "rank"
            found[f"{service} started"] = max(found.get(f"{service} started", 0.0), round(at, 3))
    return found


def process_start(process: Process) -> float:
    """Returns when a process began on the clock of time.time, to a hundredth of a second."""
    up_seconds = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - up_seconds + process.started / os.sysconf("SC_CLK_TCK")
